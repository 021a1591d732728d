"""`gfss evaluate`: evaluate trained methods and write records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gfss.cli import options as o

app = typer.Typer()
SHOWN = {"base": "base", "novel": "novel", "mIoU": "miou", "H": "harmonic"}


@app.command("evaluate")
def evaluate(
    recipe: o.RecipeName,
    change: o.Changes = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder for records (default: none are written).")
    ] = None,
) -> None:
    """Evaluate the trained methods of a recipe and print their figures.

    Nothing is trained; gfss run does that. With --out, one JSON record
    per method is written. Processes started together by torchrun share the tasks; the
    records are the same.

    Example: gfss evaluate frozen/pascal-lite0 --set methods=nsf,pcn --set folds=0 --set shots=1 --runs trained
    """
    from gfss.common.devices import is_first
    from gfss.common.files import refuse_unwritable
    from gfss.experiments.runner import evaluate_recipe

    chosen = o.open_recipe(recipe, change)
    if out:
        refuse_unwritable(out)
    for record in evaluate_recipe(chosen, o.common.runs, o.common.place, out):
        for metric, figures in record.figures.items() if is_first() else ():
            values = ((name, getattr(figures, key)) for name, key in SHOWN.items())
            words = "  ".join(f"{name} {'-' if value is None else f'{value:.2f}'}" for name, value in values)
            place = f"fold {record.fold} {record.shots}-shot {record.protocol}"
            typer.echo(f"{record.method:>18} {place} {metric:<12} {words}")
