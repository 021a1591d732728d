"""Options that several commands share: which data, fold and encoder an experiment is about."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from gfss.experiments.experiment import Experiment


def within(low: float, high: float) -> Callable[[float], float]:
    """A check of an option: a number in a range, which NaN is not."""

    def check(value: float) -> float:
        if not low <= value <= high:
            raise typer.BadParameter(f"{value} is not in the range {low:g} to {high:g}.")
        return value

    return check


RecipeName = Annotated[str, typer.Argument(help="A recipe file, or its name below recipes, as frozen/pascal-lite0.")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", help="Change a setting: key=value, base.epochs=2 for nested ones.")
]
Data = Annotated[str, typer.Option(help="scenes (embedded), pascal, coco, or a folder of your own.")]
Root = Annotated[Path | None, typer.Option(help="Folder of the data set, where it is not found by itself.")]
FoldNumber = Annotated[int, typer.Option("--fold", help="Which classes are novel: fold 0 to 3.")]
Novel = Annotated[str, typer.Option(help="Novel classes of own data by name, comma-separated, instead of a fold.")]
EncoderName = Annotated[str, typer.Option("--encoder", help="tiny, lite0, resnet50, hf:NAME ...; by data if left out.")]
Weights = Annotated[Path | None, typer.Option("--encoder-weights", help="File with the encoder's weights.")]
OutputStride = Annotated[int | None, typer.Option(help="Input pixels per position of the feature maps.")]
Size = Annotated[
    int,
    typer.Option(min=0, max=4096, help="Side of the square input; 113 for scenes and 417 for photographs if left out."),
]
Shots = Annotated[int, typer.Option(min=1, help="Labelled images per novel class.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of everything random.")]
Runs = Annotated[Path, typer.Option(help="Folder of trained parts.")]
RUNS = Path("runs")
Threads = Annotated[int, typer.Option(min=0, max=1024, help="CPU threads; all cores if 0.")]
Device = Annotated[
    str, typer.Option(help="cpu, cuda, or cuda:1 ...; torchrun gives each of its processes a card of its own.")
]
Contiguous = Annotated[bool, typer.Option("--contiguous", help="COCO folds as blocks of ids instead of interleaved.")]


def open_experiment(
    data: str,
    root: Path | None,
    fold: int,
    novel: str,
    encoder: str,
    weights: Path | None,
    output_stride: int | None,
    size: int,
    runs: Path,
    contiguous: bool = False,
    device: str = "cpu",
) -> Experiment:
    """The experiment that a command line describes."""
    from gfss.common.devices import find_device
    from gfss.experiments.experiment import Experiment

    names = tuple(name.strip() for name in novel.split(",") if name.strip())
    return Experiment(
        data=data,
        fold=fold,
        root=root,
        encoder=encoder,
        weights=weights,
        output_stride=output_stride,
        size=size,
        novel=names,
        contiguous=contiguous,
        runs=runs,
        device=find_device(device),
    )


def use_threads(threads: int) -> None:
    """Limit torch to some CPU threads."""
    import torch

    if threads > 0:
        torch.set_num_threads(threads)
