"""The figures of a run: averages over classes, seeds and folds. Plain numbers in percent; None = no figure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

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
