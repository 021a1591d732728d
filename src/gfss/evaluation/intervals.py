"""How sure a figure is: confidence intervals over tasks, and paired differences of two methods on the same tasks.

Every figure is a smooth function of means over tasks, so a task moves it by a known amount, its influence. In the
paired protocol novel classes take turns, which is no matter of chance: novel figures vary only inside a class.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from gfss.evaluation.metrics import average, harmonic_mean
from gfss.evaluation.records import MetricName, Record

FIGURES = ("base", "novel", "miou", "mean", "harmonic")
CONFIDENCE = 0.95
RESAMPLES = 5000


@dataclass(frozen=True)
class Difference:
    """A figure of one method minus that of another, on the same tasks.

    Attributes:
        figure: one of :data:`FIGURES`.
        first: figure of the first method, in percent.
        second: of the second.
        low: lower end of the 95 % bootstrap interval of the difference.
        high: upper end.
        p_value: of the paired randomisation test, two-sided: how often a difference at least as large comes up when the
            two methods change places in every task at random.
    """

    figure: str
    first: float
    second: float
    low: float
    high: float
    p_value: float

    @property
    def difference(self) -> float:
        return self.first - self.second


def strata(record: Record) -> np.ndarray:
    """For every task a number of its group: its novel class in the paired protocol, where they take turns."""
    numbers = np.arange(record.tasks)
    return numbers % len(record.novel_classes) if record.protocol == "paired" else np.zeros_like(numbers)


def influences(record: Record, metric: MetricName) -> np.ndarray | None:
    """By how much every task moves base and novel away from their means, times the number of tasks, (tasks, 2).

    None for records without figures of single tasks.
    """
    if record.per_task is None or metric not in record.per_task:
        return None
    values = _values(record, metric)
    weights = _weights(record, metric)
    means = _means(values, weights, strata(record), metric)
    return (values - means) * weights * record.tasks


def half_widths(records: Sequence[Record], metric: MetricName) -> dict[str, float]:
    """Half the width of the 95 % confidence interval of every figure of a mean over folds and seeds, over tasks.

    Folds have the same weight, and so have the seeds of a fold. Nothing is said if a record has no figures of single
    tasks, or fewer than two tasks in a group.
    """
    shares = {fold: 1 / count for fold, count in Counter(record.fold for record in records).items()}
    folds = len(shares)
    parts: list[tuple[float, np.ndarray, int]] = []
    for record in records:
        moved = influences(record, metric)
        free = record.tasks - len(set(strata(record).tolist()))
        if moved is None or free < 1:
            return {}
        parts.append((shares[record.fold] / folds, moved, free))
    mean = average([record.figures[metric] for record in records], per_class=False)
    first = records[0]
    slopes = _slopes(mean.base, mean.novel, len(first.base_classes), len(first.novel_classes))
    widths: dict[str, float] = {}
    for name, slope in slopes.items():
        variance = sum(
            share**2 * float((moved @ slope) @ (moved @ slope)) / (len(moved) * free) for share, moved, free in parts
        )
        widths[name] = student_quantile(0.5 + CONFIDENCE / 2, min(free for *_, free in parts)) * math.sqrt(variance)
    return widths


def compare(
    pairs: Sequence[tuple[Record, Record]], metric: MetricName, resamples: int = RESAMPLES, seed: int = 0
) -> list[Difference]:
    """Differences of two methods over folds (or seeds), each pair of records on the same tasks.

    Args:
        pairs: of records with figures of single tasks.
        resamples: draws of the bootstrap and of the randomisation test.
        seed: of these draws.
    """
    rng = np.random.default_rng(seed)
    drawn = np.zeros((resamples, 4))  # base and novel of the first, of the second
    swapped = np.zeros((resamples, 4))
    for one, two in pairs:
        groups = strata(one)
        values = np.concatenate([_values(one, metric), _values(two, metric)], axis=1)
        weights = np.tile(_weights(one, metric), 2)
        drawn += _bootstrap(groups, values * weights, resamples, rng) / len(pairs)
        swapped += _swaps(values * weights, resamples, rng) / len(pairs)
    sides = [average([pair[side].figures[metric] for pair in pairs], per_class=False) for side in (0, 1)]
    counts = len(pairs[0][0].base_classes), len(pairs[0][0].novel_classes)
    boot, chance = (
        [_figures(table[:, 2 * side : 2 * side + 2], counts) for side in (0, 1)] for table in (drawn, swapped)
    )
    found: list[Difference] = []
    for name in FIGURES:
        first, second = getattr(sides[0], name), getattr(sides[1], name)
        low, high = np.quantile(boot[0][name] - boot[1][name], [0.5 - CONFIDENCE / 2, 0.5 + CONFIDENCE / 2])
        far = np.abs(chance[0][name] - chance[1][name]) >= abs(first - second) - 0.005  # stored to two digits
        found.append(Difference(name, first, second, float(low), float(high), float(1 + far.sum()) / (1 + resamples)))
    return found


def student_quantile(probability: float, free: int) -> float:
    """Quantile of Student's t, by the expansion in 1 / degrees of freedom; within 1 % from 3 degrees on.

    >>> round(student_quantile(0.975, 10), 3), round(student_quantile(0.975, 999), 3)
    (2.228, 1.962)
    """
    z = NormalDist().inv_cdf(probability)
    if free == 1:
        return math.tan(math.pi * (probability - 0.5))
    if free == 2:
        return (2 * probability - 1) * math.sqrt(2 / (4 * probability * (1 - probability)))
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / free ** (power + 1) for power, term in enumerate(terms))


def _values(record: Record, metric: MetricName) -> np.ndarray:
    """Base and novel of every task, (tasks, 2)."""
    assert record.per_task is not None
    own = record.per_task[metric]
    return np.column_stack([own.base, own.novel])


def _weights(record: Record, metric: MetricName) -> np.ndarray:
    """Weights of the tasks in base and novel, (tasks, 2); their columns sum to one."""
    groups, tasks = strata(record), record.tasks
    even = np.full(tasks, 1 / tasks)
    if metric == "accumulated":
        return np.column_stack([even, even])
    sizes = np.bincount(groups)
    return np.column_stack([even, 1 / (np.count_nonzero(sizes) * sizes[groups])])


def _means(values: np.ndarray, weights: np.ndarray, groups: np.ndarray, metric: MetricName) -> np.ndarray:
    """What the values vary around: the mean of base, and of novel that of the task's own class."""
    base, novel = (values * weights).sum(axis=0)
    if metric == "accumulated":  # contributions of a class are around the figure already
        return np.array([[base, novel]])
    own = np.bincount(groups, values[:, 1]) / np.maximum(np.bincount(groups), 1)
    return np.column_stack([np.full(len(values), base), own[groups]])


