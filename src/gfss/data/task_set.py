"""Tasks and episodes as image files, masks and class roles: for any network, whatever it is made of.

The same tasks as those of ``gfss evaluate``: they are functions of (seed, index).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from gfss.common.errors import GfssError, unknown
from gfss.data import NAMES, open_dataset, open_fold
from gfss.data.datasets.base import Dataset
from gfss.data.episodes import Fold, Task, episode, fold_of_names, joint_task, task
from gfss.data.images import square_image, square_label

Kind = Literal["paired", "joint", "episode"]


@dataclass(frozen=True, eq=False)
class Sample:
    """One image of a task.

    :meth:`image`, :meth:`mask` and a prediction have the same height and width: a square of the task set's ``size``
    with the image at its top left, or the image's own size where ``size`` is None.

    Attributes:
        dataset: where the image is from.
        index: its number there.
        table: from mask value to label of the task.
        size: side of the square.
        drawn_for: novel class that a support image was drawn for, None for queries.
    """

    dataset: Dataset
    index: int
    table: np.ndarray
    size: int | None
    drawn_for: str | None = None

    @property
    def id(self) -> str:
        """Name of the image in its data set."""
        return self.dataset.ids[self.index]

    @property
    def path(self) -> Path:
        """Image file."""
        return self.dataset.images[self.index]

    def image(self) -> np.ndarray:
        """Pixels, (height, width, 3) uint8."""
        pixels = self.dataset.image(self.index)
        return pixels if self.size is None else square_image(pixels, self.size)

    def mask(self) -> np.ndarray:
        """True labels, (height, width) uint8: 0 background, base classes, novel classes of the task, 255 void."""
        labels = self.dataset.mask(self.index)
        return self.table[labels if self.size is None else square_label(labels, self.size)]

    def fit(self, prediction: np.ndarray) -> np.ndarray:
        """A prediction as it is compared with :meth:`mask`.

        Args:
            prediction: labels, (height, width), in the size of :meth:`mask` or in that of the image file.
        """
        given = np.asarray(prediction)
        original = self._size
        wanted = original if self.size is None else (self.size, self.size)
        if given.shape == wanted:
            return given.astype(np.uint8)
        if self.size is None or given.shape != original:
            sizes = " or ".join(f"{h} x {w}" for h, w in dict.fromkeys((wanted, original)))
            raise GfssError(
                f"the prediction for {self.id} has shape {given.shape}; it should be {sizes} (rows x columns)"
            )
        return square_label(given.astype(np.uint8), self.size)

    @cached_property
    def _size(self) -> tuple[int, int]:
        height, width = self.dataset.sizes[self.index]
        return int(height), int(width)


@dataclass(frozen=True, eq=False)
class TaskImages:
    """A task, or an episode: what to learn from and what to segment.

    Attributes:
        number: of the task in its set.
        base: names of the base classes, labels 1, 2, ...
        novel: names of the novel classes (fake ones in an episode), the labels after those.
        supports: labelled images to learn from, novel class by novel class.
        queries: images to segment.
    """

    number: int
    base: tuple[str, ...]
    novel: tuple[str, ...]
    supports: tuple[Sample, ...]
    queries: tuple[Sample, ...]

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names by label."""
        return ("background", *self.base, *self.novel)


