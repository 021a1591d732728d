"""What huge pages for large tensors change: steps of training a pyramid head, with and without them.

    python benchmarks/huge_pages.py --json huge_pages.json

gfss asks torch for huge pages when it is imported (`THP_MEM_ALLOC_ENABLE`, Linux only). A process reads that setting
once, so each round runs in a process of its own, the two settings in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SETTING = "THP_MEM_ALLOC_ENABLE"


def steps(count: int, batch: int) -> dict[str, float]:
    """Seconds and page faults of a training step as in stage 1 on frozen features."""
    import torch

    from gfss.models.pspnet import PyramidHead
    from gfss.training.base import pixel_loss

    torch.manual_seed(0)
    head = PyramidHead({"layer3": 112, "layer4": 320}, 16, pyramid=64, width=256, separable=True).train()
    optimiser = torch.optim.AdamW(head.parameters(), 1e-3, fused=True)
    levels = {name: torch.randn(batch, channels, 27, 27) for name, channels in head.channels.items()}
    labels = torch.randint(0, 16, (batch, 105, 105), dtype=torch.uint8)

    def step() -> None:
        total, pixels = pixel_loss(head(levels).base, labels)
        optimiser.zero_grad(set_to_none=True)
        (total / pixels).backward()
        optimiser.step()

    step()
    faults, start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.perf_counter()
    for _ in range(count):
        step()
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds / count,
        "faults": (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults) / count,
    }


def measure(count: int, batch: int, rounds: int, threads: int) -> dict[str, Any]:
    """Medians over rounds of both settings."""
    times: dict[str, list[dict[str, float]]] = {"with": [], "without": []}
    for _ in range(rounds):
        for name, value in (("with", "1"), ("without", "0")):
            command = [sys.executable, __file__, "--child", "--steps", str(count), "--batch", str(batch)]
            settings = {**os.environ, SETTING: value, "OMP_NUM_THREADS": str(threads)}
            done = subprocess.run(command, env=settings, capture_output=True, text=True, check=True)
            times[name].append(json.loads(done.stdout))
    found = {
        name: {key: statistics.median(row[key] for row in rows) for key in rows[0]} for name, rows in times.items()
    }
    return {**found, "ratio": found["without"]["seconds"] / found["with"]["seconds"]}


def main() -> None:
    """Measure, print, write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12, help="training steps of a round")
    parser.add_argument("--batch", type=int, default=16, help="images of a step")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each setting")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--small", action="store_true", help="a second of work, for tests")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    if options.small:
        options.steps, options.batch, options.rounds = 2, 2, 1
    if options.child:
        print(json.dumps(steps(options.steps, options.batch)))
        return
    figures = measure(options.steps, options.batch, options.rounds, options.threads)
    for name in ("with", "without"):
        row = figures[name]
        print(f"{name:8s} {1000 * row['seconds']:8.1f} ms and {row['faults']:10,.0f} page faults per step")
    print(f"{figures['ratio']:.2f} x as fast with huge pages")
    if options.json:
        from gfss.common.files import write_json

        write_json(
            options.json, {"steps": options.steps, "batch": options.batch, "threads": options.threads, **figures}
        )


if __name__ == "__main__":
    main()
