"""Time per task and peak memory of every method, on maps as EfficientNet-Lite0 gives them for 417 px.

    python benchmarks/methods.py --json methods.json

A task is that of the paired protocol on a PASCAL fold: one novel class from 1 or 5 images, 30 query images, 15 base
classes. Features are random (the arithmetic does not depend on them), trained parts have their initial weights. Every
method runs in a process of its own, which tells its peak memory, one after the other.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gfss.common.files import write_json
from gfss.data.catalog import VOID
from gfss.evaluation.records import peak_memory_mb
from gfss.features.episodes import Query, Support
from gfss.methods import TRAINED, UNTRAINED, Context, build_method
from gfss.methods.base import Method
from gfss.methods.pcn import Calibrated
from gfss.models.base_model import BaseCard, BaseModel, PyramidHead
from gfss.models.encoders.base import TinyEncoder
from gfss.models.ops.upsample import class_map

BASE = 15
LEVELS = {"layer2": 40, "layer3": 112, "layer4": 320}
SKIPPED = {"base"}  # a bound, not a method
METHODS = [name for name in UNTRAINED | TRAINED if name not in SKIPPED]


def make_head(small: bool) -> PyramidHead:
    """An untrained pyramid head as the frozen recipe makes it."""
    torch.manual_seed(0)
    head = PyramidHead(LEVELS, BASE + 1, *((4, 16) if small else (64, 256)), separable=True)
    return head.eval().requires_grad_(False)


def make_task(head: PyramidHead, shots: int, queries: int, side: int) -> tuple[Support, Query]:
    """A support set whose images show a square of the novel class, and queries."""
    generator = torch.Generator().manual_seed(1)
    count = shots + queries
    levels = {name: torch.randn(count, width, side, side, generator=generator) for name, width in LEVELS.items()}
    pixels = 16 * (side - 1) + 1
    labels = torch.zeros(count, pixels, pixels, dtype=torch.uint8)
    labels[:, pixels // 3 : 2 * pixels // 3, pixels // 3 : 2 * pixels // 3] = BASE + 1
    labels[:, -pixels // 8 :] = VOID
    with torch.no_grad():
        features = head(levels)
    rows = head.classifier.weight.detach()[:, :, 0, 0]
    support = Support(features[:shots], labels[:shots], 1, rows, (0,) * shots, tuple(range(BASE + 1)))
    return support, Query(features[shots:], labels[shots:])


def ready(name: str, head: PyramidHead, side: int) -> Method:
    """A method that can be used without training."""
    classes = tuple(f"class {i}" for i in range(BASE))
    card = BaseCard("tiny", 4, "", False, 16 * (side - 1) + 1, classes, (), "random", None, {})
    torch.manual_seed(0)
    method = build_method(name, Context(BaseModel(TinyEncoder(), head, card), (side, side)))
    for part in (method, *([method.inner] if isinstance(method, Calibrated) else [])):
        if isinstance(part.module, nn.Module):
            part.module.eval().requires_grad_(False)
            part.trained = True
    return method


def measure(name: str, shots: int, queries: int, side: int, threads: int, rounds: int, small: bool) -> dict[str, Any]:
    """Seconds to learn a task and to segment its queries (scores and class maps at full size), and peak memory."""
    torch.set_num_threads(threads)
    before = peak_memory_mb()
    head = make_head(small)
    support, query = make_task(head, shots, queries, side)
    method = ready(name, head, side)
    size = (query.labels.shape[-2], query.labels.shape[-1])
    learning: list[float] = []
    segmenting: list[float] = []
    for _ in range(rounds):
        method = ready(name, head, side)  # a fitter keeps its last task
        with torch.no_grad():
            start = time.perf_counter()
            method.learn(support)
            learned = time.perf_counter()
            class_map(method.scores(query.features), size)
        learning.append(learned - start)
        segmenting.append(time.perf_counter() - learned)
    peak = peak_memory_mb()
    return {
        "method": name,
        "shots": shots,
        "learn_seconds": statistics.median(learning),
        "segment_seconds_per_image": statistics.median(segmenting) / queries,
        "peak_memory_mb": None if peak is None or before is None else peak - before,
    }


def main() -> None:
    """Measure all methods, print a table, write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=METHODS, metavar="NAME")
    parser.add_argument("--shots", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="tiny maps: only to see that it runs")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    queries, side = (2, 7) if options.small else (30, 27)

    load = os.getloadavg()[0]
    print(f"{queries} queries, {side} x {side} maps, {options.threads} threads, load {load:.1f}")
    print(f"{'method':<20}{'shots':>6}{'learn s':>10}{'segment ms/image':>18}{'peak MB':>9}")
    rows: list[dict[str, Any]] = []
    spawn = multiprocessing.get_context("spawn")
    for name in options.methods:
        for shots in options.shots:
            with spawn.Pool(1) as pool:  # a process of its own
                row = pool.apply(measure, (name, shots, queries, side, options.threads, options.rounds, options.small))
            rows.append(row)
            peak = "" if row["peak_memory_mb"] is None else f"{row['peak_memory_mb']:.0f}"
            print(
                f"{name:<20}{shots:>6}{row['learn_seconds']:>10.3f}"
                f"{1000 * row['segment_seconds_per_image']:>18.1f}{peak:>9}",
                flush=True,
            )
    if options.json:
        about = {"small": options.small, "queries": queries, "side": side, "threads": options.threads}
        write_json(options.json, {**about, "torch": str(torch.__version__), "load": load, "rows": rows})


if __name__ == "__main__":
    main()
