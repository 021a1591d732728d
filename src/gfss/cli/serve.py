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
        typer.Argument(help="Embedded model or folder of a model; voc20-lite0 if left out.", metavar="[MODEL]"),
    ] = None,
    folder: Annotated[Path, typer.Option(help="Folder of images to teach from and to look at.")] = Path(),
    labels: Annotated[Path | None, typer.Option(help="Where labels go; FOLDER-gfss beside FOLDER if left out.")] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder of the taught model; MODEL itself, else LABELS/model.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; any but loopback needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8008,
    token: Annotated[str | None, typer.Option(help="Token that clients must send; made up if left out.")] = None,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = False,
    encoder_weights: o.Weights = None,
    threads: o.Threads = 0,
) -> None:
    """Open a page on which a class is painted, taught, looked at and corrected; with a REST interface.

    Example: gfss serve voc20-lite0 --folder photos
    """
    import fastapi  # noqa: F401  # says which extra is missing before the model is loaded

    from gfss.server.serve import run

    o.use_threads(threads)
    run(
        model,
        folder,
        labels=labels,
        out=out,
        host=host,
        port=port,
        token=token,
        browser=browser,
        encoder_weights=encoder_weights,
        say=typer.echo,
    )
