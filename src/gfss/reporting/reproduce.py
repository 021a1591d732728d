"""The paper's tables made of our records, with the paper's numbers beside ours."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from gfss.data.episodes import shots_in_words
from gfss.evaluation.costs import TrainingCost, cost_words, read_costs
from gfss.evaluation.intervals import half_widths
from gfss.evaluation.metrics import Figures, average, spread
from gfss.evaluation.record_groups import by_base_models, by_settings, split_settings
from gfss.evaluation.records import MetricName, Record
from gfss.reporting.paper import PaperFigure, paper_figure
from gfss.reporting.paper_tables import COSTS, Row, Target, printed_name, target
from gfss.reporting.tables import NOTHING, Table, mark_fewer_tasks, number_words, with_remarks

NOT_RUN = "not run"
PAPERS_MACHINE = "RTX 2080 Ti"
INFERRED = "the paper's metric, as we infer it from its numbers"
SETTINGS_COMPARED = (
    ("training with base classes", "++++"),
    ("training with novel classes", "--+-"),
    ("sufficient samples per novel class", "--+-"),
    ("test on base classes", "+-++"),
    ("test on novel classes", "-+++"),
    ("using base classes during testing", "----"),
    ("using novel classes during testing", "-+-+"),
)


class Cell(NamedTuple):
    """Our figures of a method.

    Attributes:
        folds: fold -> seeds of tasks and training -> figures.
        tasks: how many they were measured on, in words.
        settings: how many settings of the method there are records of; one of them is shown.
        records: what the figures are of.
    """

    folds: dict[int | str, dict[str, Figures]]
    tasks: str
    settings: int
    records: list[Record]


def settings_table() -> Table:
    """Table 1 of the paper, which compares settings in words: nothing of it is measured."""
    title = (
        "table1: Settings: semantic segmentation (SS), few-shot (FSS), continual or incremental (CSS/ISS) and "
        "generalized few-shot semantic segmentation (GFSS)"
    )
    rows = [(question, *("yes" if sign == "+" else "no" for sign in signs)) for question, signs in SETTINGS_COMPARED]
    return Table(title, ("setting", "SS", "FSS", "CSS/ISS", "GFSS"), rows, "settings")


def make_tables(
    name: str,
    records: Sequence[Record],
    encoder: str,
    protocol: str = "paired",
    metric: MetricName = "per-image",
) -> list[Table]:
    """A table of the paper, one per number of shots and way to make base models, our figures above the paper's."""
    wanted = target(name)
    tables: list[Table] = []
    for shots in wanted.shots:
        kind = (wanted.data, encoder, protocol, shots)
        chosen = [r for r in records if (r.data, r.encoder, r.protocol, r.shots) == kind and metric in r.figures]
        chosen = [r for r in chosen if r.fold in wanted.folds and r.method in wanted.methods]
        for words, own in (by_base_models(chosen) or {"": chosen}).items():
            title = (
                f"{name}: {wanted.title} ({wanted.data}, {shots_in_words(shots)}, encoder {encoder}, "
                f"{f'{words}, ' if words else ''}{protocol} protocol, {metric} IoU in percent"
                f"{f'; per-image is {INFERRED}' if metric == 'per-image' else ''})"
            )
            contiguous = any(record.spec.get("contiguous") for record in own)  # other folds than the paper's
            rows: list[tuple[str, ...]] = []
            for row in wanted.rows:
                rows.append(_our_row(wanted, row, _cell([r for r in own if r.method == row.method], metric), metric))
                if not contiguous and (paper := _paper_row(wanted, row, encoder, shots, (protocol, metric))):
                    rows.append(paper)
            label = f"{name}-{encoder}-{shots}shot" + (f"-{len(tables)}" if words else "")
            tables.append(with_remarks(Table(title, _header(wanted), rows, label)))
    return tables


