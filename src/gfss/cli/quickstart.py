"""`gfss quickstart`: everything once, on the embedded scenes."""

from __future__ import annotations

from pathlib import Path

import typer

FOLDER = Path("quickstart")  # of models, records and the report

app = typer.Typer()


@app.command("quickstart")
def quickstart() -> None:
    """Train on generated scenes, teach new classes from one and five images, compare the methods, write a report.

    A few minutes on two cores; everything is written into the folder quickstart,
    and later runs reuse what is there.
    """
    from gfss.common.progress import console
    from gfss.reporting.formats import as_rich
    from gfss.reporting.quickstart import quickstart as run
    from gfss.reporting.tables import grouped_tables

    report, records = run(FOLDER)
    for table in grouped_tables(records):
        console.print(as_rich(table))
    typer.echo(f"report: {report}")
