"""`gfss train`: the base model (stage 1), the calibrator and the trained methods (stage 2)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gfss.cli import options as o

app = typer.Typer(no_args_is_help=True, help="Train a base model, a calibrator or any trained method.")

Resume = Annotated[bool, typer.Option("--resume", help="Continue a run that was interrupted.")]


@app.command("base")
def base(
    data: o.Data = "scenes",
    root: o.Root = None,
    fold: o.FoldNumber = 0,
    novel: o.Novel = "",
    encoder: o.EncoderName = "",
    encoder_weights: o.Weights = None,
    output_stride: o.OutputStride = None,
    size: o.Size = 0,
    recipe: Annotated[str, typer.Option(help="frozen, paper or scratch; scratch on scenes, else frozen.")] = "",
    epochs: Annotated[int, typer.Option(min=0, help="Passes over the images; the recipe's if 0.")] = 0,
    frozen_until: Annotated[
        str, typer.Option(help="Train the encoder's stages after this level too (layer2, layer3), from the bank.")
    ] = "",
    seed: o.Seed = 0,
    contiguous: o.Contiguous = False,
    resume: Resume = False,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Folder of results for the record.")] = None,
    runs: o.Runs = o.RUNS,
    device: o.Device = "cpu",
    threads: o.Threads = 0,
) -> None:
    """Stage 1: train pyramid head and base classifier, then print the base mIoU on the val images."""
    from gfss.evaluation.records import write_record
    from gfss.experiments.evaluator import base_record, record_path
    from gfss.experiments.stages import train_base_stage

    o.use_threads(threads)
    experiment = o.open_experiment(
        data, root, fold, novel, encoder, encoder_weights, output_stride, size, runs, contiguous, device
    )
    figures = train_base_stage(experiment, recipe, epochs=epochs, frozen_until=frozen_until, seed=seed, resume=resume)
    for name, value in figures.items():
        typer.echo(f"{name:>16} {'-' if value is None else f'{value:.2f}':>6}")
    if out:
        record = base_record(experiment, figures)
        write_record(record_path(out, experiment, "base", 0, "joint", record.seed), record)


@app.command("method")
def method(
    method: Annotated[
        str, typer.Option(help="pcn, pcn-support, acastle, capl, pfenet, denet, or NAME+T.")
    ] = "pcn-support",
    shots: o.Shots = 1,
    data: o.Data = "scenes",
    root: o.Root = None,
    fold: o.FoldNumber = 0,
    novel: o.Novel = "",
    encoder: o.EncoderName = "",
    encoder_weights: o.Weights = None,
    output_stride: o.OutputStride = None,
    size: o.Size = 0,
    recipe: Annotated[str, typer.Option(help="frozen (CPU scale) or paper.")] = "frozen",
    iterations: Annotated[int, typer.Option(min=0, help="Optimiser steps; the recipe's if 0.")] = 0,
    episodes: Annotated[int, typer.Option(min=0, help="Different episodes that are played; the recipe's if 0.")] = 0,
    seed: o.Seed = 0,
    contiguous: o.Contiguous = False,
    resume: Resume = False,
    runs: o.Runs = o.RUNS,
    device: o.Device = "cpu",
    threads: o.Threads = 0,
) -> None:
    """Stage 2: train a method on episodes whose novel classes are played by base classes."""
    from gfss.data.episodes import shots_in_words
    from gfss.experiments.stages import train_method_stage

    o.use_threads(threads)
    experiment = o.open_experiment(
        data, root, fold, novel, encoder, encoder_weights, output_stride, size, runs, contiguous, device
    )
    loss = train_method_stage(
        experiment, method, shots, recipe, iterations=iterations, episodes=episodes, seed=seed, resume=resume
    )
    folder = experiment.method_folder(method, shots)
    typer.echo(f"{method} for {shots_in_words(shots)}: final loss {loss:.4f}, in {folder}")


@app.command("calibrator")
def calibrator(
    shots: o.Shots = 1,
    data: o.Data = "scenes",
    root: o.Root = None,
    fold: o.FoldNumber = 0,
    novel: o.Novel = "",
    encoder: o.EncoderName = "",
    encoder_weights: o.Weights = None,
    output_stride: o.OutputStride = None,
    size: o.Size = 0,
    preset: Annotated[str, typer.Option(help="pcn-support (ours), pcn (the paper's), pixel ...")] = "pcn-support",
    recipe: Annotated[str, typer.Option(help="frozen (CPU scale) or paper.")] = "frozen",
    iterations: Annotated[int, typer.Option(min=0, help="Optimiser steps; the recipe's if 0.")] = 0,
    episodes: Annotated[int, typer.Option(min=0, help="Different episodes that are played; the recipe's if 0.")] = 0,
    seed: o.Seed = 0,
    contiguous: o.Contiguous = False,
    resume: Resume = False,
    runs: o.Runs = o.RUNS,
    device: o.Device = "cpu",
    threads: o.Threads = 0,
) -> None:
    """Stage 2: train a calibrator on top of normalised score fusion."""
    method(
        preset, shots, data, root, fold, novel, encoder, encoder_weights, output_stride, size,
        recipe, iterations, episodes, seed, contiguous, resume, runs, device, threads,
    )  # fmt: skip
