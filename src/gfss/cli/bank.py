"""`gfss bank`: compute an encoder's features of a data set once."""

from __future__ import annotations

import typer

from gfss.cli import options as o

app = typer.Typer(no_args_is_help=True, help="Compute an encoder's features of a data set once.")


@app.command("build")
def build(
    data: o.Data = "scenes",
    root: o.Root = None,
    encoder: o.EncoderName = "",
    encoder_weights: o.Weights = None,
    output_stride: o.OutputStride = None,
    size: o.Size = 0,
    device: o.Device = "cpu",
    threads: o.Threads = 0,
) -> None:
    """Write the features of every image; an interrupted build continues where it stopped."""
    o.use_threads(threads)
    experiment = o.open_experiment(
        data, root, 0, "", encoder, encoder_weights, output_stride, size, o.RUNS, device=device
    )
    for split in ("train", "val"):
        bank = experiment.bank(split, experiment.pretrained)
        typer.echo(f"{split}: {bank.count} images, {bank.map_size} x {bank.map_size} maps, in {bank.folder}")


@app.command("check")
def check(
    data: o.Data = "scenes",
    root: o.Root = None,
    encoder: o.EncoderName = "",
    encoder_weights: o.Weights = None,
    output_stride: o.OutputStride = None,
    size: o.Size = 0,
) -> None:
    """Compare every shard of the bank with its checksum; damaged ones are dropped and made anew."""
    from gfss.features.bank import check_bank

    experiment = o.open_experiment(data, root, 0, "", encoder, encoder_weights, output_stride, size, o.RUNS)
    for split in ("train", "val"):
        bank = experiment.bank(split, experiment.pretrained)
        check_bank(bank)
        typer.echo(f"{split}: {bank.count} images, all shards whole")
