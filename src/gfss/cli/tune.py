"""`gfss tune`: settings compared on held-out base classes."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Annotated

import typer

from gfss.cli import options as o

app = typer.Typer()


@app.command("tune")
def tune(
    recipe: o.RecipeName,
    change: o.Changes = None,
    part: Annotated[
        list[int] | None, typer.Option(min=1, help="Which part is left out, from 1; may be repeated. All if left out.")
    ] = None,
    tasks: Annotated[int, typer.Option(min=1, help="Tasks with classes of the part left out.")] = 100,
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of records.")] = Path("tuning"),
    root: o.Root = None,
    encoder_weights: o.Weights = None,
    runs: o.Runs = o.RUNS,
    device: o.Device = "cpu",
    threads: o.Threads = 0,
) -> None:
    """Compare the methods of a recipe on base classes held out, never on novel ones.

    Calibrators are trained on episodes of all parts of the base classes but
    one and examined on the part left out, with a base model that has seen
    neither its classes nor its images. So settings can be chosen without a
    look at what they will be tested on. Give every setting a name of its own
    under `calibrators`, `per_method` or `diams`.
    """
    from gfss.cli.tables import print_tables
    from gfss.common.devices import find_device
    from gfss.common.progress import console
    from gfss.evaluation.records import refuse_fewer_tasks, write_record
    from gfss.experiments.plan import Plan
    from gfss.experiments.recipe_files import find_recipe, read_recipe
    from gfss.experiments.tuning import comparisons
    from gfss.reporting.tables import grouped_tables

    o.use_threads(threads)
    chosen = read_recipe(find_recipe(recipe), change or [])
    plan = Plan(chosen, runs, out, root, encoder_weights, find_device(device), records=False)
    records = []
    for tuning in comparisons(plan, part or ()):
        console.print(tuning.words, highlight=False)
        paths = [tuning.record_path(out, name, seed) for name, seed in product(chosen.methods, chosen.seeds)]
        refuse_fewer_tasks(paths, tasks)
        for record in tuning.examine(tasks):
            path = tuning.record_path(out, record.method, record.seed)
            refuse_fewer_tasks([path], tasks)  # another command may have written it meanwhile
            write_record(path, record)
            records.append(record)
    print_tables(grouped_tables(records))
    typer.echo(f"records in {out}")
