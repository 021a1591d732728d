"""Features of single images, kept in half precision, and batches that are put together from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from gfss.models.pspnet import Features, unit_factors


@dataclass(frozen=True)
class KeptImage:
    """Features of one image in half precision.

    Attributes:
        features: a batch of one.
    """

    features: Features
    _factors: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def put_unit(self, name: str, out: Tensor) -> None:
        """Write a map with vectors of length one; their lengths are computed once."""
        maps = self.features.named([name]).float()
        if name not in self._factors:
            self._factors[name] = unit_factors(maps)
        torch.mul(maps, self._factors[name], out=out)


def keep(features: Features) -> list[KeptImage]:
    """The images of a batch, one by one."""
    half = features.map(lambda tensor: tensor.half())
    own = [half[i : i + 1] for i in range(len(half))]
    return [KeptImage(image.map(lambda tensor: tensor.clone(memory_format=torch.contiguous_format))) for image in own]


class KeptFeatures(Features):
    """A batch of kept images; each map is put together, in single precision, when it is asked for.

    Methods read some of the maps, and those mostly with vectors of length one.
    """

    images: Sequence[KeptImage]

    def __init__(self, images: Sequence[KeptImage]) -> None:
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
        missing = [name for name in names if name not in self._unit]
        if missing == list(names) and "pooled" not in names:
            first = self.images[0].features
            widths = [first.named([name]).shape[1] for name in names]
            whole = torch.empty(len(self.images), sum(widths), *self.size, device=first.base.device)
            parts = dict(zip(names, whole.split(widths, dim=1), strict=True))
            for i, image in enumerate(self.images):
                for name, part in parts.items():
                    image.put_unit(name, part[i : i + 1])
            self._unit.update(parts)
            return whole
        return super().unit(*names)

    def _level(self, name: str) -> Tensor:
        return _joined([image.features.levels[name] for image in self.images])

    def _maps(self, name: str) -> list[Tensor]:
        if name in self.images[0].features.levels:
            return [self._level(name)]  # without the other levels
        return super()._maps(name)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(parts)).float()
