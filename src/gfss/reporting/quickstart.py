"""The quick start: everything once, on the embedded scenes, in a few minutes on a laptop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gfss.common.progress import console
from gfss.data.episodes import shots_in_words, task
from gfss.evaluation.records import Record, read_records, write_records
from gfss.experiments.evaluator import evaluate_stage, record_path
from gfss.experiments.experiment import Experiment
from gfss.experiments.stages import train_base_stage, train_method_stage
from gfss.methods.score_fusion import NormalisedScoreFusion
from gfss.models.calibrators.options import PRESETS
from gfss.reporting.page import Page
from gfss.reporting.task_images import view_task
from gfss.training.checkpoints import has_checkpoint
from gfss.training.episodic_options import EpisodicOptions

# less than the usual training, on the paper's episodes (no held-out base models), and one calibrator for both shots
QUICK = EpisodicOptions(iterations=800, episodes=400, several=0, held_out=0)
METHODS = ("score", "npf", "nsf", "pcn-support")
SHOTS = (1, 5)
TASKS = 20
EXAMPLES = 6


def quickstart(folder: Path, fold: int = 0, tasks: int = TASKS) -> Path:
    """Train on scenes, teach novel classes, compare the fusions and ``pcn-support``; what is there already is reused.

    Returns:
        The HTML report.
    """
    calibrators = {"pcn-support": PRESETS["pcn-support-same-model"]}
    experiment = Experiment(data="scenes", fold=fold, trained_shots=1, calibrators=calibrators, runs=folder)
    if not has_checkpoint(experiment.base_folder, "base"):
        console.print("stage 1: base model on the base classes", highlight=False)
        train_base_stage(experiment, resume=True)
    if not has_checkpoint(experiment.method_folder("pcn-support", 1), "method"):
        console.print("stage 2: calibrator on fake novel classes, taught from one image each", highlight=False)
        train_method_stage(experiment, "pcn-support", 1, options=QUICK, resume=True)
    records: list[Record] = []
    for shots in SHOTS:
        records += _evaluated(experiment, folder / "records", shots, tasks)
    path = folder / "report.html"
    _report(experiment, records).write(path)
    return path


def _evaluated(experiment: Experiment, folder: Path, shots: int, tasks: int) -> list[Record]:
    """Records of all methods for a number of shots, from disk where they are complete."""
    done = read_records([folder]) if any(folder.rglob("*.json")) else []
    done = [r for r in done if r.shots == shots and r.tasks == tasks and r.fold == experiment.fold]
    if {r.method for r in done} >= set(METHODS):
        return [next(r for r in done if r.method == name) for name in METHODS]
    console.print(f"evaluation: {tasks} tasks at {shots_in_words(shots)}", highlight=False)

    def write(made: Sequence[Record]) -> None:
        write_records({record_path(folder, experiment, r.method, shots, "paired", r.seed): r for r in made})

    return evaluate_stage(experiment, METHODS, shots, "paired", tasks, write=write)


def _report(experiment: Experiment, records: list[Record]) -> Page:
    names = experiment.val_set.classes
    novel = [names[c - 1] for c in experiment.classes.novel]
    page = Page(
        "Teaching a class from one image",
        f"Embedded scenes, fold {experiment.fold}: {len(experiment.classes.base)} base classes, novel: "
        f"{', '.join(novel)}. {records[0].tasks} tasks per row, protocol paired.",
    )
    page.section(
        "Methods side by side",
        "Base and novel are mean IoU over the base and the novel classes, H is their harmonic mean: only a method "
        "that is good at both gets a high H. The best H of each table is bold.",
    )
    for metric in ("per-image", "accumulated"):
        for shots in SHOTS:
            rows = [
                [r.method, *(f"{value or 0:.1f}" for value in (f.base, f.novel, f.miou, f.harmonic))]
                for r in records
                if r.shots == shots and (f := r.figures[metric])
            ]
            page.text(f"{shots_in_words(shots)}, {metric} IoU")
            page.table(["method", "base", "novel", "mIoU", "H"], rows, best=(4,))
    by_name = {r.method: r.figures["accumulated"] for r in records if r.shots == SHOTS[0]}
    before, after = by_name["nsf"].classes, by_name["pcn-support"].classes
    page.section(
        "Class by class, 1 shot",
        "Accumulated IoU, thin bar: NSF, thick bar: PCN-support. Orange: novel classes.",
    )
    page.bars({name: (before[name] or 0, after[name] or 0) for name in after if name in names}, new=novel)
    page.section("Examples", "Orange is the new class. Score maps go from blue (0) to red (1).")
    header, rows = _examples(experiment)
    page.images(header, rows)
    return page


def _examples(experiment: Experiment) -> tuple[list[str], list[list]]:
    source = experiment.val_source
    heat = NormalisedScoreFusion(experiment.context.fitter)
    methods = [experiment.method(name, 1) for name in ("nsf", "pcn-support")]
    rows = []
    for i in range(EXAMPLES):
        drawn = task(source.dataset, source.fold, 0, i, 1)
        view = view_task(source, drawn, i % 2, methods, heat)
        rows.append([view.support, view.query, view.truth, view.base_heat, view.novel_heat, *view.predictions.values()])
    return ["support", "query", "truth", "base score", "novel score", "NSF", "PCN-support"], rows
