"""An HTML report of a folder of records, for people: comparison, class by class, confusion matrices, images, times."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from gfss.data.episodes import shots_in_words
from gfss.evaluation.confusion import GROUPS, group_confusion
from gfss.evaluation.costs import cost_words, read_costs
from gfss.evaluation.protocols import draw_tasks
from gfss.evaluation.record_groups import by_settings
from gfss.evaluation.records import MetricName, Record, is_record, read_records
from gfss.experiments.experiment import Experiment
from gfss.reporting.charts import balance_chart
from gfss.reporting.figures import Grid, make_figure
from gfss.reporting.page import Page
from gfss.reporting.paper import comparable_figure
from gfss.reporting.report_means import Mean, System, by_folds, class_means, means_of, systems_of
from gfss.reporting.tables import NOTHING, grouped_tables

METRICS: tuple[MetricName, ...] = ("per-image", "accumulated")
BEFORE, AFTER = "nsf", "pcn-support"
CONFUSION_TASKS = 10


def is_results(path: Path) -> bool:
    """Whether a path is a record or a folder of records, and not a model of the tool."""
    for file in sorted(path.rglob("*.json")) if path.is_dir() else [path]:
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if is_record(content):
            return True
    return False


def write_report(results: Sequence[Path], out: Path, experiment: Experiment | None = None) -> Path:
    """Write one self-contained page about all records below some places.

    Args:
        results: record files or folders.
        out: the HTML file.
        experiment: data and trained models, for confusion matrices and images, which are omitted without it.
    """
    records = read_records(results)
    files = [file for place in results if place.is_dir() for file in sorted(place.resolve().rglob("costs.csv"))]
    page = Page(_title(records), _lead(records))
    systems = systems_of(records)
    for system, own in systems.items():
        _comparison(page, system, own)
    for system, own in systems.items():
        _class_by_class(page, system, own)
    taught = [record for record in records if record.shots]  # a base model alone has none
    if experiment is not None and taught:
        _images(page, experiment, min(record.shots for record in taught), {record.method for record in taught})
    _times(page, records, files)
    _settings(page, records)
    page.write(out)
    return out


def _title(records: Sequence[Record]) -> str:
    data = ", ".join(sorted({record.data for record in records}))
    return f"Results on {data}"


def _lead(records: Sequence[Record]) -> str:
    methods, folds = {r.method for r in records}, {r.fold for r in records}
    return (
        f"{len(records)} records: {len(methods)} methods, {len(folds)} fold{'' if len(folds) == 1 else 's'}, "
        f"seeds {', '.join(map(str, sorted({r.seed for r in records})))}. All figures are IoU in percent."
    )


def _comparison(page: Page, system: System, records: Sequence[Record]) -> None:
    page.section(
        f"Comparison: {system.words}",
        "Base and novel are mean IoU over the known and the new classes; H is their harmonic mean: only a method that "
        "is good at both gets a high H. Up and to the right is better.",
    )
    for metric in METRICS:
        means = means_of(records, metric)
        if not means:
            continue
        whose = " (the paper's metric, as we infer it from its numbers)" if metric == "per-image" else ""
        page.text(f"{metric} IoU{whose}, mean over folds and seeds")
        everywhere, elsewhere = by_folds(means)
        points = {
            name: (figures.base, figures.novel)
            for name, (figures, *_) in everywhere.items()
            if figures.base is not None and figures.novel is not None
        }
        if points and (metric == METRICS[0] or METRICS[0] not in records[0].figures):
            page.chart(balance_chart(points, AFTER), "Methods by base and novel IoU, as in the table below")
        header = ["method", "base", "novel", "mIoU", "H", "H in the paper", "folds", "seeds", "tasks"]
        for part in (everywhere, elsewhere):
            if part is elsewhere and part:
                page.text("On fewer folds; comparable only with the same folds")
            rows = [_mean_row(system, metric, name, mean) for name, mean in part.items()]
            if rows:
                page.table(header, rows, best=(1, 2, 3, 4))
    for table in grouped_tables(records):
        page.details(f"Every fold: {table.title}", table.header, table.rows)


def _mean_row(system: System, metric: MetricName, name: str, mean: Mean) -> list[str]:
    figures, own, settings = mean
    folds = sorted({record.fold for record in own}, key=str)
    found = comparable_figure(
        data=system.data,
        method=own[0].method,
        protocol=system.protocol,
        metric=metric,
        encoder=system.encoder,
        shots=system.shots,
        fold=None if folds == [0, 1, 2, 3] else folds[0] if len(folds) == 1 else "several",
        contiguous=own[0].spec.get("contiguous", False),
    )
    paper = f"{found[0].harmonic:.1f}" if found and found[0].harmonic is not None else NOTHING
    numbers = (_number(value) for value in (figures.base, figures.novel, figures.miou, figures.harmonic))
    seeds, tasks = len({r.seed for r in own}), sorted({r.tasks for r in own})
    words = f"{name} ({settings})" if settings else name
    return [words, *numbers, paper, str(len(folds)), str(seeds), " / ".join(f"{t:,}" for t in tasks)]


def _class_by_class(page: Page, system: System, records: Sequence[Record]) -> None:
    """Bars before and after calibration, once as a known class and once as a new one."""
    if not {BEFORE, AFTER} <= {record.method for record in records}:
        return
    metric = METRICS[1] if all(METRICS[1] in record.figures for record in records) else METRICS[0]
    known, new = (class_means(records, metric, novel, BEFORE, AFTER) for novel in (False, True))
    if not known and not new:
        return
    page.section(
        f"Class by class: {system.words}",
        f"{metric} IoU. Thin bar: {BEFORE.upper()}, before calibration; thick bar: {AFTER.upper()}, after it.",
    )
    page.text("As new classes, learned from the few labelled images")
    page.bars(new, new=list(new))
    page.text("As known classes, while a new one was taught")
    page.bars(known)


def _images(page: Page, experiment: Experiment, shots: int, names: set[str]) -> None:
    """Confusion matrices and images, where the base model and the trained methods are available."""
    if not experiment.base_artifact().is_complete(experiment.runs):
        return
    usable = [n for n in (BEFORE, AFTER) if n in names and _ready(experiment, n, shots)]
    if not usable:
        return
    source = experiment.val_source
    tasks = draw_tasks(source, "paired", shots, CONFUSION_TASKS, 0)
    page.section(
        "Confusion matrix",
        f"Share of the pixels of each kind (rows) that is predicted as each kind (columns), {CONFUSION_TASKS} paired "
        f"tasks of fold {experiment.fold}, {shots_in_words(shots)}. Pixels of one known class predicted as another "
        "count as 'known'.",
    )
    for name, shares in group_confusion(source, [experiment.method(n, shots) for n in usable], tasks).items():
        page.text(name.upper())
        page.matrix(GROUPS, shares, corner="truth")
    page.section("Examples", "Orange is the new class. Score maps go from blue (0) to red (1).")
    _grid(page, make_figure("fig1", experiment, usable, shots))
    page.section("Failure cases", "The worst tasks, with the likely reason.")
    _grid(page, make_figure("fig6", experiment, usable, shots))


def _grid(page: Page, grid: Grid) -> None:
    page.images(grid.header, grid.rows, grid.notes)


def _ready(experiment: Experiment, name: str, shots: int) -> bool:
    return name == BEFORE or experiment.method_artifact(name, shots).is_complete(experiment.runs)


def _times(page: Page, records: Sequence[Record], files: Sequence[Path]) -> None:
    """What evaluation and training took.

    Args:
        files: tables of training costs.
    """
    rows: list[list[str]] = []
    for record in records:
        seconds = record.run.seconds
        if not seconds:
            continue
        parts = [f"{1000 * seconds.get(part, 0) / record.tasks:.1f}" for part in ("learn", "segment", "count")]
        memory = f"{record.run.peak_memory_mb / 1024:.1f}" if record.run.peak_memory_mb else NOTHING
        rows.append([record.method, str(record.fold), str(record.shots), record.protocol, *parts, memory])
    if rows:
        page.section("Times", "Milliseconds per task: learning the new class, segmenting all queries, counting pixels.")
        header = ["method", "fold", "shots", "protocol", "learn", "segment", "count", "peak memory, GB"]
        page.details(f"{len(rows)} runs", header, rows)
    trained = [
        [file.parents[1].name, file.parent.name, cost.method, str(cost.shots), *cost_words(cost, 60), cost.cpu]
        for file in files
        for cost in read_costs(file)
    ]
    if trained:
        page.text("Training of the methods, without the base model; memory is the peak of the process so far")
        page.table(["experiment", "fold", "method", "shots", "minutes", "GB", "machine"], trained)


def _settings(page: Page, records: Sequence[Record]) -> None:
    versions = sorted({json.dumps(r.run.versions, sort_keys=True) for r in records if r.run.versions})
    page.section("Versions and settings")
    for text in versions:
        page.text(", ".join(f"{name} {value}" for name, value in json.loads(text).items()))
    for method in sorted({record.method for record in records}):
        groups = by_settings(record for record in records if record.method == method)
        for settings, own in groups.items():
            words = ", ".join(sorted({f"{r.data} {r.encoder} {shots_in_words(r.shots)} {r.protocol}" for r in own}))
            rows = [[key, json.dumps(value)] for key, value in json.loads(settings).items()]
            if rows:
                page.details(f"Settings of {method}: {words}", ["setting", "value"], rows)


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1f}"
