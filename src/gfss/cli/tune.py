"""`gfss tune`: settings compared on held-out base classes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gfss.cli import options as o

app = typer.Typer()


@app.command("tune")
def tune(
    recipe: o.RecipeName,
    change: o.Changes = None,
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of records.")] = Path("tuning"),
) -> None:
    """Compare the methods of a recipe on held-out base classes, never on novel ones.

    Calibrators are trained on episodes of all parts of the base classes but
    one and evaluated on the part left out, with a base model that has seen
    neither its classes nor its images. So settings can be chosen without a
    look at what they will be tested on. Give every setting its own name
    under `methods`; `protocols.paired` is the number of tasks.
    """
    from gfss.cli.tables import print_tables
    from gfss.common.progress import console
    from gfss.evaluation.records import read_record
    from gfss.experiments.runner import run_plan
    from gfss.experiments.steps import Plan
    from gfss.reporting.tables import grouped_tables

    chosen = o.open_recipe(recipe, change)
    plan = Plan(chosen, o.common.runs, out, o.common.place, tuning=True)
    run_plan(plan, lambda words: console.print(words, highlight=False, markup=False))
    evaluations = [one for fold in chosen.folds for one in plan.evaluations(fold)]
    paths = [one.record_path(out, name) for one in evaluations for name in chosen.evaluated]
    print_tables(grouped_tables([read_record(path) for path in paths]))
    typer.echo(f"records in {out}")
