"""`gfss demo`: teach, segment and report on generated scenes."""

from __future__ import annotations

from pathlib import Path

import typer

app = typer.Typer()


@app.command("demo")
def demo() -> None:
    """Teach a class from five generated images, segment new ones and write a report to gfss-demo, in seconds."""
    from gfss.app.demo import demo as steps

    for line in steps(Path("gfss-demo")):
        typer.echo(line)
