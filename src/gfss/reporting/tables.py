"""Records as tables: CSV row by row, or grouped with averages over seeds and folds and the paper's figures."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast

from gfss.data.episodes import shots_in_words
from gfss.evaluation.intervals import half_widths
from gfss.evaluation.metrics import Figures, average, spread, summarise
from gfss.evaluation.record_groups import differences, split_settings
from gfss.evaluation.records import MetricName, Record
from gfss.reporting.paper import CALIBRATOR, comparable_figure

SHOWN = ("base", "novel", "miou", "mean", "harmonic")
COLUMNS = (
    *("data", "fold", "shots", "encoder", "method", "protocol", "metric", "tasks", "seeds"),
    *(*SHOWN, "background", *(f"{name}_ci95" for name in SHOWN), "fewer_tasks", "settings"),
)
HEADER = ("encoder", "method", "fold", "tasks", "seeds", "base", "novel", "mIoU", "mean", "H")
NOTHING = "-"
FEWER = "*"
ABOUT_FEWER = f"; {FEWER} fewer tasks than other rows"
INTERVAL = re.compile(r"\[-?[\d.]+, -?[\d.]+\]$")
ABOUT_INTERVALS = "; in brackets 95 % confidence intervals over tasks"


class Table(NamedTuple):
    """A table of words, ready for any format."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    label: str = ""  # what LaTeX refers to it by


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


class Run(NamedTuple):
    """A record and its figures as they are shown."""

    record: Record
    figures: Figures


Runs = dict[int | str, dict[str, Run]]  # fold -> seeds -> run


def csv_table(records: Sequence[Record], with_background: bool = False) -> str:
    """One row per record and metric, under the names in ``COLUMNS``; settings are those that tell records apart."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    variants = _variants(_group(records, with_background))
    most: dict[tuple[object, ...], int] = defaultdict(int)
    for record in records:
        most[_table_of(record)] = max(most[_table_of(record)], record.tasks)
    for record in records:
        for metric in record.figures:
            figures = _figures(record, metric, with_background)
            kind = (record.data, record.fold, record.shots, record.encoder, record.method, record.protocol)
            size = (_metric_name(metric, with_background), record.tasks, record.seed)
            numbers = (getattr(figures, name) for name in (*SHOWN, "background"))
            words = ("" if number is None else f"{number:.4f}" for number in numbers)
            widths = {} if with_background else half_widths([record], metric)
            sure = (f"{widths[name]:.4f}" if name in widths else "" for name in SHOWN)
            fewer = "yes" if record.tasks < most[_table_of(record)] else ""
            writer.writerow([*kind, *size, *words, *sure, fewer, variants[_group_of(record, metric)]])
    return text.getvalue()


def _table_of(record: Record) -> tuple[object, ...]:
    """What records have in common that stand in one table."""
    return record.data, record.shots, record.protocol


def mark_fewer_tasks(table: Table) -> Table:
    """A table with a mark at the number of tasks of rows that have fewer than others, and a word on it in the title."""
    place = table.header.index("tasks")
    counts = [[int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", row[place])] for row in table.rows]
    counts = [[] if any(is_papers(cell) for cell in row) else own for row, own in zip(table.rows, counts, strict=True)]
    most = max((number for row in counts for number in row), default=0)
    marked = [bool(row) and min(row) < most for row in counts]
    if not any(marked):
        return table
    rows = [
        (*row[:place], f"{row[place]} {FEWER}", *row[place + 1 :]) if fewer else row
        for row, fewer in zip(table.rows, marked, strict=True)
    ]
    return table._replace(title=table.title + ABOUT_FEWER, rows=rows)


def is_papers(name: str) -> bool:
    """Whether a name is that of a row of the paper's numbers."""
    return ", paper" in name


def grouped_tables(records: Sequence[Record], with_background: bool = False) -> list[Table]:
    """One table per data set, number of shots, protocol and metric, all named in its title.

    Every fold is a row: mean ± sample standard deviation over seeds, and in brackets the 95 % confidence interval over
    tasks where the records have figures of single tasks. Where a method has several folds a row with
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
    return [with_remarks(table) for table in tables.values()]


def with_remarks(table: Table) -> Table:
    """A table whose title says what brackets mean, if there are any, and which marks fewer tasks."""
    if any(INTERVAL.search(cell) for row in table.rows for cell in row[1:]):
        table = table._replace(title=table.title + ABOUT_INTERVALS)
    return mark_fewer_tasks(table)


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
            run = Run(record, _figures(record, metric, with_background))
            groups[_group_of(record, metric)][record.fold][seeds] = run
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

    def row(fold: str, seeds: int, mean: Figures, runs: Sequence[Figures], records: list[Record]) -> tuple[str, ...]:
        spreads = spread(runs)
        widths = {} if with_background else half_widths(records, cast(MetricName, group.metric))
        numbers = (number_words(getattr(mean, name), spreads[name], widths.get(name)) for name in SHOWN)
        return (group.encoder, method, fold, str(group.tasks), str(seeds), *numbers)

    order = sorted(folds, key=str)
    for fold in order:
        runs = [run.figures for run in folds[fold].values()]
        yield row(str(fold), len(runs), average(runs), runs, [run.record for run in folds[fold].values()])
        yield from _paper_row(group, fold, str(fold), with_background)
    if len(order) > 1:
        label = f"mean of {len(order)}"
        mean = average([average([run.figures for run in folds[fold].values()]) for fold in order], per_class=False)
        seeds = min(len(folds[fold]) for fold in order)
        # a spread over seeds needs the same seeds in every fold
        shared = [seed for seed in folds[order[0]] if all(seed in folds[fold] for fold in order)]
        runs = [average([folds[fold][seed].figures for fold in order], per_class=False) for seed in shared]
        yield row(label, seeds, mean, runs, [run.record for fold in order for run in folds[fold].values()])
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
        numbers = (number_words(getattr(figure, name, None)) for name in SHOWN)  # the paper prints no plain mean
        yield (encoder, f"{method}, paper", label, NOTHING, NOTHING, *numbers)


def number_words(value: float | None, deviation: float | None = None, width: float | None = None) -> str:
    """A figure, its deviation over seeds and its confidence interval over tasks, as far as they are known.

    >>> number_words(52.3, None, 0.5), number_words(52.3, 1.25), number_words(None)
    ('52.30 [51.80, 52.80]', '52.30 ± 1.25', '-')
    """
    if value is None:
        return NOTHING
    words = f"{value:.2f}" if deviation is None else f"{value:.2f} ± {deviation:.2f}"
    return words if width is None else f"{words} [{value - width:.2f}, {value + width:.2f}]"
