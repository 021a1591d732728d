"""``gfss serve``: the page and the REST interface."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gfss.cli import options as o

app = typer.Typer()


@app.command("serve")
def serve(
    model: Annotated[
        str | None,
        typer.Argument(help="Name of an embedded model, or a model folder (default: voc20-lite0).", metavar="[MODEL]"),
    ] = None,
    folder: Annotated[Path, typer.Option(help="Folder of images to label and to segment.")] = Path(),
    labels: Annotated[
        Path | None, typer.Option(help="Folder for the labels (default: FOLDER-gfss beside FOLDER).")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="Folder for the taught model (default: MODEL itself, else LABELS/model)."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; other machines need a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port (0: any free one).")] = 8008,
    token: Annotated[str | None, typer.Option(help="Token that clients must send (default: a random one).")] = None,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = False,
    label_studio: Annotated[
        str | None, typer.Option(help="Address of the Label Studio that images may be fetched from.")
    ] = None,
    label_studio_token: Annotated[str | None, typer.Option(help="Its access token.")] = None,
) -> None:
    """Open a page in the browser to paint, teach, view and correct a class; with a REST interface.

    Example: gfss serve voc20-lite0 --folder photos
    """
    import fastapi  # noqa: F401  # says which extra is missing before the model is loaded

    from gfss.server.serve import run

    run(
        model,
        folder,
        labels=labels,
        out=out,
        host=host,
        port=port,
        token=token,
        browser=browser,
        encoder_weights=o.common.weights,
        label_studio=label_studio,
        label_studio_token=label_studio_token,
        say=typer.echo,
    )