@dataclass(frozen=True, eq=False)
class TaskSet:
    """Tasks of a protocol, or training episodes; drawn when asked for.

    Attributes:
        data: name of the data set in records.
        dataset: images to segment, and to learn from unless ``learn_from`` is given.
        fold: base and novel class ids.
        fold_name: number of the fold, or the novel classes' names.
        kind: ``paired``, ``joint`` or ``episode``.
        shots: support images per novel class.
        count: how many tasks there are.
        seed: of the draws.
        size: side of the square in which images are seen and labels compared; None for every image's own size.
        learn_from: in the joint protocol, the split of the supports if it is another one.
    """

    data: str
    dataset: Dataset
    fold: Fold
    fold_name: int | str
    kind: Kind
    shots: int = 1
    count: int = 1000
    seed: int = 0
    size: int | None = 417
    learn_from: Dataset | None = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> TaskImages:
        """Task ``number``; negative numbers count from the end."""
        if not -self.count <= number < self.count:
            raise IndexError(f"task {number} of {self.count}")
        number %= self.count
        drawn = self.draw(number)
        fold = self.fold
        if self.kind == "episode":  # its novel classes are base classes that play the part
            fold = Fold(tuple(c for c in fold.base if c not in drawn.novel), fold.novel + drawn.novel)
        table = fold.label_table(drawn.novel)
        novel, source = self._names(drawn.novel), self.learn_from or self.dataset
        supports = (
            Sample(source, image, table, self.size, name)
            for name, group in zip(novel, drawn.supports, strict=True)
            for image in group
        )
        queries = (Sample(self.dataset, image, table, self.size) for image in drawn.queries)
        return TaskImages(number, self._names(fold.base), novel, tuple(supports), tuple(queries))

    def __iter__(self) -> Iterator[TaskImages]:
        return (self[number] for number in range(self.count))

    def draw(self, number: int) -> Task:
        """Image indices of a task."""
        if self.kind == "paired":
            return task(self.dataset, self.fold, self.seed, number, self.shots)
        if self.kind == "joint":
            return joint_task(self.dataset, self.fold, self.seed, number, self.shots, self.learn_from)
        return episode(self.dataset, self.fold.base, self.seed, number, self.shots)

    @property
    def base_classes(self) -> tuple[str, ...]:
        """Names of the base classes."""
        return self._names(self.fold.base)

    @property
    def novel_classes(self) -> tuple[str, ...]:
        """Names of the novel classes of the fold."""
        return self._names(self.fold.novel)

    def _names(self, ids: Sequence[int]) -> tuple[str, ...]:
        return tuple(self.dataset.classes[c - 1] for c in ids)


def paired(
    data: str | Path,
    fold: int | Sequence[str] = 0,
    *,
    shots: int = 1,
    tasks: int = 1000,
    seed: int = 0,
    size: int | None = 417,
    root: Path | None = None,
) -> TaskSet:
    """Tasks of the paired protocol (the paper's): one novel class, and a pair of queries for every base class.

    Args:
        data: ``pascal``, ``coco``, ``scenes``, or a path to own data.
        fold: 0 to 3, or the names of the novel classes.
        shots: support images per novel class.
        tasks: how many.
        seed: of the draws.
        size: side of the square in which labels are compared (scenes: 113); None for every image's own size.
        root: folder of the data set, where the environment does not name it.
    """
    return TaskSet(*_opened(str(data), fold, root, "val"), "paired", shots, tasks, seed, size)


def joint(
    data: str | Path,
    fold: int | Sequence[str] = 0,
    *,
    shots: int = 1,
    tasks: int = 5,
    seed: int = 0,
    size: int | None = 417,
    root: Path | None = None,
    supports: Literal["val", "train"] = "val",
) -> TaskSet:
    """Tasks of the joint protocol: all novel classes at once, every other val image a query.

    Arguments as in :func:`paired`.

    Args:
        supports: split that the support images are drawn from.
    """
    if supports not in ("val", "train"):
        raise unknown("split of the supports", supports, ("val", "train"))
    learn_from = open_dataset(str(data), root, "train") if supports == "train" else None
    return TaskSet(*_opened(str(data), fold, root, "val"), "joint", shots, tasks, seed, size, learn_from)


def episodes(
    data: str | Path,
    fold: int | Sequence[str] = 0,
    *,
    shots: int = 1,
    count: int = 1000,
    seed: int = 0,
    size: int | None = 417,
    root: Path | None = None,
) -> TaskSet:
    """Training episodes: a base class plays the novel one, on images of the train split.

    Arguments as in :func:`paired`. True novel classes are void, so nothing is learned of them.

    Args:
        count: how many.
    """
    return TaskSet(*_opened(str(data), fold, root, "train"), "episode", shots, count, seed, size)


def _opened(
    data: str, fold: int | Sequence[str], root: Path | None, split: str
) -> tuple[str, Dataset, Fold, int | str]:
    dataset = open_dataset(data, root, split)
    name = data if data in NAMES else Path(data).resolve().name
    if isinstance(fold, int):
        return name, dataset, open_fold(data, len(dataset.classes), fold), fold
    novel = [fold] if isinstance(fold, str) else list(fold)
    return name, dataset, fold_of_names(dataset.classes, novel), ",".join(novel)