def _slopes(base: float | None, novel: float | None, base_classes: int, novel_classes: int) -> dict[str, np.ndarray]:
    """Derivative of every figure by base and novel; H has one where both are above 0."""
    classes = base_classes + novel_classes
    slopes = {
        "base": np.array([1.0, 0.0]),
        "novel": np.array([0.0, 1.0]),
        "miou": np.array([base_classes / classes, novel_classes / classes]),
        "mean": np.array([0.5, 0.5]),
    }
    if base and novel:
        slopes["harmonic"] = 2 * np.array([novel**2, base**2]) / (base + novel) ** 2
    return slopes


def _bootstrap(groups: np.ndarray, weighted: np.ndarray, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """Sums over tasks that are drawn with replacement inside their group, (resamples, columns)."""
    total = np.zeros((resamples, weighted.shape[1]))
    for group in np.unique(groups):
        own = weighted[groups == group]
        total += rng.multinomial(len(own), np.full(len(own), 1 / len(own)), size=resamples) @ own
    return total


def _swaps(weighted: np.ndarray, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """Sums over tasks in which the two methods change places at random, (resamples, columns)."""
    half = weighted.shape[1] // 2
    moved = (rng.random((resamples, len(weighted))) < 0.5) @ (weighted[:, half:] - weighted[:, :half])
    total = weighted.sum(axis=0)
    return np.concatenate([total[:half] + moved, total[half:] - moved], axis=1)


def _figures(table: np.ndarray, counts: tuple[int, int]) -> dict[str, np.ndarray]:
    """All figures of rows (base, novel)."""
    base, novel = table.T
    harmonic = [harmonic_mean(max(b, 0.0), max(n, 0.0)) or 0.0 for b, n in zip(base, novel, strict=True)]
    miou = (counts[0] * base + counts[1] * novel) / sum(counts)
    return {"base": base, "novel": novel, "miou": miou, "mean": (base + novel) / 2, "harmonic": np.array(harmonic)}
