"""Features of single images, cached in half precision, and batches that are put together from them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import psutil
import torch
from torch import Tensor

from gfss.models.base_model import Features, unit_factors

CACHE_SHARE = 0.5  # of the free memory, for cached images; what methods derive from them comes on top


@dataclass(frozen=True)
class CachedImage:
    """Features of one image in half precision.

    Attributes:
        features: a batch of one.
        factors: for levels and bottleneck, what brings their vectors to length one (see :func:`unit_factors`).
        derived: maps that methods made of them (see :meth:`CachedFeatures.cached`).
    """

    features: Features
    factors: dict[str, Tensor]
    derived: dict[Hashable, Tensor] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Memory of features and factors."""
        tensors = [*self.features.levels.values(), *self.features.pooled, self.features.bottleneck, self.features.base]
        return sum(tensor.nbytes for tensor in (*tensors, *self.factors.values()))

    def put_unit(self, name: str, out: Tensor) -> None:
        """Write a map with vectors of length one."""
        out.copy_(self.features.named([name])).mul_(self.factors[name])


def cached_images(features: Features) -> list[CachedImage]:
    """The images of a batch, one by one."""
    half = features.map(lambda tensor: tensor.half())
    factors = {name: unit_factors(half.named([name]).float()) for name in (*half.levels, "bottleneck")}

    def own(tensor: Tensor, i: int) -> Tensor:
        return tensor[i : i + 1].clone(memory_format=torch.contiguous_format)

    return [
        CachedImage(
            half.map(lambda tensor, i=i: own(tensor, i)), {name: own(each, i) for name, each in factors.items()}
        )
        for i in range(len(half))
    ]


def free_memory() -> int:
    """Bytes that programs may still take."""
    return psutil.virtual_memory().available


class CachedFeatures(Features):
    """A batch of cached images; each map is put together, in single precision, when it is asked for.

    Methods read some of the maps, and those mostly with vectors of length one.
    """

    images: Sequence[CachedImage]

    def __init__(self, images: Sequence[CachedImage]) -> None:
        self.__dict__ |= {"images": images, "_unit": {}}  # attributes of frozen features cannot be set otherwise

    @cached_property
    def levels(self) -> dict[str, Tensor]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return {name: self._level(name) for name in self.images[0].features.levels}

    @cached_property
    def pooled(self) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return tuple(_joined(branch) for branch in zip(*(image.features.pooled for image in self.images), strict=True))

    @cached_property
    def bottleneck(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        return _joined([image.features.bottleneck for image in self.images])

    @cached_property
    def base(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        return _joined([image.features.base for image in self.images])

    def unit(self, *names: str) -> Tensor:
        """Like :meth:`Features.unit`; maps that are first asked for together lie together."""
        first = self.images[0]
        if any(name in self._unit or name not in first.factors for name in names):
            return super().unit(*names)
        widths = [first.features.named([name]).shape[1] for name in names]
        whole = torch.empty(len(self.images), sum(widths), *self.size, device=self.base.device)
        parts = dict(zip(names, whole.split(widths, dim=1), strict=True))
        for i, image in enumerate(self.images):
            for name, part in parts.items():
                image.put_unit(name, part[i : i + 1])
        self._unit.update(parts)
        return whole

    def cached(self, key: Hashable, compute: Callable[[Features], Tensor]) -> Tensor:
        """Like :meth:`Features.cached`; what is missing is made image by image, so that it is the same in any batch."""
        for image in self.images:
            if key not in image.derived:
                image.derived[key] = compute(CachedFeatures([image])).half()
        return _joined([image.derived[key] for image in self.images])

    def _level(self, name: str) -> Tensor:
        return _joined([image.features.levels[name] for image in self.images])

    def _maps(self, name: str) -> list[Tensor]:
        if name in self.images[0].features.levels:
            return [self._level(name)]  # without the other levels
        return super()._maps(name)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """One batch in single precision; copying part by part is several times faster than joining in half precision."""
    whole = torch.empty(len(parts), *parts[0].shape[1:], device=parts[0].device)
    for row, part in zip(whole.split(1), parts, strict=True):
        row.copy_(part)
    return whole
