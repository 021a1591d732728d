"""The paper's tables made of our records, with the paper's numbers beside ours."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from gfss.data.episodes import shots_in_words
from gfss.evaluation.costs import TrainingCost, cost_words, read_costs
from gfss.evaluation.record_groups import by_base_models, by_settings, split_settings
from gfss.evaluation.records import MetricName, Record
from gfss.evaluation.summary import Figures, average, spread
from gfss.reporting.paper import PaperFigure, paper_figure
from gfss.reporting.paper_tables import Row, Target, target
from gfss.reporting.tables import NOTHING, Table

NOT_RUN = "not run"


class Cell(NamedTuple):
    """Our figures of a method.

    Attributes:
        folds: fold -> seeds of tasks and training -> figures.
        tasks: how many they were measured on, in words.
        settings: how many settings of the method there are records of; one of them is shown.
    """

    folds: dict[int | str, dict[str, Figures]]
    tasks: str
    settings: int


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
                f"{f'{words}, ' if words else ''}{protocol} protocol, {metric} IoU in percent)"
            )
            contiguous = any(record.spec.get("contiguous") for record in own)  # other folds than the paper's
            rows: list[tuple[str, ...]] = []
            for row in wanted.rows:
                rows.append(_our_row(wanted, row, _cell([r for r in own if r.method == row.method], metric)))
                if not contiguous and (paper := _paper_row(wanted, row, encoder, shots, (protocol, metric))):
                    rows.append(paper)
            tables.append(Table(title, _header(wanted), rows))
    return tables


def cost_tables(records: Sequence[Record], results: Sequence[Path], encoder: str) -> list[Table]:
    """Table 8: hours and gigabytes of training, without the base model, and H; frozen and trained encoders apart.

    Args:
        results: folders with the records and the training costs beside them.
    """
    wanted = target("table8")
    chosen = [record for record in records if _is_table8(record, encoder) and record.method in wanted.methods]
    tables: list[Table] = []
    for words, own in (by_base_models(chosen) or {"": chosen}).items():
        costs = find_costs(results, own)
        rows = [line for row in wanted.rows for line in _cost_rows(row, own, costs)]
        title = (
            f"table8: {wanted.title} (pascal fold 0, 1 shot, encoder {encoder}, {f'{words}, ' if words else ''}paired "
            "protocol, per-image IoU in percent; hours without the base model, gigabytes of the whole process until "
            "then)"
        )
        header = ("method", "machine", "hours", "gigabytes", "H", "folds", "tasks", "seeds")
        tables.append(Table(title, header, rows))
    return tables


def _cost_rows(row: Row, records: Sequence[Record], costs: Sequence[TrainingCost]) -> list[tuple[str, ...]]:
    cell = _cell([record for record in records if record.method == row.method], "per-image")
    name, *_, harmonic, folds, tasks, seeds = _our_row(target("table8"), row, cell)
    cost = next((cost for cost in costs if cost.method == row.method), None)
    ours = (cost.cpu, *cost_words(cost)) if cost else (NOTHING, NOT_RUN, NOT_RUN)
    paper = paper_figure("cost", row.paper) or PaperFigure()
    printed = tuple(_number(value) for value in (paper.hours, paper.gigabytes, paper.harmonic))
    return [
        (name, *ours, harmonic, folds, tasks, seeds),
        (f"{row.method}, paper (resnet50)", "RTX 2080 Ti", *printed, NOTHING, "1,000", NOTHING),
    ]


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


def _is_table8(record: Record, encoder: str) -> bool:
    kind = (record.data, record.encoder, record.protocol, record.shots, record.fold)
    return kind == ("pascal", encoder, "paired", 1, 0) and "per-image" in record.figures


def _header(wanted: Target) -> tuple[str, ...]:
    folds = tuple(f"{f} {kind}" for f in wanted.folds for kind in ("base", "novel")) if len(wanted.folds) > 1 else ()
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
    return Cell(dict(folds), f"{most:,}" if fewest == most else f"{fewest:,} to {most:,}", len(groups))


def _our_row(wanted: Target, row: Row, cell: Cell | None) -> tuple[str, ...]:
    several = len(wanted.folds) > 1
    found = {fold: list(cell.folds[fold].values()) for fold in wanted.folds if fold in cell.folds} if cell else {}
    singles: list[str] = []
    for fold in wanted.folds if several else ():
        mean = average(found[fold]) if fold in found else None
        singles += [_number(mean.base), _number(mean.novel)] if mean else [NOT_RUN, NOT_RUN]
    name = f"{row.method} (1 of {cell.settings} settings)" if cell and cell.settings > 1 else row.method
    if cell is None or len(found) < len(wanted.folds):
        return (name, *singles, *[NOT_RUN] * 4, f"{len(found)} of {len(wanted.folds)}", NOTHING, NOTHING)
    mean = average([average(runs) for runs in found.values()], per_class=False)
    shared = set.intersection(*(set(cell.folds[fold]) for fold in found))
    runs = [average([cell.folds[f][seed] for f in found], per_class=False) for seed in sorted(shared)]
    spreads = spread(runs)
    numbers = [_number(getattr(mean, key), spreads[key]) for key in ("base", "novel", "miou", "harmonic")]
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
        singles += [_number(single.base), _number(single.novel)]
    numbers = (_number(value) for value in (figure.base, figure.novel, figure.miou, figure.harmonic))
    # the paper quotes CAPL's own publication: joint protocol, accumulated IoU, background in base
    quoted = row.paper == "capl"
    measured = ("joint", "accumulated") if quoted else ("paired", "per-image")
    words = ([] if quoted else [theirs]) + ([] if measured == shown else [*measured])
    words += ["background in base"] if quoted else []
    name = f"{row.method}, paper ({', '.join(words)})"
    return (name, *singles, *numbers, NOTHING, "1,000" if row.paper != "capl" else NOTHING, NOTHING)


def _number(value: float | None, deviation: float | None = None) -> str:
    if value is None:
        return NOTHING
    return f"{value:.2f}" if deviation is None else f"{value:.2f} ± {deviation:.2f}"
