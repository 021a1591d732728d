"""From small score maps to masks and probabilities of an image's own size.

Up to twice the size of the network's view, every pixel takes the class map of the evaluation protocol at the nearest
position, so that the mask of an image that the network sees in its own or a smaller size scores exactly what the
harness counts. Larger images interpolate the scores, for smooth edges. Scores of taught classes follow the colours of
the image (:mod:`gfss.models.ops.upsample`), where a :class:`Guide` says which they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gfss.data.images import fitted_size, to_tensor
from gfss.models.calibrators.mask_refiner import grid_colours
from gfss.models.ops.upsample import class_map, colour_slopes, upsample, with_detail

STRIP = 256  # rows that are interpolated at once
SMOOTH_FROM = 2.0  # enlargement from which scores are interpolated


@dataclass(frozen=True, eq=False)
class Guide:
    """What scores of taught classes follow.

    Attributes:
        taught: how many of the last classes were taught.
        image: (height, width, 3) uint8.
        square: the same as the network sees it, (size, size, 3) uint8.
    """

    taught: int
    image: np.ndarray
    square: np.ndarray


def label_map(scores: Tensor, size: int, shape: tuple[int, int], guide: Guide | None = None) -> np.ndarray:
    """The class of every pixel of an image, (height, width) uint8.

    Args:
        scores: logits (classes, h, w) of the squared image.
        size: side of the square.
        shape: height and width of the image.
        guide: the image, where scores of taught classes follow it.
    """
    if _is_enlarged(size, shape):
        strips = _smooth(scores, size, shape, _usable(scores, size, guide))
        return np.concatenate([strip.argmax(dim=0).to(torch.uint8).numpy() for strip in strips])
    rows, columns = _nearest(size, shape)
    return square_labels(scores, size, guide).numpy()[rows][:, columns]


def square_labels(scores: Tensor, size: int, guide: Guide | None = None) -> Tensor:
    """The class of every pixel of the square, (size, size) uint8."""
    if (guide := _usable(scores, size, guide)) is None:
        return class_map(scores[None], (size, size))[0]
    return _guided_classes(scores, size, guide)


def probabilities(scores: Tensor, size: int, shape: tuple[int, int], guide: Guide | None = None) -> np.ndarray:
    """The probability of every class at every pixel, (classes, height, width) float32; arguments as above."""
    if _is_enlarged(size, shape):
        guide = _usable(scores, size, guide)
        strips = _smooth(scores, size, shape, guide)
        return np.concatenate([strip.softmax(dim=0).numpy() for strip in strips], axis=1)
    rows, columns = _nearest(size, shape)
    return square_scores(scores, size, guide).softmax(dim=0).numpy()[:, rows][:, :, columns]


def square_scores(scores: Tensor, size: int, guide: Guide | None = None) -> Tensor:
    """Scores (classes, size, size) at the pixels of the square."""
    full = upsample(scores[None], (size, size))[0]
    if (guide := _usable(scores, size, guide)) is None:
        return full
    return torch.cat([full[: -guide.taught], _guided(scores[-guide.taught :], size, guide)])


def _usable(scores: Tensor, size: int, guide: Guide | None) -> Guide | None:
    """The guide where there are taught classes, and pixels of the square lie on positions of the map."""
    fits = all(length > 1 and (size - 1) % (length - 1) == 0 for length in scores.shape[1:])
    return guide if guide is not None and guide.taught and fits else None


def _guided_classes(scores: Tensor, size: int, guide: Guide) -> Tensor:
    """The class of every pixel of the square: the best known one, or a taught one whose guided score is higher."""
    known, taught = scores[: -guide.taught], scores[-guide.taught :]
    labels = class_map(known[None], (size, size))[0]
    able = (taught > known.amax(dim=0)).flatten(1).any(dim=1).nonzero()[:, 0]  # the others win nowhere
    if not len(able):
        return labels
    best, which = _guided(taught[able], size, guide).max(dim=0)
    wins = best > upsample(known.amax(dim=0)[None, None], (size, size))[0, 0]
    return torch.where(wins, (able[which] + len(known)).to(torch.uint8), labels)


def _guided(taught: Tensor, size: int, guide: Guide) -> Tensor:
    """Scores (classes, size, size) of some taught classes at the pixels of the square."""
    image = to_tensor(guide.square[None])
    coarse = _coarse_guide(taught, image)
    parts = upsample(torch.cat([taught, *coarse])[None], (size, size))[0].split([len(taught), 3 * len(taught), 3])
    return with_detail(parts[0], parts[1].unflatten(0, (len(taught), 3)), parts[2], image[0] - 0.5)


def _coarse_guide(taught: Tensor, image: Tensor) -> tuple[Tensor, Tensor]:
    """Slopes (3 * classes, h, w) and mean colours less a half (3, h, w) on the grid of the scores."""
    colours = grid_colours(image, (taught.shape[-2], taught.shape[-1]))[0]
    return colour_slopes(taught, colours).flatten(0, 1), colours


def _is_enlarged(size: int, shape: tuple[int, int]) -> bool:
    return any(side > SMOOTH_FROM * fit for side, fit in zip(shape, fitted_size(*shape, size), strict=True))


def _nearest(size: int, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of the squared image that each row and column of the image shows."""
    fit = fitted_size(*shape, size)
    rows, columns = (
        ((np.arange(side) + 0.5) * (f / side)).astype(np.int64) for side, f in zip(shape, fit, strict=True)
    )
    return rows, columns


def _smooth(scores: Tensor, size: int, shape: tuple[int, int], guide: Guide | None) -> Iterator[Tensor]:
    """Interpolated scores of an image, strip by strip: (classes, rows, width)."""
    fit = fitted_size(*shape, size)
    down, across = (
        _weights(side, f, size, length) for side, f, length in zip(shape, fit, scores.shape[1:], strict=True)
    )
    coarse = () if guide is None else _coarse_guide(scores[-guide.taught :], to_tensor(guide.square[None]))
    wide = torch.cat([scores, *coarse]) @ across.T
    for start in range(0, shape[0], STRIP):
        strip = down[start : start + STRIP] @ wide
        if guide is None:
            yield strip
            continue
        known, taught, slopes, colours = strip.split([len(scores) - guide.taught, guide.taught, 3 * guide.taught, 3])
        image = to_tensor(np.array(guide.image[None, start : start + STRIP]))[0] - 0.5
        sharp = with_detail(taught, slopes.unflatten(0, (guide.taught, 3)), colours, image)
        yield torch.cat([known, sharp])


def _weights(side: int, fit: int, size: int, length: int) -> Tensor:
    """Linear interpolation (side, length) from a map of a square to the pixels that an image has along one side."""
    pixels = ((torch.arange(side, dtype=torch.float64) + 0.5) * (fit / side) - 0.5).clamp(0, fit - 1)
    places = pixels * ((length - 1) / (size - 1))
    distance = (places[:, None] - torch.arange(length, dtype=torch.float64)).abs()
    return (1 - distance).clamp_min(0).float()
