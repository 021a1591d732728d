"""A model folder with valid checksums may still hold nonsense: what is checked before a model is built from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from gfss.app.teaching import ClassFit
from gfss.common.errors import GfssError, quoted
from gfss.data.catalog import VOID

Part = TypeVar("Part", bound=nn.Module)

BACKGROUND_NAME = "background"
LARGEST_INPUT = 4096  # pixels of a side of the square input


@contextmanager
def one_sentence(source: str) -> Iterator[None]:
    """Whatever goes wrong while a model is built from what its folder says becomes one sentence."""
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError, OverflowError) as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        raise GfssError(
            f"the model {source} does not fit together ({type(error).__name__}: {reason:.120}); copy it again from "
            "where it came, or make it again"
        ) from None


def check_words(about: Mapping[str, Any], source: str) -> None:
    """Raise if class names or the input size of ``model.json`` are not possible ones."""
    names = [*about["base"]["classes"], *(one["name"] for one in about["taught"])]
    for name in names:
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise GfssError(f"the model {source} has a class called {quoted(name)}; class names are printable text")
    if len(set(names)) != len(names) or not 0 < len(names) < VOID:
        raise GfssError(f"the model {source} names {len(names)} classes; expected 1 to {VOID - 1}, each once")
    size = about["base"]["size"]
    if type(size) is not int or not 0 < size <= LARGEST_INPUT:
        raise GfssError(f"the model {source} has an input of {size!r:.40} pixels; expected 1 to {LARGEST_INPUT}")


def build_part(make: Callable[[], Part], tensors: Mapping[str, Tensor], source: str) -> Part:
    """A part of a model with its weights, made only once it is clear that the weights have its shapes.

    Args:
        make: makes the part as the folder describes it.
        tensors: its weights.
    """
    with torch.device("meta"):  # shapes without memory
        planned = make()
    refuse_other_shapes(planned, tensors, source)
    module = make()
    own = module.state_dict()
    module.load_state_dict({name: tensor.to(own[name].dtype) for name, tensor in tensors.items()})
    return module


def refuse_other_shapes(module: nn.Module, tensors: Mapping[str, Tensor], source: str) -> None:
    """Raise if weights are not those of a part: other names or shapes, or values that are not finite."""
    kind = type(module).__name__.lower()
    shapes = {name: tensor.shape for name, tensor in module.state_dict().items()}
    if {name: tensor.shape for name, tensor in tensors.items()} != shapes:
        raise GfssError(
            f"the {kind} of {source} was made by another version of gfss; create the model again with this one"
        )
    refuse_infinite(tensors, kind, source)


def refuse_infinite(tensors: Mapping[str, Tensor], kind: str, source: str) -> None:
    """Raise if weights are NaN or infinite: the model would answer something, but not from what it learned."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise GfssError(
                f"the {kind} of {source} has weights that are NaN or infinite ({name}); copy the model again from "
                "where it came, or make it again"
            )


def check_fits(fits: Sequence[ClassFit], channels: int, source: str) -> None:
    """Raise if the rows of taught classes do not fit the encoder, or are not numbers."""
    for fit in fits:
        refuse_infinite({"weight": fit.weight, "bias": fit.bias}, "rows of taught classes", source)
        if fit.weight.shape != (channels,) or fit.bias.shape != ():
            raise GfssError(f"the rows of taught classes of {source} do not fit its encoder's {channels} channels")


def check_name(name: str, add: bool, base: Sequence[str], taught: Sequence[str]) -> None:
    """Raise unless a lesson may have this name.

    Args:
        add: the lesson adds to a class that was taught.
        base: names of the base classes.
        taught: names of the classes that were taught.
    """
    if add and name not in taught:
        raise GfssError(f"'{name}' was not taught yet, so nothing can be added to it; teach it first")
    if not add and name in taught:
        raise GfssError(
            f"'{name}' is already a class; add images to that class (add=True, --add), or choose another name"
        )
    if name in (BACKGROUND_NAME, *base):
        raise GfssError(f"'{name}' is already a base class; choose another name")
    if name != name.strip() or not name or not name.isprintable():
        raise GfssError(f"invalid class name {name!r}; use printable characters, without spaces at the ends")
