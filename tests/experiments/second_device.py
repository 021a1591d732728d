"""A second device for tests on machines without a graphics card.

Its tensors say that they are on torch's ``meta`` device, but the CPU holds and computes their values. Like those of a
graphics card they cannot meet tensors of the CPU (but for single numbers, and indices into tensors of the device), and
do not turn into numpy arrays before they are brought back. So code that runs here, and gives what it gives on the CPU,
puts every tensor where it belongs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

ELSEWHERE = torch.device("meta")

aten = torch.ops.aten
COPIES = (aten.copy_.default,)
INDEXING = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default)


class Distant(Tensor):
    """A tensor of the second device.

    Attributes:
        values: what it holds, on the CPU.
    """

    values: Tensor

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, values: Tensor) -> Distant:
        place = {"strides": values.stride(), "storage_offset": values.storage_offset(), "dtype": values.dtype}
        tensor = Tensor._make_wrapper_subclass(cls, values.shape, **place, device=ELSEWHERE)
        tensor.values = values
        return tensor

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        return _run(op, args, kwargs or {})

    def tolist(self) -> Any:
        return self.values.tolist()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Distant({self.values})"


class _Elsewhere(TorchDispatchMode):
    """Also sees operations that make tensors there, or bring them there."""

    def __torch_dispatch__(self, op: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        return _run(op, args, kwargs or {})


def _run(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    distant = any(isinstance(tensor, Distant) for tensor in tensors)
    free = op in COPIES or (op in INDEXING and isinstance(args[0], Distant))
    if distant and not free and any(tensor.ndim and not isinstance(tensor, Distant) for tensor in tensors):
        raise RuntimeError(f"{op}: tensors of two devices meet")
    asked = kwargs.get("device")
    near = tree_map(lambda leaf: leaf.values if isinstance(leaf, Distant) else leaf, (args, kwargs))
    result = op(*near[0], **near[1] | ({} if asked is None else {"device": torch.device("cpu")}))
    there = distant if asked is None else torch.device(asked).type == ELSEWHERE.type
    if op in COPIES:
        there = isinstance(args[0], Distant)
    if not there:
        return result
    result = tree_map(lambda leaf: Distant(leaf) if isinstance(leaf, Tensor) else leaf, result)
    return return_and_correct_aliasing(op, args, kwargs, result) if distant and asked is None else result


class _FromNumbers(TorchFunctionMode):
    """Lists of numbers become tensors on the CPU first; torch itself forgets their values on its ``meta`` device."""

    def __torch_function__(self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function in (Tensor.__getitem__, Tensor.__setitem__) and isinstance(args[0], Distant):
            places = args[1] if isinstance(args[1], tuple) else (args[1],)
            index = tuple(torch.tensor(place) if isinstance(place, list) else place for place in places)
            args = (args[0], index, *args[2:])
        elif function is torch.tensor and (device := kwargs.pop("device", None)) is not None:
            return torch.tensor(*args, **kwargs).to(device)
        return function(*args, **kwargs)


@contextmanager
def second_device() -> Iterator[torch.device]:
    """The second device, as long as it is there."""
    name = "_get_fused_kernels_supported_devices"  # that optimisers ask for
    modules = {module: getattr(module, name) for module in list(sys.modules.values()) if hasattr(module, name)}
    for module in modules:
        setattr(module, name, lambda: ["cpu", ELSEWHERE.type])
    try:
        with _Elsewhere(), _FromNumbers():
            yield ELSEWHERE
    finally:
        for module, usual in modules.items():
            setattr(module, name, usual)
