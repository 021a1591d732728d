"""Pack a trained base model into a model folder with fp16 weights, as the embedded models are.

python -m gfss.app.embed runs/base/pascal-all-lite0-ID OUT
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gfss.app.model_folder import read_training
from gfss.app.segmenter import Segmenter


def pack(base: Path, out: Path, *, half: bool = True, weights: Path | None = None) -> None:
    """Write the model of a base model's folder.

    Args:
        base: folder of a trained base model.
        out: the model folder.
        half: keep the weights in fp16.
        weights: file with the encoder's weights, where they do not come with a package.
    """
    Segmenter(read_training(base, weights), half=half).save(out)


def main(
    base: Annotated[Path, typer.Argument(help="Folder of the base model.")],
    out: Annotated[Path, typer.Argument(help="Model folder to write.")],
) -> None:
    """Pack a base model into a model folder with fp16 weights."""
    pack(base, out)


if __name__ == "__main__":
    typer.run(main)
