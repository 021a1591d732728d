"""Pack trained parts into a model folder with fp16 weights, as the embedded models are.

python -m gfss.app.embed runs/pascal-lite0/all/base runs/pascal-lite0/all/pcn-support-1shot src/gfss/assets/voc20-lite0

A model with every class of its data set has no fold to show what a calibrator gives; one that was trained on a fold
serves it with --other-classes.
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
    other_classes: bool = False,
) -> None:
    """Write the model of a base model's folder and a calibrator's folder.

    Args:
        base: folder that ``gfss train base`` wrote.
        method: folder that ``gfss train calibrator`` wrote; None for normalised score fusion alone.
        out: the model folder.
        half: keep the weights in fp16.
        weights: file with the encoder's weights, where they do not come with a package.
        other_classes: the calibrator may have been trained beside other base classes on the same encoder; it treats
            classes as a set.
    """
    Segmenter(join_training(base, method, weights, other_classes), half=half).save(out)


def main(
    base: Annotated[Path, typer.Argument(help="Folder of the base model.")],
    method: Annotated[Path, typer.Argument(help="Folder of the calibrator.")],
    out: Annotated[Path, typer.Argument(help="Model folder to write.")],
    other_classes: Annotated[
        bool, typer.Option("--other-classes", help="Take a calibrator that was trained beside other base classes.")
    ] = False,
) -> None:
    """Pack a base model and a calibrator into a model folder with fp16 weights."""
    pack(base, method, out, other_classes=other_classes)


if __name__ == "__main__":
    typer.run(main)
