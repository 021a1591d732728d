"""`gfss quickstart`: everything once, on the embedded scenes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gfss.cli import options as o

app = typer.Typer()


@app.command("quickstart")
def quickstart(
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder for models, records and the report.")] = Path(
        "quickstart"
    ),
    fold: o.FoldNumber = 0,
    tasks: Annotated[int, typer.Option(min=1, help="Tasks per row of the table.")] = 20,
    threads: o.Threads = 0,
) -> None:
    """Train on generated scenes, teach new classes from one and five images, compare the methods, write a report.

    A few minutes on two cores; later runs reuse earlier results.
    """
    o.use_threads(threads)
    from gfss.common.progress import console
    from gfss.evaluation.records import read_records
    from gfss.reporting.formats import as_rich
    from gfss.reporting.quickstart import quickstart as run
    from gfss.reporting.tables import grouped_tables

    report = run(out, fold, tasks)
    for table in grouped_tables(read_records([out / "records"])):
        console.print(as_rich(table))
    typer.echo(f"report: {report}")
