"""`gfss runs`: what was trained, how it differs, and what can be removed."""

from __future__ import annotations

from itertools import groupby
from typing import Annotated

import typer

from gfss.cli import options as o

app = typer.Typer(help="List what was trained; remove what is not needed.")
MEGABYTE = 1e6


@app.callback(invoke_without_command=True)
def runs(context: typer.Context) -> None:
    """List the artefacts in the folder of runs with the settings in which they differ, and the feature banks."""
    from gfss.experiments.storage import distinguishing, stored_artifacts, stored_banks

    if context.invoked_subcommand:
        return
    found = stored_artifacts(o.common.runs)
    for kind, own in ((kind, list(group)) for kind, group in groupby(found, key=lambda one: one.kind)):
        typer.echo(f"{kind}: {len(own)}, {sum(one.bytes for one in own) / MEGABYTE:.1f} MB")
        for one, words in zip(own, distinguishing(own), strict=True):
            state = "" if one.is_complete else "  (not complete)"
            typer.echo(f"  {one.folder.name}{state}{f'  {words}' if words else ''}")
    if not found:
        typer.echo(f"nothing has been trained in {o.common.runs} yet; use gfss run")
    if banks := stored_banks():
        total = sum(one.bytes for one in banks) / MEGABYTE
        typer.echo(f"feature banks in {banks[0].folder.parent}: {len(banks)}, {total:.1f} MB")
        for one in banks:
            size = f"{one.bytes / MEGABYTE:.1f} MB"
            typer.echo(f"  {one.folder.name}  {size}  {one.words}, opened {one.unused:.0f} day(s) ago")


@app.command("prune")
def prune(
    yes: Annotated[bool, typer.Option("--yes", help="Remove without asking.")] = False,
    banks: Annotated[
        int | None, typer.Option(help="Also feature banks that nothing opened for so many days.", min=0)
    ] = None,
) -> None:
    """Remove what no recipe, no record (in results or tuning) and no other artefact needs.

    Feature banks are made again when they are needed; they stay unless --banks is given.
    """
    from gfss.experiments.storage import needed_artifacts, remove, stored_artifacts, stored_banks, unneeded

    artifacts = unneeded(stored_artifacts(o.common.runs), needed_artifacts())
    old = [] if banks is None else [one for one in stored_banks() if one.unused >= banks]
    found = [*artifacts, *old]
    if not found:
        typer.echo("nothing to remove: everything is needed")
        return
    for one in found:
        typer.echo(f"  {one.folder}  {one.bytes / MEGABYTE:.1f} MB")
    kinds = f"{len(artifacts)} artefact(s)" + (f" and {len(old)} feature bank(s)" if old else "")
    words = f"{kinds}, {sum(one.bytes for one in found) / MEGABYTE:.1f} MB"
    if not yes and not typer.confirm(f"remove {words}?"):
        return
    for one in found:
        remove(one)
    typer.echo(f"removed {words}")
