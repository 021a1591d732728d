"""`gfss doctor`: what is installed, and what it is enough for."""

from __future__ import annotations

import typer

app = typer.Typer()


@app.command("doctor")
def doctor() -> None:
    """Say what is installed, what is missing for which command, and what this machine can do.

    The exit code is 1 if something is missing without which no command works.
    """
    from gfss.app.doctor import diagnose

    lines, healthy = diagnose()
    for line in lines:
        typer.echo(line)
    raise typer.Exit(0 if healthy else 1)
