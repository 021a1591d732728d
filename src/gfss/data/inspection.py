"""Look at every image and label of a data set and collect what is wrong, instead of stopping at the first."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from gfss.common.errors import GfssError
from gfss.common.progress import track
from gfss.data.datasets.base import Dataset, pixel_counts, refuse_other_size, refuse_unknown_values
from gfss.data.images import image_size, read_image
from gfss.data.labels import Labels
from gfss.data.labels.png import INDEX

T = TypeVar("T")

UNREADABLE_IMAGE = "images that cannot be read"
UNREADABLE_LABEL = "labels that cannot be read"
OTHER_SIZE = "labels of another size than their image"
UNKNOWN_VALUE = "masks with an unknown value"


@dataclass(frozen=True)
class Inspection:
    """What was found.

    Attributes:
        counts: pixels of every mask value in every readable mask, (masks, 256).
        sizes: height and width of these masks, (masks, 2).
        problems: kind of problem -> one sentence per file.
    """

    counts: np.ndarray
    sizes: np.ndarray
    problems: dict[str, list[str]]


def inspect(labels: Labels, description: str, decode: bool = True) -> Inspection:
    """Look at every image and label.

    Args:
        labels: what to look at.
        description: text of the progress bar.
        decode: read the whole images, to find truncated ones; their headers alone otherwise.
    """
    problems: dict[str, list[str]] = {}
    rows: list[np.ndarray] = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        looks = pool.map(lambda i: _look(labels, i, decode), range(len(labels)))
        for row, found in track(looks, description, total=len(labels)):
            if row is not None:
                rows.append(row)
            for text, kind in found.items():
                problems.setdefault(kind, []).append(text)
    table = np.stack(rows) if rows else np.zeros((0, 258), dtype=np.int64)
    return Inspection(table[:, :256], table[:, 256:], problems)


def as_labels(dataset: Dataset) -> Labels:
    """A data set seen as labelled images."""
    return Labels(INDEX, dataset.classes, dataset.images, dataset.masks, dataset.mask)


def _look(labels: Labels, i: int, decode: bool) -> tuple[np.ndarray | None, dict[str, str]]:
    """Pixel counts and size of mask ``i``, and from sentence to kind of problem."""
    image, file = labels.images[i], labels.files[i]
    found: dict[str, str] = {}

    def attempt(kind: str, work: Callable[[], T]) -> T | None:
        try:
            return work()
        except GfssError as error:
            found.setdefault(str(error), kind)
            return None

    size = attempt(UNREADABLE_IMAGE, lambda: read_image(image).shape[:2] if decode else image_size(image))
    mask = attempt(UNREADABLE_LABEL, lambda: labels.draw(i))
    if mask is None:
        return None, found
    if size is not None:
        attempt(OTHER_SIZE, lambda: refuse_other_size(mask, file, image, size))
    counts = pixel_counts(mask)
    attempt(UNKNOWN_VALUE, lambda: refuse_unknown_values(counts, file, len(labels.classes)))
    return np.append(counts, mask.shape), found