def cost_tables(records: Sequence[Record], results: Sequence[Path], encoder: str) -> list[Table]:
    """Table 9: hours and gigabytes of training, without the base model, and H; frozen and trained encoders apart.

    Every machine has its own columns, and the paper's is one of them: times of different machines cannot be compared.

    Args:
        results: folders with the records and the training costs beside them.
    """
    wanted = target(COSTS)
    chosen = [record for record in records if _is_of_costs(record, encoder) and record.method in wanted.methods]
    tables: list[Table] = []
    for words, own in (by_base_models(chosen) or {"": chosen}).items():
        costs = [cost for cost in find_costs(results, own) if cost.method in wanted.methods]
        machines = sorted({cost.cpu for cost in costs})
        title = (
            f"{COSTS}: {wanted.title} (pascal fold 0, 1 shot, encoder {encoder}, {f'{words}, ' if words else ''}paired "
            f"protocol, per-image IoU in percent, {INFERRED}; hours without the base model, gigabytes of the whole "
            f"process until then; the paper: ResNet-50, trained end to end, on one {PAPERS_MACHINE})"
        )
        columns = [
            f"{unit}, {machine}" for machine in (*machines, f"paper: {PAPERS_MACHINE}") for unit in ("hours", "GB")
        ]
        header = ("method", *columns, "H", "H, paper", "folds", "tasks", "seeds")
        rows = [_cost_row(row, own, costs, machines) for row in wanted.rows]
        tables.append(mark_fewer_tasks(Table(title, header, rows, f"{COSTS}-{encoder}")))
    return tables


def _cost_row(
    row: Row, records: Sequence[Record], costs: Sequence[TrainingCost], machines: Sequence[str]
) -> tuple[str, ...]:
    cell = _cell([record for record in records if record.method == row.method], "per-image")
    name, *_, harmonic, folds, tasks, seeds = _our_row(target(COSTS), row, cell, "per-image")
    ours: list[str] = []
    for machine in machines:
        cost = next((cost for cost in costs if (cost.method, cost.cpu) == (row.method, machine)), None)
        ours += cost_words(cost) if cost else (NOTHING, NOTHING)
    paper = paper_figure("cost", row.paper) or PaperFigure()
    printed = [number_words(value) for value in (paper.hours, paper.gigabytes)]
    if all(word == NOTHING for word in ours):
        ours = [NOT_RUN] * len(ours)
    return (name, *ours, *printed, harmonic, number_words(paper.harmonic), folds, tasks, seeds)


def find_costs(results: Iterable[Path], records: Iterable[Record]) -> list[TrainingCost]:
    """What the training of some records' methods cost, from the tables beside records."""
    used = {identity for record in records for identity in record.artifacts}
    tables = sorted({path for place in results for path in place.resolve().rglob("costs.csv")})
    return [cost for path in tables for cost in read_costs(path) if cost.artifact in used]


def encoders_of(records: Iterable[Record], data: str) -> list[str]:
    """Encoders that there are records of for a data set."""
    return sorted({record.encoder for record in records if record.data == data})


def missing_rows(tables: Iterable[Table]) -> list[str]:
    """Methods whose row has a cell that was not run."""
    names = (row[0].partition(" ")[0] for table in tables for row in table.rows if NOT_RUN in row)
    return list(dict.fromkeys(names))


def _is_of_costs(record: Record, encoder: str) -> bool:
    kind = (record.data, record.encoder, record.protocol, record.shots, record.fold)
    return kind == ("pascal", encoder, "paired", 1, 0) and "per-image" in record.figures


def _header(wanted: Target) -> tuple[str, ...]:
    folds = tuple(f"fold {fold} base / novel" for fold in wanted.folds) if len(wanted.folds) > 1 else ()
    return ("method", *folds, "base", "novel", "mIoU", "H", "folds", "tasks", "seeds")


