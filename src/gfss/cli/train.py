"""`gfss train`: a base model of one's own data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gfss.cli import options as o

app = typer.Typer()


@app.command("train")
def train(
    data: Annotated[Path, typer.Argument(help="Labelled images: a folder, a COCO file, a zip ...", metavar="DATA")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of the new model.")],
    name: Annotated[str | None, typer.Option(help="Name of the class, where masks of one class have none.")] = None,
) -> None:
    """Train a model on all classes of your own labelled images; it can be taught further.

    --label and --void say how the labels are to be read, as for gfss teach.

    Example: gfss train my-data -o my-model
    """
    from gfss.app.model_folder import refuse_foreign
    from gfss.app.training import train_model
    from gfss.common.files import refuse_unwritable

    refuse_foreign(out)
    refuse_unwritable(out if out.exists() else out.absolute().parent)
    model, figures = train_model(data, weights=o.common.weights, name=name, label=o.common.label, void=o.common.void)
    for name, value in figures.items():
        typer.echo(f"{'mean IoU' if name == 'base' else name:>24} {'-' if value is None else f'{value:.1f}':>6}")
    model.save(out)
    typer.echo(f"{out} knows {len(model.classes) - 1} classes; teach it more with: gfss teach {out} --name NAME ...")
