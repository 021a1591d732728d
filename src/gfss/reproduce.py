"""The paper's tables and figures: which records and recipes each is made of, and the paper's numbers beside ours."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gfss.data.episodes import shots_in_words
from gfss.errors import unknown
from gfss.evaluation.costs import TrainingCost, read_costs
from gfss.evaluation.families import families
from gfss.evaluation.paper import PaperFigure, paper_figure
from gfss.evaluation.records import MetricName, Record
from gfss.evaluation.summary import Figures, average, spread
from gfss.evaluation.tables import NOTHING, Table

NOT_RUN = "not run"
FOLDS = (0, 1, 2, 3)


class Row(NamedTuple):
    """A row: our method, and the name of the paper's row (empty if it has none)."""

    method: str
    paper: str = ""


@dataclass(frozen=True)
class Target:
    """A table of the paper.

    Attributes:
        title: what it shows.
        source: name of the table in :mod:`gfss.evaluation.paper`.
        data: data set.
        rows: in the paper's order; methods that the paper does not have come last.
        recipes: that make it, the CPU-scale one first.
        folds: the paper's.
        shots: the paper's.
    """

    title: str
    source: str
    data: str
    rows: tuple[Row, ...]
    recipes: tuple[str, ...]
    folds: tuple[int, ...] = (0,)
    shots: tuple[int, ...] = (1,)


def _same(*names: str) -> tuple[Row, ...]:
    return tuple(Row(name, name) for name in names)


_PAPER_ROWS = _same("base", "denet", "pfenet", "acastle", "capl", "nsf", "pcn")
_OTHERS = ("pcn-printed", "score", "npf", "npf-fitted", "imprint", "imprint-centred", "bcm", "bcm-top3", "diam")
_MAIN = (*_PAPER_ROWS, *(Row(name) for name in _OTHERS))
_ABLATIONS = ("frozen/pascal-lite0-ablations", "paper/pascal-resnet50-ablations")
TABLES = {
    "table1": Target(
        "PASCAL-5^i, all methods", "pascal", "pascal", _MAIN,
        ("frozen/pascal-lite0", "frozen/pascal-resnet50", "paper/pascal-resnet50", "paper/pascal-resnet101"),
        FOLDS, (1, 5),
    ),
    "table2": Target(
        "COCO-20^i, all methods", "coco", "coco", _MAIN,
        ("frozen/coco-lite0", "paper/coco-resnet50", "paper/coco-resnet101"), FOLDS, (1, 5),
    ),
    "table3": Target("Fusions", "fusion", "pascal", _same("score", "npf", "nsf"), _ABLATIONS),
    "table4": Target(
        "Fusions with the calibrator T", "fusion+t", "pascal",
        (Row("score+T", "score+t"), Row("npf+T", "npf+t"), Row("pcn", "nsf+t"), Row("pcn-printed", "nsf+t")),
        _ABLATIONS,
    ),
    "table5": Target(
        "Earlier methods with the calibrator T", "previous+t", "pascal",
        tuple(row for n in ("denet", "pfenet", "acastle") for row in (Row(n, n), Row(f"{n}+T", f"{n}+t"))), _ABLATIONS,
    ),
    "table6": Target(
        "Kinds of calibrators", "calibrator", "pascal",
        (*_same("nsf", "linear-no-residual", "linear", "self-attention", "pcn"), Row("pcn-printed", "pcn"),
         Row("pixel")),
        _ABLATIONS,
    ),
    "table7": Target(
        "Feature levels of the cross-attention", "features", "pascal",
        (Row("pcn-layer2", "layer2"), Row("pcn-layer3", "layer3"), Row("pcn-layer4", "layer4"),
         Row("pcn-pooled", "high"), Row("pcn-layer4-pooled", "layer4+high"), Row("pcn", "layer4+high")), _ABLATIONS,
    ),
    "table8": Target(
        "Training time and memory", "cost", "pascal", _same("denet", "pfenet", "acastle", "pcn"), _ABLATIONS
    ),
}  # fmt: skip
FIGURES = ("fig1", "fig2", "fig3", "fig4", "fig5", "fig6")


def target(name: str) -> Target:
    """A table by its name."""
    if name not in TABLES:
        raise unknown("table or figure of the paper", name, (*TABLES, *FIGURES))
    return TABLES[name]


class Cell(NamedTuple):
    """Our figures of a method: fold -> seed -> figures, with the number of tasks they were measured on, in words."""

    folds: dict[int | str, dict[int, Figures]]
    tasks: str


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
        chosen = [r for r in chosen if r.fold in wanted.folds and r.method in {row.method for row in wanted.rows}]
        for words, own in (families(chosen) or {"": chosen}).items():
            title = (
                f"{name}: {wanted.title} ({wanted.data}, {shots_in_words(shots)}, encoder {encoder}, "
                f"{f'{words}, ' if words else ''}{protocol} protocol, {metric} IoU in percent)"
            )
            rows: list[tuple[str, ...]] = []
            for row in wanted.rows:
                rows.append(_our_row(wanted, row, _cell([r for r in own if r.method == row.method], metric)))
                if paper := _paper_row(wanted, row, encoder, shots, (protocol, metric)):
                    rows.append(paper)
            tables.append(Table(title, _header(wanted), rows))
    return tables


