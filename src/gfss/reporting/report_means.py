"""The numbers of a report: means of every method over seeds and folds, of records that belong together."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from gfss.data.episodes import shots_in_words
from gfss.evaluation.metrics import Figures, average
from gfss.evaluation.record_groups import by_base_models, by_settings, differences, settings_of
from gfss.evaluation.records import MetricName, Record


class Mean(NamedTuple):
    """Mean figures of a method with some settings.

    Attributes:
        records: what they are the mean of.
        settings: those in which it differs from others of its name, in words.
    """

    figures: Figures
    records: list[Record]
    settings: str


Means = dict[str, Mean]  # by the name of the method, with a number where there are several settings


class System(NamedTuple):
    """What the records of one section of the report have in common.

    Attributes:
        base: how base models were made, where there are several ways.
    """

    data: str
    encoder: str
    shots: int
    protocol: str
    base: str = ""

    @property
    def words(self) -> str:
        made = f" ({self.base})" if self.base else ""
        return f"{self.data}, {self.encoder}{made}, {shots_in_words(self.shots)}, {self.protocol} protocol"


def systems_of(records: Sequence[Record]) -> dict[System, list[Record]]:
    """Records by the section of the report that they belong to, in its order."""

    def key(record: Record) -> System:
        return System(record.data, record.encoder, record.shots, record.protocol)

    ordered = sorted(records, key=lambda r: (r.data, r.encoder, r.protocol != "paired", r.shots))
    return {
        system._replace(base=words): family
        for system, own in groupby(ordered, key=key)
        for words, family in by_base_models(list(own)).items()
    }


def means_of(records: Sequence[Record], metric: MetricName) -> Means:
    """Mean figures of every method over seeds, then folds, best harmonic mean first; each of its settings by itself."""
    by_method: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        if metric in record.figures:
            by_method[record.method].append(record)
    means: Means = {}
    for method, mine in by_method.items():
        groups = by_settings(mine)
        for number, (own, words) in enumerate(zip(groups.values(), differences(list(groups)), strict=True)):
            folds: dict[int | str, list[Figures]] = defaultdict(list)
            for record in own:
                folds[record.fold].append(record.figures[metric])
            mean = average([average(runs, per_class=False) for runs in folds.values()], per_class=False)
            means[f"{method} {number + 1}" if number else method] = Mean(mean, own, words)
    return dict(sorted(means.items(), key=lambda item: -(item[1].figures.harmonic or 0)))


def by_folds(means: Means) -> tuple[Means, Means]:
    """Systems that were evaluated on all folds that any was, and the others."""
    folds = {name: {record.fold for record in mean.records} for name, mean in means.items()}
    every = set[int | str]().union(*folds.values())
    complete = {name for name, own in folds.items() if own == every}
    if not complete:
        return means, {}
    return (
        {name: mean for name, mean in means.items() if name in complete},
        {name: mean for name, mean in means.items() if name not in complete},
    )


def class_means(
    records: Sequence[Record], metric: MetricName, novel: bool, before: str, after: str
) -> dict[str, tuple[float, float]]:
    """Mean IoU of every class under two methods, over the folds and seeds that both were evaluated on.

    Args:
        novel: of classes as new ones; otherwise as known ones.
        before: name of the first method.
        after: name of the second.
    """
    known: tuple[dict[str, Record], dict[str, Record]] = ({}, {})
    for record in sorted(records, key=lambda record: record.tasks):  # of several the one with most tasks stays
        if record.method in (before, after) and metric in record.figures:
            made = {key: value for key, value in settings_of(record).items() if key.startswith("base.")}
            run = json.dumps([record.fold, record.seed, made], sort_keys=True)
            known[record.method == after][run] = record
    values: dict[str, tuple[list[float], list[float]]] = {}
    for run, first in known[0].items():
        second = known[1].get(run)
        if second is None:
            continue
        for name in first.novel_classes if novel else first.base_classes:
            pair = first.figures[metric].classes[name], second.figures[metric].classes[name]
            if pair[0] is not None and pair[1] is not None:
                both = values.setdefault(name, ([], []))
                both[0].append(pair[0])
                both[1].append(pair[1])
    return {name: (sum(a) / len(a), sum(b) / len(b)) for name, (a, b) in values.items()}
