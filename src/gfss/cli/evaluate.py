"""`gfss evaluate`: examine methods under a protocol and write records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, cast

import typer

from gfss.cli import options as o
from gfss.common.errors import GfssError, unknown

app = typer.Typer()


@app.command("evaluate")
def evaluate(
    method: Annotated[str, typer.Option(help="Method, or several separated by commas: they see the same tasks.")],
    data: o.Data = "scenes",
    root: o.Root = None,
    fold: o.FoldNumber = 0,
    novel: o.Novel = "",
    encoder: o.EncoderName = "",
    encoder_weights: o.Weights = None,
    output_stride: o.OutputStride = None,
    size: o.Size = 0,
    shots: o.Shots = 1,
    protocol: Annotated[
        str, typer.Option(help="paired (the paper's) or joint (all novel classes at once).")
    ] = "paired",
    tasks: Annotated[int, typer.Option(min=0, help="Paired tasks, or support draws of the joint protocol.")] = 0,
    supports: Annotated[str, typer.Option(help="Split of the supports in the joint protocol: val or train.")] = "val",
    seed: o.Seed = 0,
    contiguous: o.Contiguous = False,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Record file; a folder for several methods.")] = None,
    runs: o.Runs = o.RUNS,
    device: o.Device = "cpu",
    threads: o.Threads = 0,
) -> None:
    """Run methods over the tasks of a protocol; print their figures and, with --out, write one JSON record each.

    Processes started together by torchrun share the tasks; the record is the same.

    Number of tasks if it is 0: 1,000 paired ones, or 5 support draws of the joint protocol.
    """
    from gfss.common.distributed import is_first
    from gfss.common.files import refuse_unwritable
    from gfss.evaluation.protocols import ProtocolName
    from gfss.evaluation.records import Record, refuse_fewer_tasks, write_records
    from gfss.experiments.evaluator import evaluate_stage, record_path
    from gfss.methods import refuse_unknown_method

    if protocol not in ("paired", "joint"):
        raise unknown("protocol", protocol, ("paired", "joint"))
    o.use_threads(threads)
    experiment = o.open_experiment(
        data, root, fold, novel, encoder, encoder_weights, output_stride, size, runs, contiguous, device
    )
    names = [name.strip() for name in method.split(",") if name.strip()]
    if not names:
        raise GfssError("no method is named; give one or several, as in --method nsf,pcn-support")
    for name in names:
        refuse_unknown_method(name)
    if out and len(names) > 1 and out.suffix == ".json":
        raise GfssError(f"{out} can hold one record only, but {len(names)} methods are named; give a folder")
    if out:
        refuse_unwritable(out.parent if out.suffix == ".json" else out)
    count = tasks or (1000 if protocol == "paired" else 5)

    paths: dict[str, Path] = {}
    if out and out.suffix == ".json":  # a file that is named may be replaced
        paths = {names[0]: out}
    elif out:
        paths = {name: record_path(out, experiment, name, shots, protocol, seed, supports) for name in names}
    in_folder = [path for path in paths.values() if path != out]
    refuse_fewer_tasks(in_folder, count)

    def write(records: Sequence[Record]) -> None:
        refuse_fewer_tasks(in_folder, count)  # another command may have written some meanwhile
        write_records({paths[record.method]: record for record in records if paths})

    what = (experiment, names, shots, cast(ProtocolName, protocol), count, seed, supports)
    records = evaluate_stage(*what, write=write)
    if not is_first():
        return
    for record in records:
        for metric, figures in record.figures.items():
            values = "  ".join(
                f"{key} {'-' if value is None else f'{value:.2f}'}"
                for key, value in (
                    ("base", figures.base),
                    ("novel", figures.novel),
                    ("mIoU", figures.miou),
                    ("H", figures.harmonic),
                )
            )
            typer.echo(f"{record.method:>18} {protocol} {metric:<12} {values}")
