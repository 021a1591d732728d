"""Ways to run a frozen encoder on a CPU, side by side: time, exactness, memory.

    python benchmarks/encoder_forms.py --json forms.json

Every form and batch size runs in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gfss.common.files import write_json
from gfss.evaluation.records import peak_memory_mb
from gfss.models.encoders import build_encoder
from gfss.models.encoders.base import Encoder, fused, select_levels, traced

Run = Callable[[Tensor], list[Tensor]]
LEVELS = ("layer3", "layer4")
WARM_UP = 2


class Levels(nn.Module):
    """Only the needed levels, as a tuple: what an exporter takes."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        return tuple(select_levels(self.encoder(images), LEVELS))


def eager(encoder: Encoder, images: Tensor) -> Run:
    return lambda x: select_levels(encoder(x), LEVELS)


def channels_last(encoder: Encoder, images: Tensor) -> Run:
    last = encoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return lambda x: select_levels(last(x.contiguous(memory_format=torch.channels_last)), LEVELS)


def fused_form(encoder: Encoder, images: Tensor) -> Run:
    return channels_last(fused(encoder), images)


def traced_form(encoder: Encoder, images: Tensor) -> Run:
    network = traced(encoder, images.shape[-1])
    for _ in range(3):  # the first calls of a traced network are slower
        network(images)
    return lambda x: select_levels(network(x), LEVELS)


def compiled(encoder: Encoder, images: Tensor) -> Run:
    network = torch.compile(Levels(fused(encoder)))
    network(images.contiguous(memory_format=torch.channels_last))  # compiles here, outside the clock
    return lambda x: list(network(x.contiguous(memory_format=torch.channels_last)))


def onnx(encoder: Encoder, images: Tensor) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "encoder.onnx"
        torch.onnx.export(
            Levels(fused(encoder)), (images,), file, input_names=["images"], output_names=list(LEVELS), dynamo=False
        )
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return lambda x: [torch.from_numpy(level) for level in session.run(None, {"images": x.numpy()})]


FORMS: dict[str, Callable[[Encoder, Tensor], Run]] = {
    "eager": eager,
    "channels_last": channels_last,
    "fused": fused_form,
    "traced": traced_form,
    "compile": compiled,
    "onnxruntime": onnx,
}


def measure(form: str, name: str, batch: int, size: int, threads: int, rounds: int) -> dict[str, Any]:
    """Run one form in this process; ``skipped`` holds the reason where it cannot run."""
    torch.set_num_threads(threads)
    images = torch.rand(batch, 3, size, size, generator=torch.Generator().manual_seed(0))
    times: list[float] = []
    levels: list[Tensor] = []
    with torch.inference_mode():
        try:
            run = FORMS[form](build_encoder(name), images)
        except Exception as error:  # a form may be missing a compiler or a package in many ways
            return {"form": form, "batch": batch, "skipped": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
        for _ in range(WARM_UP + rounds):
            start = time.perf_counter()
            levels = run(images)
            times.append(1000 * (time.perf_counter() - start) / batch)
    return {
        "form": form,
        "batch": batch,
        "ms_per_image": statistics.median(times[WARM_UP:]),
        "fastest_ms_per_image": min(times[WARM_UP:]),
        "peak_mb": peak_memory_mb(),
        "levels": [level.numpy() for level in levels],
    }


def difference(levels: Sequence[np.ndarray], reference: Sequence[np.ndarray]) -> float:
    """Largest absolute difference over all levels."""
    return max(float(np.abs(a - b).max()) for a, b in zip(levels, reference, strict=True))


def main() -> None:
    """Measure all forms, print a table, write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", default="lite0")
    parser.add_argument("--size", type=int, default=417)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    if "eager" not in options.forms:
        options.forms.insert(0, "eager")  # the others are compared with it
    options.forms.sort(key=list(FORMS).index)

    load = os.getloadavg()[0]
    print(
        f"{options.encoder} at {options.size} px, {options.threads} threads, torch {torch.__version__}, load {load:.1f}"
    )
    print(f"{'form':<14}{'batch':>6}{'ms/image':>10}{'fastest':>9}{'max diff':>10}{'peak MB':>9}")
    rows: list[dict[str, Any]] = []
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as pool:
        for batch in options.batch:
            reference: list[np.ndarray] = []
            for form in options.forms:
                job = (form, options.encoder, batch, options.size, options.threads, options.rounds)
                row = pool.submit(measure, *job).result()
                if "skipped" in row:
                    print(f"{form:<14}{batch:>6}  skipped: {row['skipped']}")
                else:
                    levels = row.pop("levels")
                    reference = reference or levels
                    row["max_difference"] = difference(levels, reference)
                    peak = "?" if row["peak_mb"] is None else f"{row['peak_mb']:.0f}"
                    print(
                        f"{form:<14}{batch:>6}{row['ms_per_image']:>10.1f}{row['fastest_ms_per_image']:>9.1f}"
                        f"{row['max_difference']:>10.1e}{peak:>9}"
                    )
                rows.append(row)
    if options.json:
        about = {key: getattr(options, key) for key in ("encoder", "size", "threads", "rounds")}
        write_json(options.json, {**about, "torch": str(torch.__version__), "load": load, "rows": rows})


if __name__ == "__main__":
    main()
