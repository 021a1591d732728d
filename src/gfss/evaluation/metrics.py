"""From label maps to figures: pixel counts per image, then two metrics over them.

Labels are those of a fold: 0 background, 1..N base classes, then novel classes, 255 void in the truth.

``per-image`` is the paper's metric, as we infer it from the paper's numbers: IoU inside each image that contains the
class, averaged over the images of a task, then over tasks. A false positive in an image without the class costs that
class nothing.
``accumulated`` is the usual one: intersection and union summed over everything, then divided.

:class:`Figures` are averages over classes, seeds and folds: plain numbers in percent, None where there is no figure.
"""

from __future__ import annotations

import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Self

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

NAMES = ("base", "novel", "miou", "mean", "harmonic", "background")

Percent = Annotated[float, Field(ge=0, le=100.001)]  # a mean of hundreds may be a rounding above


class Figures(BaseModel):
    """What a run scores under one metric, in percent.

    Attributes:
        base: mean IoU of the base classes.
        novel: mean IoU of the novel classes.
        miou: mean IoU of all classes, each with the same weight; one without a figure counts as the mean of its kind.
        mean: (base + novel) / 2.
        harmonic: harmonic mean of ``base`` and ``novel``.
        background: IoU of the background; in no other figure unless asked for.
        classes: IoU of every class by name, base classes first.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    base: Percent | None
    novel: Percent | None
    miou: Percent | None
    mean: Percent | None
    harmonic: Percent | None
    background: Percent | None
    classes: dict[str, Percent | None]


def harmonic_mean(base: float | None, novel: float | None) -> float | None:
    """H = 2 B N / (B + N); 0 where both are 0.

    >>> round(harmonic_mean(59.43, 47.98), 2)
    53.09
    """
    if base is None or novel is None:
        return None
    return 2 * base * novel / (base + novel) if base + novel else 0.0


def weighted_mean(base: float | None, novel: float | None, base_classes: int, novel_classes: int) -> float | None:
    """Mean over all classes, from the means of the base and of the novel classes.

    >>> round(weighted_mean(61.28, 47.96, 15, 5), 2)
    57.95
    """
    if base is None or novel is None:
        return None
    return (base_classes * base + novel_classes * novel) / (base_classes + novel_classes)


def summarise(
    base: Mapping[str, float | None],
    novel: Mapping[str, float | None],
    background: float | None,
    with_background: bool = False,
) -> Figures:
    """Figures from the IoU of every class.

    Args:
        base: IoU of the base classes by name.
        novel: IoU of the novel classes by name. Classes without a figure stay out of the averages.
        background: IoU of the background.
        with_background: count the background as one more base class, as some papers do.
    """
    known = [*base.values(), background] if with_background else list(base.values())
    base_mean, novel_mean = _mean(known), _mean(novel.values())
    return Figures(
        base=base_mean,
        novel=novel_mean,
        miou=weighted_mean(base_mean, novel_mean, len(known), len(novel)),
        mean=weighted_mean(base_mean, novel_mean, 1, 1),
        harmonic=harmonic_mean(base_mean, novel_mean),
        background=background,
        classes={**base, **novel},
    )


def average(runs: Sequence[Figures], per_class: bool = True) -> Figures:
    """Mean figures of several runs; H is taken of the averaged base and novel figures, as in the paper.

    Args:
        runs: figures of the runs, at least one.
        per_class: average the classes as well; leave it out over folds, where a class is now base, now novel.
    """
    means = {name: _mean(getattr(run, name) for run in runs) for name in NAMES}
    means["harmonic"] = harmonic_mean(means["base"], means["novel"])
    names = runs[0].classes if per_class else ()
    return Figures(**means, classes={name: _mean(run.classes[name] for run in runs) for name in names})


def spread(runs: Sequence[Figures]) -> dict[str, float | None]:
    """Sample standard deviation of every figure over runs; None where fewer than two runs have the figure."""
    spreads: dict[str, float | None] = {}
    for name in NAMES:
        values = [value for run in runs if (value := getattr(run, name)) is not None]
        spreads[name] = statistics.stdev(values) if len(values) > 1 else None
    return spreads


def _mean(values: Iterable[float | None]) -> float | None:
    given = [value for value in values if value is not None]
    return statistics.fmean(given) if given else None


def image_counts(predicted: Tensor, truth: Tensor, classes: int) -> Tensor:
    """Pixels of every class in every image, void pixels left out.

    Fastest with uint8 maps.

    Args:
        predicted: predicted labels below ``classes``, (images, height, width), any integer type.
        truth: true labels below ``classes`` or 255 for void, (images, height, width), any integer type.
        classes: number of labels, background included; at most 255.

    Returns:
        (images, classes, 3) int64: pixels where both agree on the class, predicted pixels, true pixels.

    >>> image_counts(torch.tensor([[[0, 1, 1]]]), torch.tensor([[[0, 1, 255]]]), 2).tolist()
    [[[1, 1, 1], [1, 1, 1]]]
    """
    if predicted.shape != truth.shape or truth.ndim != 3:
        raise ValueError(
            f"predicted {tuple(predicted.shape)} and truth {tuple(truth.shape)} must both be (images, height, width)"
        )
    if not len(truth):
        return torch.zeros(0, classes, 3, dtype=torch.int64)
    rows = truth.to(torch.uint8) + 1  # void wraps round from 255 to row 0
    if int(rows.max()) > classes or int(predicted.max()) >= classes:
        raise ValueError(f"labels must be below {classes} (255 for void in the truth)")
    # 16-bit indices and one count per image are several times faster than one count over 64-bit indices
    narrow = torch.int16 if (classes + 1) * classes <= torch.iinfo(torch.int16).max else torch.int32
    cells = (rows.to(narrow) * classes).add_(predicted.to(narrow)).flatten(1)
    pairs = torch.stack([torch.bincount(image, minlength=(classes + 1) * classes) for image in cells])
    confusion = pairs.view(len(truth), classes + 1, classes)[:, 1:]
    return torch.stack((confusion.diagonal(dim1=1, dim2=2), confusion.sum(dim=1), confusion.sum(dim=2)), dim=-1)


def task_iou(counts: Tensor) -> Tensor:
    """Per-image IoU of one task: mean over the images that contain the class, 0 where none does.

    Args:
        counts: result of ``image_counts``, (images, classes, 3).

    Returns:
        (classes,) float64 in 0..1.
    """
    intersection, predicted, true = counts.double().unbind(dim=-1)
    union = predicted + true - intersection  # at least 1 wherever the class is present
    present = true > 0
    iou = torch.where(present, intersection / union.clamp(min=1), 0.0)
    return iou.sum(dim=0) / present.sum(dim=0).clamp(min=1)


def accumulated_iou(counts: Tensor) -> Tensor:
    """IoU of counts summed over images.

    Args:
        counts: (classes, 3).

    Returns:
        (classes,) float64 in 0..1; nan for a class that was neither there nor predicted.
    """
    intersection, predicted, true = counts.double().unbind(dim=-1)
    return intersection / (predicted + true - intersection)


class Metric(ABC):
    """Takes the counts of one task after another and gives the figures of the run.

    Metrics of the same classes can be added, so tasks may be spread over processes; the figures do not depend
    on the order of the tasks.

    Args:
        base: names of the base classes in order of label.
        novel: names of the novel classes of the fold.
    """

    _seen: Any  # what is known of the tasks so far; the sum of two is that of all their tasks

    def __init__(self, base: Sequence[str], novel: Sequence[str]) -> None:
        self.base = tuple(base)
        self.novel = tuple(novel)

    @abstractmethod
    def update(self, counts: Tensor, novel: Sequence[str] | None = None) -> None:
        """Take one whole task.

        Args:
            counts: (images, 1 + base classes + novel classes of the task, 3), from ``image_counts``.
            novel: names of the task's novel classes in order of label; all of the fold if left out.
        """

    @abstractmethod
    def state(self) -> list[Any]:
        """What was seen, as JSON, without loss."""

    @abstractmethod
    def restore(self, state: list[Any]) -> None:
        """Go on from what :meth:`state` gave."""

    @abstractmethod
    def _values(self) -> list[float]:
        """IoU in 0..1 of background, base and novel classes; nan for a class without a figure."""

    @abstractmethod
    def _task_values(self) -> list[list[float]]:
        """For every task the values of background, base and novel classes in 0..1 (nan: none); see :meth:`per_task`."""

    def per_task(self) -> tuple[list[float], list[float]]:
        """Base and novel of every task in percent, in the order of the tasks, for statistics.

        Under ``per-image`` they are the figures of the task itself. ``accumulated`` has no figure of a single task:
        here a value is the figure of all tasks plus the number of tasks times what this task adds to it (the influence
        of the task), so that the mean of the values is the figure.
        """
        first = 1 + len(self.base)
        rows = self._task_values()
        parts = ([_exact_mean(_known(row[start:end])) for row in rows] for start, end in ((1, first), (first, None)))
        base, novel = ([100 * (0.0 if math.isnan(value) else value) for value in part] for part in parts)
        return base, novel

    def summary(self, with_background: bool = False) -> Figures:
        """The figures over all tasks so far, in percent; optionally with the background as a base class."""
        background, *rest = (None if math.isnan(value) else 100 * value for value in self._values())
        base = dict(zip(self.base, rest[: len(self.base)], strict=True))
        novel = dict(zip(self.novel, rest[len(self.base) :], strict=True))
        return summarise(base, novel, background, with_background)

    def _places(self, counts: Tensor, novel: Sequence[str] | None) -> list[int]:
        """Where the labels of a task stand among all labels of the fold."""
        first = 1 + len(self.base)
        places = [*range(first), *(first + self.novel.index(name) for name in (self.novel if novel is None else novel))]
        if counts.ndim != 3 or counts.shape[1:] != (len(places), 3):
            raise ValueError(f"counts {tuple(counts.shape)} must be (images, {len(places)}, 3)")
        return places

    def __add__(self, other: Self) -> Self:
        """The metric over the tasks of both."""
        if (type(self), self.base, self.novel) != (type(other), other.base, other.novel):
            raise ValueError("only the same metrics of the same classes can be added")
        both = type(self)(self.base, self.novel)
        both._seen = self._seen + other._seen
        return both


class PerImage(Metric):
    """The paper's metric, as we infer it: mean over tasks of the mean over images of a task.

    A base class counts in every task, with 0 where no image of the task contains it; a novel class counts in
    its own tasks.
    """

    def __init__(self, base: Sequence[str], novel: Sequence[str]) -> None:
        super().__init__(base, novel)
        self._seen: list[list[float]] = []  # one row per task

    def update(self, counts: Tensor, novel: Sequence[str] | None = None) -> None:
        """Take one whole task; see ``Metric.update``."""
        row = torch.full((1 + len(self.base) + len(self.novel),), math.nan, dtype=torch.float64)
        row[self._places(counts, novel)] = task_iou(counts.cpu())
        self._seen.append(row.tolist())

    def state(self) -> list[Any]:
        """One row per task."""
        return [[None if math.isnan(value) else value for value in row] for row in self._seen]

    def restore(self, state: list[Any]) -> None:
        """See ``Metric.restore``."""
        self._seen = [[math.nan if value is None else float(value) for value in row] for row in state]

    def _task_values(self) -> list[list[float]]:
        return self._seen

    def _values(self) -> list[float]:
        columns = zip(*self._seen, strict=True) if self._seen else [()] * (1 + len(self.base) + len(self.novel))
        return [_exact_mean(_known(column)) for column in columns]


class Accumulated(Metric):
    """Intersection over union of all images of all tasks together."""

    def __init__(self, base: Sequence[str], novel: Sequence[str]) -> None:
        super().__init__(base, novel)
        self._seen: list[Tensor] = []  # counts of every task, (classes, 3)

    def update(self, counts: Tensor, novel: Sequence[str] | None = None) -> None:
        """Take one whole task; see ``Metric.update``."""
        own = torch.zeros(1 + len(self.base) + len(self.novel), 3, dtype=torch.int64)
        own[self._places(counts, novel)] = counts.sum(dim=0).cpu()
        self._seen.append(own)

    def state(self) -> list[Any]:
        """Counts of every class in every task."""
        return [counts.tolist() for counts in self._seen]

    def restore(self, state: list[Any]) -> None:
        """See ``Metric.restore``."""
        classes = 1 + len(self.base) + len(self.novel)
        self._seen = [torch.tensor(counts, dtype=torch.int64).view(classes, 3) for counts in state]

    def _task_values(self) -> list[list[float]]:
        if not self._seen:
            return []
        counts = torch.stack(self._seen).double()  # (tasks, classes, 3)
        whole = accumulated_iou(counts.sum(dim=0))
        intersection, predicted, true = counts.unbind(dim=-1)
        union = predicted + true - intersection
        moved = (intersection - whole * union) * len(counts) / union.sum(dim=0)
        return (whole + moved).tolist()

    def _values(self) -> list[float]:
        classes = 1 + len(self.base) + len(self.novel)
        counts = torch.stack(self._seen).sum(dim=0) if self._seen else torch.zeros(classes, 3, dtype=torch.int64)
        return accumulated_iou(counts).tolist()


METRICS: dict[str, type[Metric]] = {"per-image": PerImage, "accumulated": Accumulated}


def _known(values: Iterable[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def _exact_mean(values: list[float]) -> float:
    """Exactly rounded sum over the number: the same in any order of the tasks."""
    return math.fsum(values) / len(values) if values else math.nan
