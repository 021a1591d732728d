"""Pack trained parts into a model folder with fp16 weights, as the embedded models are.

python -m gfss.app.embed runs/base/pascal-all-lite0-ID runs/method/pascal-fold0-lite0-pcn-support-1shot-ID OUT

A model with every class of its data set has no fold to show what a calibrator gives; one that was trained on a fold
serves it too, since it treats classes as a set.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gfss.app.model_loading import join_training
from gfss.app.segmenter import Segmenter


def pack(
    base: Path,
    method: Path | None,
    out: Path,
    *,
    half: bool = True,
    weights: Path | None = None,
) -> None:
    """Write the model of a base model's folder and a calibrator's folder.

    Args:
        base: folder of the base model.
        method: folder of the calibrator; None for normalised score fusion alone.
        out: the model folder.
        half: keep the weights in fp16.
        weights: file with the encoder's weights, where they do not come with a package.
    """
    Segmenter(join_training(base, method, weights), half=half).save(out)


def main(
    base: Annotated[Path, typer.Argument(help="Folder of the base model.")],
    method: Annotated[Path, typer.Argument(help="Folder of the calibrator.")],
    out: Annotated[Path, typer.Argument(help="Model folder to write.")],
) -> None:
    """Pack a base model and a calibrator into a model folder with fp16 weights."""
    pack(base, method, out)


if __name__ == "__main__":
    typer.run(main)