def _cell(records: Sequence[Record], metric: MetricName) -> Cell | None:
    """The records of one method; where several settings ran, those with most folds, then most records, then tasks."""
    groups = list(by_settings(records).values())
    if not groups:
        return None
    best = max(groups, key=lambda group: (len({r.fold for r in group}), len(group), sum(r.tasks for r in group)))
    folds: dict[int | str, dict[str, Figures]] = defaultdict(dict)
    for record in best:
        _, seeds = split_settings(record)
        folds[record.fold][seeds] = record.figures[metric]
    tasks = [record.tasks for record in best]
    fewest, most = min(tasks), max(tasks)
    return Cell(dict(folds), f"{most:,}" if fewest == most else f"{fewest:,} to {most:,}", len(groups), best)


def _our_row(wanted: Target, row: Row, cell: Cell | None, metric: MetricName) -> tuple[str, ...]:
    several = len(wanted.folds) > 1
    found = {fold: list(cell.folds[fold].values()) for fold in wanted.folds if fold in cell.folds} if cell else {}
    singles: list[str] = []
    for fold in wanted.folds if several else ():
        mean = average(found[fold]) if fold in found else None
        singles.append(f"{number_words(mean.base)} / {number_words(mean.novel)}" if mean else NOT_RUN)
    name = f"{row.method} (1 of {cell.settings} settings)" if cell and cell.settings > 1 else row.method
    if cell is None or len(found) < len(wanted.folds):
        return (name, *singles, *[NOT_RUN] * 4, f"{len(found)} of {len(wanted.folds)}", NOTHING, NOTHING)
    mean = average([average(runs) for runs in found.values()], per_class=False)
    shared = set.intersection(*(set(cell.folds[fold]) for fold in found))
    runs = [average([cell.folds[f][seed] for f in found], per_class=False) for seed in sorted(shared)]
    spreads = spread(runs)
    widths = half_widths([record for record in cell.records if record.fold in found], metric)
    numbers = [
        number_words(getattr(mean, key), spreads[key], widths.get(key)) for key in ("base", "novel", "miou", "harmonic")
    ]
    return (name, *singles, *numbers, str(len(found)), cell.tasks, str(min(map(len, found.values()))))


def _paper_row(wanted: Target, row: Row, encoder: str, shots: int, shown: tuple[str, str]) -> tuple[str, ...] | None:
    """The paper's numbers; encoders that it does not use are set beside its ResNet-50.

    Args:
        shown: protocol and metric of the table; a row that was measured otherwise says so.
    """
    theirs = "resnet101" if "101" in encoder else "resnet50"
    if not row.paper:
        return None
    several = len(wanted.folds) > 1
    figure = paper_figure(wanted.source, row.paper, theirs, shots, None if several else wanted.folds[0])
    if figure is None:
        return None
    singles: list[str] = []
    for fold in wanted.folds if several else ():
        single = paper_figure(wanted.source, row.paper, theirs, shots, fold) or PaperFigure()
        singles.append(f"{number_words(single.base)} / {number_words(single.novel)}")
    numbers = (number_words(value) for value in (figure.base, figure.novel, figure.miou, figure.harmonic))
    # the paper quotes CAPL's own publication: joint protocol, accumulated IoU, background in base
    quoted = row.paper == "capl"
    measured = ("joint", "accumulated") if quoted else ("paired", "per-image")
    words = ([] if quoted else [theirs]) + ([] if measured == shown else [*measured])
    words += ["background in base"] if quoted else []
    name = f"{row.method}, paper ({', '.join(words)})"
    return (name, *singles, *numbers, NOTHING, "1,000" if row.paper != "capl" else NOTHING, NOTHING)


def without_gaps(table: Table) -> Table:
    """A table without rows that were not run, nor the paper's row below them; ready to be pasted."""
    gone = {row[0].partition(" ")[0] for row in table.rows if NOT_RUN in row}
    rows = [row for row in table.rows if re.split(r"[ ,]", row[0])[0] not in gone]
    return table._replace(rows=rows)


def with_printed_names(table: Table) -> Table:
    """A table whose methods are named as papers name them."""

    def name(words: str) -> str:
        method = re.split(r"[ ,]", words)[0]
        return printed_name(method) + words.removeprefix(method)

    return table._replace(rows=[(name(row[0]), *row[1:]) for row in table.rows])
