"""`gfss run`: every stage of a recipe that is not done yet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gfss.cli import options as o

if TYPE_CHECKING:
    from rich.table import Table

    from gfss.experiments.plan import Plan

app = typer.Typer()

MINUTE, HOUR, DAY = 60, 3600, 86400


@app.command("run")
def run(
    recipe: o.RecipeName,
    change: o.Changes = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan with estimated costs and stop.")] = False,
    report: Annotated[bool, typer.Option("--report", help="Write an HTML report of the records at the end.")] = False,
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of records.")] = Path("results"),
    root: o.Root = None,
    encoder_weights: o.Weights = None,
    runs: o.Runs = o.RUNS,
    device: o.Device = "cpu",
    threads: o.Threads = 0,
) -> None:
    """Run every stage of a recipe that is not done yet: base models, trained methods, evaluations.

    What is done is seen from the files: a trained part by its checkpoint, an
    evaluation by its record. The same command after an interruption continues
    where it stopped. Estimates of the plan are rough: minutes or days.
    """
    from gfss.common.devices import find_device
    from gfss.common.progress import console
    from gfss.experiments.plan import Plan
    from gfss.experiments.recipe_files import find_recipe, read_recipe
    from gfss.experiments.requirements import missing
    from gfss.experiments.runner import run_plan

    o.use_threads(threads)
    chosen = read_recipe(find_recipe(recipe), change or [])
    plan = Plan(chosen, runs, out, root, encoder_weights, find_device(device))
    if dry_run:
        from rich.console import Console

        Console(width=None).print(plan_table(plan))
        if sentence := missing(chosen.data, chosen.encoder, root, encoder_weights):
            typer.echo(f"not ready to run: {sentence}")
        return
    done = run_plan(plan, lambda words: console.print(words, highlight=False, markup=False))
    typer.echo(f"{done} step(s) done, records in {out}" if done else f"nothing left to do, records in {out}")
    if report:
        from gfss.reporting.report import write_report

        page = out / f"{Path(recipe).stem}.html"
        experiment = chosen.experiment(chosen.folds[0], runs, root, encoder_weights)
        write_report([out / experiment.folder.parent.name], page, experiment)
        typer.echo(f"report: {page}")


def plan_table(plan: Plan) -> Table:
    """The steps with state, time, memory and disk, and their sum."""
    import rich.box
    from rich.table import Table

    title = f"{plan.recipe.about or plan.recipe.data} (estimates for this machine's CPU)"
    table = Table(title=title, title_justify="left", box=rich.box.SIMPLE_HEAD, show_footer=True)
    todo = plan.todo
    footer = (
        f"{len(todo)} of {len(plan.steps)} steps left",
        "",
        duration(sum(step.cost.seconds for step in todo)),
        size(max((step.cost.memory for step in todo), default=0)),
        size(sum(step.cost.disk for step in todo)),
    )
    for name, total in zip(("step", "state", "time", "memory", "disk"), footer, strict=True):
        table.add_column(name, total, justify="left" if name in ("step", "state") else "right")
    for step in plan.steps:
        figures = (duration(step.cost.seconds), size(step.cost.memory), size(step.cost.disk))
        table.add_row(step.words, step.state, *(figures if step.state == "todo" else ("", "", "")))
    return table


def duration(seconds: float) -> str:
    """Seconds in a unit that fits.

    >>> duration(5400), duration(42), duration(300_000)
    ('1.5 h', '42 s', '3.5 d')
    """
    for unit, length in (("d", DAY), ("h", HOUR), ("min", MINUTE)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"


def size(gigabytes: float) -> str:
    """Gigabytes, or nothing where there are none.

    >>> size(3.14159), size(0)
    ('3.1 GB', '')
    """
    return f"{gigabytes:.1f} GB" if gigabytes >= 0.05 else ""
