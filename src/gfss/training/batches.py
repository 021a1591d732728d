"""Which images make up an iteration of stage 1, and how they are varied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gfss.common.errors import GfssError
from gfss.data.datasets.base import Dataset
from gfss.data.episodes import Fold

if TYPE_CHECKING:
    from gfss.training.base import BaseOptions

CACHE_BYTES = 200_000_000  # decoded images that are cached in memory while an encoder is trained


def training_images(dataset: Dataset, fold: Fold, avoid: Sequence[int] | np.ndarray = ()) -> np.ndarray:
    """Images with at least one base class; those that also show novel classes stay (their pixels are void)."""
    chosen = np.setdiff1d(np.flatnonzero(dataset.members[:, list(fold.base)].any(axis=1)), avoid)
    if len(chosen) == 0:
        raise GfssError(f"{dataset.name} has no image of a base class to train on")
    return chosen


def batch_images(images: np.ndarray, batch: int, seed: int, number: int) -> list[int]:
    """Images of iteration ``number``: every epoch a new order, its incomplete last batch left out."""
    per_epoch = max(1, len(images) // batch)
    epoch, place = divmod(number, per_epoch)
    order = np.random.default_rng((seed, epoch)).permutation(images)
    return [int(i) for i in order[place * batch : (place + 1) * batch]]


def augmentations(seed: int, number: int, count: int, options: BaseOptions) -> np.ndarray:
    """How the samples of an iteration are varied, (count, 5) int.

    Columns: mirrored left-right, mirrored up-down, and the order of the three colour channels.
    """
    rng = np.random.default_rng((seed, number, 1))
    mirrored = (rng.random((count, 2)) < 0.5) & np.array([options.flip, options.flip_vertical])
    colours = np.tile(np.arange(3), (count, 1))
    if options.shuffle_colours:
        colours = rng.permuted(colours, axis=1)
    return np.concatenate([mirrored.astype(np.int64), colours], axis=1)


def reader(dataset: Dataset) -> Callable[[int], tuple[np.ndarray, np.ndarray]]:
    """Reads image and mask by number; those of a small data set are cached, since decoding costs a tenth of a step."""
    cached: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    room = CACHE_BYTES

    def read(i: int) -> tuple[np.ndarray, np.ndarray]:
        nonlocal room
        if i in cached:
            return cached[i]
        both = dataset.image(i), dataset.mask(i)
        room -= both[0].nbytes + both[1].nbytes
        if room > 0:
            cached[i] = both
        return both

    return read
