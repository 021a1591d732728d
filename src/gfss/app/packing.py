"""Between a model in memory and the parts and words that are written to its folder.

A folder with valid checksums may still hold nonsense, so all of it is checked before a model is built from it.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from gfss.app.model_folder import BACKGROUND_NAME, Parts
from gfss.app.network import Network, check_balance
from gfss.app.support import Example, Samples, TaughtClass
from gfss.app.teaching import ClassFit, Estimate, Verdict
from gfss.common.errors import GfssError
from gfss.models.base_model import BaseCard, BaseModel, PyramidHead
from gfss.models.calibrators.mask_refiner import MaskRefiner
from gfss.models.encoders import build_encoder
from gfss.models.encoders.base import Encoder
from gfss.models.novel.descriptors import DenseDescriptors
from gfss.models.novel.logistic import LogisticOptions

ROWS = "rows of taught classes"
Part = TypeVar("Part", bound=nn.Module)


def network_parts(network: Network, half: bool) -> tuple[Parts, dict[str, Any]]:
    """Weights of a network, in fp16 if wanted, and what it takes to build it again."""
    card = network.card
    modules: dict[str, nn.Module] = {"head": network.base.head}
    if card.trained_encoder:
        modules["encoder"] = network.base.encoder
    if network.refiner is not None:
        modules["refiner"] = network.refiner
    if network.descriptors is not None:
        modules["descriptors"] = network.descriptors
    parts = {
        name: {key: _stored(t, half) for key, t in module.state_dict().items()} for name, module in modules.items()
    }
    return parts, {
        "precision": "fp16" if half else "fp32",
        "base": card.as_json(),
        "head": network.base.head.config,
        "refiner": network.refiner and network.refiner.config,
        "descriptors": network.descriptors and network.descriptors.config,
    }


def build_network(parts: Parts, about: dict[str, Any], weights: Path | None, source: str) -> Network:
    """A network from what :func:`network_parts` gave.

    Args:
        weights: file with the encoder's weights, where the model does not carry them.
        source: name of the model, for messages.
    """
    card = BaseCard.from_json(about["base"])
    if card.trained_encoder:
        encoder = build_encoder(card.encoder, output_stride=card.output_stride, pretrained=False)
        refuse_other_shapes(encoder, parts["encoder"], source)
        _fill(encoder, parts["encoder"])
        card = replace(card, encoder_hash=encoder.weights_hash())
    else:
        encoder = build_encoder(card.encoder, weights, card.output_stride)
        refuse_other_weights(encoder, card, source)
    head = build_part(lambda: PyramidHead(**about["head"]), parts["head"], source)
    if head.classifier.out_channels != len(card.classes) + 1:
        raise GfssError(
            f"the head of {source} has {head.classifier.out_channels} outputs for {len(card.classes)} classes"
        )
    refiner = None
    if about["refiner"]:
        refiner = build_part(lambda: MaskRefiner(**about["refiner"]), parts["refiner"], source)
    descriptors = None
    if about.get("descriptors"):  # models of version 0.1 have none
        descriptors = build_part(lambda: DenseDescriptors(**about["descriptors"]), parts["descriptors"], source)
    return Network(BaseModel(encoder, head, card), refiner, descriptors)


def refuse_other_weights(encoder: Encoder, card: BaseCard, source: str) -> None:
    """Raise if an encoder's weights are not those that a model was trained on."""
    if encoder.weights_hash() != card.encoder_hash:
        raise GfssError(
            f"the model {source} was trained on other weights of {card.encoder} ({card.encoder_hash}) than those at "
            f"hand ({encoder.weights_hash()}); give the matching file with --encoder-weights"
        )


