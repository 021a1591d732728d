"""The quick start: everything once, on the embedded scenes, in a few minutes on a laptop."""

from __future__ import annotations

from pathlib import Path

from gfss.common.progress import console
from gfss.data.episodes import shots_in_words, task
from gfss.evaluation.records import Record, read_record
from gfss.experiments.experiment import Experiment
from gfss.experiments.recipes import read_recipe
from gfss.experiments.runner import run_plan
from gfss.experiments.steps import Plan
from gfss.methods.pcn import NormalisedScoreFusion
from gfss.reporting.page import Page
from gfss.reporting.task_images import view_task

RECIPE = "quickstart"
EXAMPLES = 6


def quickstart(folder: Path, tasks: int | None = None) -> tuple[Path, list[Record]]:
    """Train on scenes, teach novel classes, compare the fusions and ``pcn-support``; what is there already is reused.

    Returns:
        The HTML report, and the records of all methods.
    """
    recipe = read_recipe(RECIPE)
    recipe = recipe.only(protocols={"paired": tasks}) if tasks else recipe
    plan = Plan(recipe, folder / "runs", folder / "records")
    run_plan(plan, lambda words: console.print(words, highlight=False, markup=False))
    evaluations = [one for one in plan.evaluations(recipe.folds[0]) if one.shots]
    records = [read_record(one.record_path(plan.out, name)) for one in evaluations for name in recipe.evaluated]
    path = folder / "report.html"
    _report(Experiment(recipe, recipe.folds[0], plan.runs), records).write(path)
    return path, records


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
        for shots in experiment.recipe.shots:
            rows = [
                [r.method, *(f"{value or 0:.1f}" for value in (f.base, f.novel, f.miou, f.harmonic))]
                for r in records
                if r.shots == shots and (f := r.figures[metric])
            ]
            page.text(f"{shots_in_words(shots)}, {metric} IoU")
            page.table(["method", "base", "novel", "mIoU", "H"], rows, best=(4,))
    by_name = {r.method: r.figures["accumulated"] for r in records if r.shots == experiment.recipe.shots[0]}
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
    heat = NormalisedScoreFusion(experiment.fitter)
    methods = [experiment.method(name, 1) for name in ("nsf", "pcn-support")]
    rows = []
    for i in range(EXAMPLES):
        drawn = task(source.dataset, source.fold, 0, i, 1)
        view = view_task(source, drawn, i % 2, methods, heat)
        rows.append([view.support, view.query, view.truth, view.base_heat, view.novel_heat, *view.predictions.values()])
    return ["support", "query", "truth", "base score", "novel score", "NSF", "PCN-support"], rows
