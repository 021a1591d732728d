"""The calibrator's two exact forms, forward and backward: every channel projected (plain), and the module's own (fast).

    python benchmarks/calibrator_forms.py --json calibrator.json

Times come from alternating runs in one process, peak memory from a process of its own for each form.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gfss.common.files import write_json
from gfss.evaluation.records import peak_memory_mb
from gfss.models.base_model import BINS, Features
from gfss.models.calibrators.calibrator import AS_PRINTED, Calibrator

FORMS = ("plain", "fast")


@dataclass(frozen=True)
class Sizes:
    """What is calibrated; the defaults are the paper's PASCAL model.

    Attributes:
        classes: c, background + base + novel.
        side: height and width of the maps.
        level: channels of layer4.
        branch: channels of each pyramid branch.
        dimension: d.
    """

    classes: int = 17
    side: int = 53
    level: int = 2048
    branch: int = 512
    dimension: int = 512


SMALL = Sizes(classes=5, side=9, level=16, branch=8, dimension=16)


def plain(calibrator: Calibrator, fused: Tensor, channels: Tensor) -> Tensor:
    """Equations 4 to 6 as printed, with queries, keys and values of every class and channel.

    Args:
        fused: (batch, classes, h, w).
        channels: levels and upsampled branches, (batch, channels, positions).
    """
    module = calibrator.attention
    assert module is not None
    scores = fused.flatten(2)
    query, key, value = scores @ module.query.T, channels @ module.key.T, channels @ module.value.T
    attention = (query @ key.transpose(1, 2)).softmax(dim=2) / math.sqrt(calibrator.options.dimension)
    return (scores + module.head(attention @ value)).view_as(fused)


def prepare(sizes: Sizes, batch: int, forms: tuple[str, ...]) -> tuple[Calibrator, dict[str, Callable[[], Tensor]]]:
    """A calibrator and its forms as functions without arguments.

    The concatenation of upsampled branches is made here, outside the clock, and only if the plain form is asked for.
    """
    generator = torch.Generator().manual_seed(0)

    def maps(channels: int, side: int) -> Tensor:
        return torch.randn(batch, channels, side, side, generator=generator)

    with torch.random.fork_rng():
        torch.manual_seed(0)
        calibrator = Calibrator(replace(AS_PRINTED, dimension=sizes.dimension), (sizes.side, sizes.side), fast=True)
    fused = maps(sizes.classes, sizes.side).softmax(dim=1)
    base = maps(1, sizes.side)
    # small values keep the softmax away from a single channel, so that all gradients count in the comparison
    level, *pooled = (0.1 * maps(sizes.level, sizes.side), *(0.1 * maps(sizes.branch, n) for n in BINS))
    features = Features({"layer4": level}, tuple(pooled), base, base)
    runs: dict[str, Callable[[], Tensor]] = {"fast": lambda: calibrator(fused, features, 1)}
    if "plain" in forms:
        channels = features.named(AS_PRINTED.features).flatten(2)
        runs["plain"] = lambda: plain(calibrator, fused, channels)
    return calibrator, {form: runs[form] for form in forms}


def train_step(calibrator: Calibrator, form: Callable[[], Tensor]) -> list[Tensor]:
    """Forward and backward; the gradients."""
    return list(torch.autograd.grad(form().square().sum(), list(calibrator.parameters())))


def alternate(runs: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, dict[str, float]]:
    """Median seconds of every run, one after the other in turn: on the clock, and of processor time."""
    clock: dict[str, list[float]] = {name: [] for name in runs}
    processor: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            started, worked = time.perf_counter(), time.process_time()
            run()
            clock[name].append(time.perf_counter() - started)
            processor[name].append(time.process_time() - worked)
    return {
        name: {"seconds": statistics.median(clock[name]), "cpu_seconds": statistics.median(processor[name])}
        for name in runs
    }


def measure_times(sizes: Sizes, batch: int, threads: int, rounds: int) -> dict[str, Any]:
    """Times of both forms and the largest difference of their gradients, relative to the largest gradient."""
    torch.set_num_threads(threads)
    calibrator, forms = prepare(sizes, batch, FORMS)
    reference, ours = (train_step(calibrator, forms[name]) for name in FORMS)  # warms both up
    difference = max(float((a - b).abs().max() / a.abs().max()) for a, b in zip(reference, ours, strict=True))
    times = alternate({name: lambda f=form: train_step(calibrator, f) for name, form in forms.items()}, rounds)
    return {"times": times, "difference": difference}


def measure_memory(form: str, sizes: Sizes, batch: int, threads: int) -> float | None:
    """Megabytes that a process needs for the inputs and one training step, on top of the imports."""
    torch.set_num_threads(threads)
    before = peak_memory_mb()
    calibrator, forms = prepare(sizes, batch, (form,))
    train_step(calibrator, forms[form])
    after = peak_memory_mb()
    return None if before is None or after is None else after - before


def main() -> None:
    """Measure, print a table, write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="tiny maps: only to see that it runs")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    sizes = SMALL if options.small else Sizes()

    channels = sizes.level + sizes.branch * len(BINS)
    load = os.getloadavg()[0]
    print(
        f"c={sizes.classes}, m={channels}, hw={sizes.side**2}, d={sizes.dimension}, {options.threads} threads, "
        f"torch {torch.__version__}, load {load:.1f}"
    )
    print(f"{'form':<8}{'batch':>6}{'ms':>10}{'cpu ms':>10}{'peak MB':>9}")
    rows: list[dict[str, Any]] = []
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as pool:
        for batch in options.batch:
            measured = pool.submit(measure_times, sizes, batch, options.threads, options.rounds).result()
            times = measured["times"]
            for form in FORMS:
                peak = pool.submit(measure_memory, form, sizes, batch, options.threads).result()
                rows.append({"form": form, "batch": batch, **times[form], "peak_mb": peak})
                milliseconds = (1000 * times[form][key] for key in ("seconds", "cpu_seconds"))
                shown = "?" if peak is None else f"{peak:.0f}"
                print(f"{form:<8}{batch:>6}" + "".join(f"{value:>10.1f}" for value in milliseconds) + f"{shown:>9}")
            ratio, cpu_ratio = (times["plain"][key] / times["fast"][key] for key in ("seconds", "cpu_seconds"))
            rows.append({"batch": batch, "ratio": ratio, "cpu_ratio": cpu_ratio, "difference": measured["difference"]})
            print(
                f"batch {batch}: fast is {ratio:.1f} x faster ({cpu_ratio:.1f} x less processor time), "
                f"gradients differ by {measured['difference']:.0e}"
            )
    if options.json:
        about = {"small": options.small, "threads": options.threads, "rounds": options.rounds}
        write_json(options.json, {**about, "torch": str(torch.__version__), "load": load, "rows": rows})


if __name__ == "__main__":
    main()
