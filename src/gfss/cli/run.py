"""`gfss run`: every step of a recipe that is not done yet."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gfss.cli import options as o

if TYPE_CHECKING:
    from rich.table import Table

    from gfss.experiments.spec import Recipe
    from gfss.experiments.steps import Plan

app = typer.Typer()

MINUTE, HOUR, DAY = 60, 3600, 86400


class Only(StrEnum):
    """Where to stop."""

    BANK = "bank"
    BASE = "base"
    METHODS = "methods"


@app.command("run")
def run(
    recipe: o.RecipeName,
    change: o.Changes = None,
    only: Annotated[
        Only | None, typer.Option(help="Stop after the feature bank, the base models or the trained methods.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the steps with rough times and disk, and exit.")
    ] = False,
    report: Annotated[bool, typer.Option("--report", help="Write an HTML report of the records at the end.")] = False,
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of records.")] = Path("results"),
) -> None:
    """Run every step of a recipe that is not done yet: base models, methods, evaluations.

    The folder of a step carries a hash of everything it depends on; a step is
    done if its folder is complete, an evaluation if its record exists. After
    an interruption the same command continues.
    """
    from gfss.common.progress import console
    from gfss.experiments.recipes import missing
    from gfss.experiments.runner import build_banks, run_plan
    from gfss.experiments.steps import Plan

    chosen = o.open_recipe(recipe, change)
    if only is Only.BANK:
        for bank in build_banks(chosen, o.common.runs, o.common.place):
            typer.echo(f"{bank.count} images, {bank.map_size} x {bank.map_size} maps, complete, in {bank.folder}")
        return
    plan = Plan(chosen, o.common.runs, out, o.common.place, only.value if only else None)
    if dry_run:
        from rich.console import Console

        Console(width=None).print(plan_table(plan))
        typer.echo(disk_words(chosen))
        if sentence := missing(chosen):
            typer.echo(f"not ready to run: {sentence}")
        return
    steps = len(plan.todo)
    run_plan(plan, lambda words: console.print(words, highlight=False, markup=False))
    place = f"artefacts in {o.common.runs}" if only else f"records in {out}"
    typer.echo(f"{steps} step(s) done, {place}" if steps else f"nothing left to do, {place}")
    if report:
        from gfss.experiments.experiment import Experiment
        from gfss.reporting.report import write_report

        page = out / f"{Path(recipe).stem}.html"
        folders = {one.record_path(out, "nsf").parent for f in chosen.folds for one in plan.evaluations(f)}
        write_report(sorted(folders), page, Experiment(chosen, chosen.folds[0], o.common.runs, o.common.place))
        typer.echo(f"report: {page}")


def plan_table(plan: Plan) -> Table:
    """The steps with state and rough time, and what is left."""
    import rich.box
    from rich.table import Table

    title = f"{plan.recipe.about or plan.recipe.data} (times are rough, for two CPU cores)"
    table = Table(title=title, title_justify="left", box=rich.box.SIMPLE_HEAD, show_footer=True)
    todo = plan.todo
    table.add_column("step", f"{len(todo)} of {len(plan.steps)} steps left")
    table.add_column("state")
    table.add_column("time", duration(sum(step.seconds for step in todo)), justify="right")
    for step in plan.steps:
        table.add_row(step.words, step.state, duration(step.seconds) if step.state == "todo" else "")
    return table


def disk_words(recipe: Recipe) -> str:
    """What a run of a recipe writes, besides records."""
    from gfss.common.files import cache_folder
    from gfss.experiments.durations import Durations

    place = cache_folder("banks")
    need = Durations(recipe).bank_bytes()
    if need is None:
        return f"feature banks are written to {place}; how large they are is known once the encoder is read"
    each = ", and as much for every other fold, whose encoder is trained too" if recipe.base.train_encoder else ""
    return f"feature banks take {need / 1e9:.1f} GB in {place}{each}; those that are there already are used"


def duration(seconds: float) -> str:
    """Seconds in a unit that fits.

    >>> duration(5400), duration(42), duration(300_000)
    ('1.5 h', '42 s', '3.5 d')
    """
    for unit, length in (("d", DAY), ("h", HOUR), ("min", MINUTE)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"