def taught_parts(
    taught: Sequence[TaughtClass], fits: Sequence[ClassFit], keep_images: bool
) -> tuple[Parts, list[dict[str, Any]]]:
    """Support features and fitted rows, and the list of what was taught."""
    parts: Parts = {}
    if taught:
        parts[ROWS] = {
            "weight": torch.stack([fit.weight for fit in fits]),
            "bias": torch.stack([fit.bias for fit in fits]),
        }
    listing: list[dict[str, Any]] = []
    for number, (one, fit) in enumerate(zip(taught, fits, strict=True)):
        part: dict[str, Tensor] = {}
        for i, example in enumerate(one.examples):
            part |= {f"{i}.{name}": level for name, level in example.levels.items()}
            part[f"{i}.labels"] = _png(example.labels)
            for n, copy in enumerate(example.copies):
                part[f"{i}.copy{n}.features"], part[f"{i}.copy{n}.labels"] = copy.features, copy.labels
            if example.others is not None:
                part[f"{i}.others"] = _png(example.others)
            if example.image is not None and (keep_images or example.kept):
                part[f"{i}.image"] = _png(example.image)
        parts[_support_part(number)] = part
        supports = [
            {
                "id": e.id,
                "sha256": e.sha256,
                "lesson": e.lesson,
                "shows": e.shows,
                "copies": len(e.copies),
                "others": list(e.names),
            }
            for e in one.examples
        ]
        entry = {"name": one.name, "balance": one.balance, "fitted_iou": fit.fitted_iou, "seen_as": fit.seen_as}
        listing.append({**entry, "verdict": asdict(fit.verdict), "supports": supports})
    return parts, listing


def build_taught(
    parts: Parts, listing: Sequence[dict[str, Any]], levels: Sequence[str]
) -> tuple[list[TaughtClass], list[ClassFit]]:
    """Taught classes and their fits from what :func:`taught_parts` gave."""
    taught: list[TaughtClass] = []
    fits: list[ClassFit] = []
    for number, entry in enumerate(listing):
        part = parts[_support_part(number)]
        examples = tuple(_build_example(part, i, about, levels) for i, about in enumerate(entry["supports"]))
        taught.append(TaughtClass(entry["name"], examples, check_balance(entry["balance"])))
        rows, verdict = parts[ROWS], entry["verdict"]
        threshold, estimate = check_balance(verdict["threshold"]), Estimate(**verdict["estimate"])
        strength = float(verdict.get("strength", LogisticOptions.l2))
        known = Verdict(threshold, bool(verdict["refined"]), estimate, strength)
        fitted, seen_as = float(entry["fitted_iou"]), tuple(float(share) for share in entry["seen_as"])
        fits.append(ClassFit(rows["weight"][number], rows["bias"][number], fitted, seen_as, known))
    return taught, fits


def _build_example(part: dict[str, Tensor], i: int, about: dict[str, Any], levels: Sequence[str]) -> Example:
    copies = range(about["copies"])
    return Example(
        id=about["id"],
        sha256=about["sha256"],
        lesson=about["lesson"],
        levels={name: part[f"{i}.{name}"] for name in levels},
        labels=_from_png(part[f"{i}.labels"]),
        copies=tuple(Samples(part[f"{i}.copy{n}.features"], part[f"{i}.copy{n}.labels"]) for n in copies),
        others=_from_png(part[f"{i}.others"]) if f"{i}.others" in part else None,
        names=tuple(about["others"]),
        image=_from_png(part[f"{i}.image"]) if f"{i}.image" in part else None,
        kept=f"{i}.image" in part,
    )


def fingerprint(network: Network, taught: Sequence[TaughtClass], fits: Sequence[ClassFit]) -> str:
    """Hash of everything that the masks of a model depend on."""
    parts, about = network_parts(network, half=False)
    classes = [
        [one.name, one.balance, fit.seen_as, asdict(fit.verdict), [example.sha256 for example in one.examples]]
        for one, fit in zip(taught, fits, strict=True)
    ]
    digest = hashlib.sha256(json.dumps([about, classes], sort_keys=True).encode())
    rows = [tensor for fit in fits for tensor in (fit.weight, fit.bias)]
    for tensor in (*(tensor for part in parts.values() for tensor in part.values()), *rows):
        digest.update(tensor.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _support_part(number: int) -> str:
    return f"support of class {number + 1}"


def _stored(tensor: Tensor, half: bool) -> Tensor:
    return tensor.half() if half and tensor.is_floating_point() else tensor


def _fill(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    own = module.state_dict()
    module.load_state_dict({name: tensor.to(own[name].dtype) for name, tensor in tensors.items()})


def _png(pixels: np.ndarray) -> Tensor:
    """Pixels as the bytes of a PNG file, so that labels and images stay small."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


def _from_png(content: Tensor) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(content.numpy().tobytes()), formats=("PNG",)))


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
