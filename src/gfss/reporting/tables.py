"""Records as tables: CSV row by row, or grouped with averages over seeds and folds and the paper's figures."""

from __future__ import annotations

import csv
import io
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gfss.data.episodes import shots_in_words
from gfss.evaluation.record_groups import differences, split_settings
from gfss.evaluation.records import MetricName, Record
from gfss.evaluation.summary import Figures, average, spread, summarise
from gfss.reporting.paper import CALIBRATOR, comparable_figure

SHOWN = ("base", "novel", "miou", "mean", "harmonic")
COLUMNS = (
    *("data", "fold", "shots", "encoder", "method", "protocol", "metric", "tasks", "seeds"),
    *(*SHOWN, "background", "settings"),
)
HEADER = ("encoder", "method", "fold", "tasks", "seeds", "base", "novel", "mIoU", "mean", "H")
NOTHING = "-"


class Table(NamedTuple):
    """A table of words, ready for any format."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]


class Group(NamedTuple):
    """What runs have in common that differ in fold and seed. Sorted in this order."""

    data: str
    shots: int
    protocol: str
    metric: str
    encoder: str
    method: str
    recipe: str
    tasks: int


Runs = dict[int | str, dict[str, Figures]]  # fold -> seeds -> figures


def csv_table(records: Sequence[Record], with_background: bool = False) -> str:
    """One row per record and metric, under the names in ``COLUMNS``; settings are those that tell records apart."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    variants = _variants(_group(records, with_background))
    for record in records:
        for metric in record.figures:
            figures = _figures(record, metric, with_background)
            kind = (record.data, record.fold, record.shots, record.encoder, record.method, record.protocol)
            size = (_metric_name(metric, with_background), record.tasks, record.seed)
            numbers = (getattr(figures, name) for name in (*SHOWN, "background"))
            words = ("" if number is None else f"{number:.4f}" for number in numbers)
            writer.writerow([*kind, *size, *words, variants[_group_of(record, metric)]])
    return text.getvalue()


def grouped_tables(records: Sequence[Record], with_background: bool = False) -> list[Table]:
    """One table per data set, number of shots, protocol and metric, all named in its title.

    Every fold is a row: mean ± sample standard deviation over seeds. Where a method has several folds a row with
    their average follows; its H is that of the averaged base and novel figures. The paper's figures stand in a
    row of their own below, where it has comparable ones.
    """
    groups = _group(records, with_background)
    variants = _variants(groups)
    tables: dict[str, Table] = {}
    for group in sorted(groups):
        metric = _metric_name(group.metric, with_background)
        title = f"{group.data}, {shots_in_words(group.shots)}, {group.protocol} protocol, {metric} IoU in percent"
        table = tables.setdefault(title, Table(title, HEADER, []))
        table.rows.extend(_rows(group, variants[group], groups[group], with_background))
    return list(tables.values())


def _figures(record: Record, metric: MetricName, with_background: bool) -> Figures:
    figures = record.figures[metric]
    if not with_background:
        return figures
    base = {name: figures.classes[name] for name in record.base_classes}
    novel = {name: figures.classes[name] for name in record.novel_classes}
    return summarise(base, novel, figures.background, with_background=True)


def _metric_name(metric: str, with_background: bool) -> str:
    return f"{metric} (background in base)" if with_background else metric


def _group(records: Sequence[Record], with_background: bool) -> dict[Group, Runs]:
    groups: dict[Group, Runs] = defaultdict(lambda: defaultdict(dict))
    for record in records:
        _, seeds = split_settings(record)
        for metric in record.figures:
            groups[_group_of(record, metric)][record.fold][seeds] = _figures(record, metric, with_background)
    return groups


def _group_of(record: Record, metric: MetricName) -> Group:
    settings, _ = split_settings(record)
    evaluation = (record.data, record.shots, record.protocol, metric)
    return Group(*evaluation, record.encoder, record.method, settings, record.tasks)


def _variants(groups: Iterable[Group]) -> dict[Group, str]:
    """For every group the settings of its recipe in which runs of the same method differ, as words."""
    families: dict[tuple[object, ...], list[Group]] = defaultdict(list)
    for group in groups:
        families[group.data, group.shots, group.encoder, group.method].append(group)
    words: dict[Group, str] = {}
    for family in families.values():
        words |= zip(family, differences([group.recipe for group in family]), strict=True)
    return words


def _rows(group: Group, variant: str, folds: Runs, with_background: bool) -> Iterable[tuple[str, ...]]:
    """The rows of one group: every fold, then their average, each followed by the paper's row."""
    method = f"{group.method} ({variant})" if variant else group.method

    def row(fold: str, seeds: int, mean: Figures, runs: Sequence[Figures]) -> tuple[str, ...]:
        spreads = spread(runs)
        numbers = (_number(getattr(mean, name), spreads[name]) for name in SHOWN)
        return (group.encoder, method, fold, str(group.tasks), str(seeds), *numbers)

    order = sorted(folds, key=str)
    for fold in order:
        runs = list(folds[fold].values())
        yield row(str(fold), len(runs), average(runs), runs)
        yield from _paper_row(group, fold, str(fold), with_background)
    if len(order) > 1:
        label = f"mean of {len(order)}"
        mean = average([average(list(folds[fold].values())) for fold in order], per_class=False)
        seeds = min(len(folds[fold]) for fold in order)
        # a spread over seeds needs the same seeds in every fold
        shared = [seed for seed in folds[order[0]] if all(seed in folds[fold] for fold in order)]
        runs = [average([folds[fold][seed] for fold in order], per_class=False) for seed in shared]
        yield row(label, seeds, mean, runs)
        if order == [0, 1, 2, 3]:
            yield from _paper_row(group, None, label, with_background)


def _paper_row(group: Group, fold: int | str | None, label: str, with_background: bool) -> Iterable[tuple[str, ...]]:
    """The paper's figures below ours, if it has comparable ones."""
    settings = json.loads(group.recipe)
    calibrator = settings.get("calibrator")
    method = calibrator if group.method == "pcn" and calibrator in CALIBRATOR else group.method
    found = comparable_figure(
        data=group.data,
        method=method,
        protocol=group.protocol,
        metric=group.metric,
        encoder=group.encoder,
        shots=group.shots,
        fold=fold,
        with_background=with_background,
        contiguous=settings.get("contiguous", False),
    )
    if found:
        figure, encoder = found
        numbers = (_number(getattr(figure, name, None)) for name in SHOWN)  # the paper prints no plain mean
        yield (encoder, f"{method}, paper", label, NOTHING, NOTHING, *numbers)


def _number(value: float | None, deviation: float | None = None) -> str:
    if value is None:
        return NOTHING
    return f"{value:.2f}" if deviation is None else f"{value:.2f} ± {deviation:.2f}"