def cost_table(records: Sequence[Record], costs: Sequence[TrainingCost], encoder: str) -> Table:
    """Table 8: hours and gigabytes of training, without the base model, and H."""
    wanted, rows = target("table8"), []
    by_method = {cost.method: cost for cost in costs if cost.shots == 1}
    for row in wanted.rows:
        cell = _cell([r for r in records if _is_table8(r, encoder, row.method)], "per-image")
        _, *_, harmonic, folds, tasks, seeds = _our_row(wanted, row, cell)
        cost = by_method.get(row.method)
        hours, memory = _cost_words(cost)
        rows.append((row.method, cost.cpu if cost else NOTHING, hours, memory, harmonic, folds, tasks, seeds))
        paper = paper_figure("cost", row.paper) or PaperFigure()
        printed = tuple(_number(value) for value in (paper.hours, paper.gigabytes, paper.harmonic))
        rows.append((f"{row.method}, paper (resnet50)", "RTX 2080 Ti", *printed, NOTHING, "1,000", NOTHING))
    title = (
        f"table8: {wanted.title} (pascal fold 0, 1 shot, encoder {encoder}; hours without the base model, "
        "gigabytes of the whole process until then)"
    )
    return Table(title, ("method", "machine", "hours", "gigabytes", "H", "folds", "tasks", "seeds"), rows)


def find_costs(results: Iterable[Path], data: str, encoder: str, fold: int = 0) -> list[TrainingCost]:
    """Training costs beside the records of a data set and encoder; of folders with a tag where there is no other."""
    every = [path for place in results for path in sorted(place.resolve().rglob("costs.csv"))]
    there = [path for path in every if path.parent.name == f"fold{fold}"]
    plain = [path for path in there if path.parents[1].name == f"{data}-{encoder}"]
    tagged = [path for path in there if path.parents[1].name.startswith(f"{data}-{encoder}-")]
    return [cost for path in plain or tagged for cost in read_costs(path)]


def encoders_of(records: Iterable[Record], data: str) -> list[str]:
    """Encoders that there are records of for a data set."""
    return sorted({record.encoder for record in records if record.data == data})


def missing_rows(tables: Iterable[Table]) -> list[str]:
    """Methods whose row has a cell that was not run."""
    return list(dict.fromkeys(row[0] for table in tables for row in table.rows if NOT_RUN in row))


def _is_table8(record: Record, encoder: str, method: str) -> bool:
    kind = (record.data, record.encoder, record.protocol, record.shots, record.fold, record.method)
    return kind == ("pascal", encoder, "paired", 1, 0, method) and "per-image" in record.figures


def _cost_words(cost: TrainingCost | None) -> tuple[str, str]:
    if cost is None:
        return NOT_RUN, NOT_RUN
    hours = f"{'> ' if cost.resumed else ''}{cost.seconds / 3600:.2f}"
    return hours, NOTHING if cost.peak_memory_mb is None else f"{cost.peak_memory_mb / 1024:.1f}"


def _header(wanted: Target) -> tuple[str, ...]:
    folds = tuple(f"{f} {kind}" for f in wanted.folds for kind in ("base", "novel")) if len(wanted.folds) > 1 else ()
    return ("method", *folds, "base", "novel", "mIoU", "H", "folds", "tasks", "seeds")


def _cell(records: Sequence[Record], metric: MetricName) -> Cell | None:
    """The records of one method; where several recipes ran, the one with most records, then most tasks."""
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in sorted(records, key=lambda record: record.tasks):
        settings = {**record.recipe, "base": {**record.recipe.get("base", {}), "seed": None}}
        groups[json.dumps(settings, sort_keys=True)].append(record)
    if not groups:
        return None
    cells = [{(r.fold, r.seed): r for r in group} for group in groups.values()]  # of equal ones that with most tasks
    best = max(cells, key=lambda cell: (len(cell), sum(r.tasks for r in cell.values())))
    folds: dict[int | str, dict[int, Figures]] = defaultdict(dict)
    for (fold, seed), record in best.items():
        folds[fold][seed] = record.figures[metric]
    tasks = [record.tasks for record in best.values()]
    fewest, most = min(tasks), max(tasks)
    return Cell(dict(folds), f"{most:,}" if fewest == most else f"{fewest:,} to {most:,}")


def _our_row(wanted: Target, row: Row, cell: Cell | None) -> tuple[str, ...]:
    several = len(wanted.folds) > 1
    found = {fold: list(cell.folds[fold].values()) for fold in wanted.folds if fold in cell.folds} if cell else {}
    singles: list[str] = []
    for fold in wanted.folds if several else ():
        mean = average(found[fold]) if fold in found else None
        singles += [_number(mean.base), _number(mean.novel)] if mean else [NOT_RUN, NOT_RUN]
    complete = cell is not None and len(found) == len(wanted.folds)
    if not complete or cell is None:
        return (row.method, *singles, *[NOT_RUN] * 4, f"{len(found)} of {len(wanted.folds)}", NOTHING, NOTHING)
    mean = average([average(runs) for runs in found.values()], per_class=False)
    shared = set.intersection(*(set(cell.folds[fold]) for fold in found))
    runs = [average([cell.folds[f][seed] for f in found], per_class=False) for seed in sorted(shared)]
    spreads = spread(runs)
    numbers = [_number(getattr(mean, key), spreads[key]) for key in ("base", "novel", "miou", "harmonic")]
    return (row.method, *singles, *numbers, str(len(found)), cell.tasks, str(min(map(len, found.values()))))


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
