"""`gfss quickstart`: everything once, on the embedded scenes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


@app.command("quickstart")
def quickstart(
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder for models, records and the report.")] = Path(
        "quickstart"
    ),
    tasks: Annotated[int, typer.Option(min=1, help="Tasks per row of the table.")] = 20,
) -> None:
    """Train on generated scenes, teach new classes from one and five images, compare the methods, write a report.

    A few minutes on two cores; later runs reuse earlier results.
    """
    from gfss.common.progress import console
    from gfss.reporting.formats import as_rich
    from gfss.reporting.quickstart import quickstart as run
    from gfss.reporting.tables import grouped_tables

    report, records = run(out, tasks)
    for table in grouped_tables(records):
        console.print(as_rich(table))
    typer.echo(f"report: {report}")
