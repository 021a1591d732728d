"""Reading features from a bank against computing them: time of a batch, and memory over many reads.

    python benchmarks/bank_reading.py --json bank.json

The images are noise, written to a temporary folder; the bank is small enough to stay in the system's file cache.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from PIL import Image

from gfss.common.files import write_json
from gfss.data.datasets.base import Dataset
from gfss.data.images import square_image, to_tensor
from gfss.features.bank import Bank, build_bank
from gfss.models.encoders import build_encoder
from gfss.models.encoders.base import fused

LEVELS = ("layer2", "layer3", "layer4")


def noise_dataset(folder: Path, count: int, side: int, classes: int = 4) -> Dataset:
    """Images of noise; each mask has one square of class i mod ``classes``."""
    rng = np.random.default_rng(0)
    names = [f"{i:04d}" for i in range(count)]
    for i, name in enumerate(names):
        mask = np.zeros((side, side), dtype=np.uint8)
        mask[: side // 2, : side // 2] = i % classes + 1
        Image.fromarray(rng.integers(0, 256, (side, side, 3), dtype=np.uint8)).save(folder / f"{name}.jpg")
        Image.fromarray(mask).save(folder / f"{name}.png")
    images, masks = (tuple(folder / f"{name}.{suffix}" for name in names) for suffix in ("jpg", "png"))
    return Dataset("noise train", tuple(f"class {c}" for c in range(classes)), tuple(names), images, masks)


def median_ms(run: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Median time of a call after one to warm up: on the wall clock, and of the processor (fair on a busy machine)."""
    times: list[tuple[float, float]] = []
    for _ in range(rounds + 1):
        wall, cpu = time.perf_counter(), time.process_time()
        run()
        times.append((1000 * (time.perf_counter() - wall), 1000 * (time.process_time() - cpu)))
    walls, cpus = zip(*times[1:], strict=True)
    return statistics.median(walls), statistics.median(cpus)


def own_memory_mb() -> float | None:
    """Memory of this process without mapped files, where the system tells it."""
    info = psutil.Process().memory_info()
    return (info.rss - info.shared) / 2**20 if hasattr(info, "shared") else None


def memory_over_reads(bank: Bank, batch: int, reads: int) -> list[tuple[int, float | None]]:
    """(images read so far, own memory in MB) at eleven moments of many random reads."""
    rng = np.random.default_rng(1)
    seen: list[tuple[int, float | None]] = []
    batches = max(10, reads // batch)
    for number in range(batches + 1):
        bank.features(rng.choice(bank.count, batch).tolist())
        if number % (batches // 10) == 0:
            seen.append((number * batch, own_memory_mb()))
    return seen


def measure(encoder_name: str, size: int, images: int, batch: int, rounds: int, reads: int) -> dict[str, Any]:
    """All figures, in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        dataset = noise_dataset(Path(folder), images, size)
        encoder = build_encoder(encoder_name)
        bank = build_bank(encoder, dataset, size, LEVELS, root=Path(folder) / "banks")
        fast = fused(encoder)
        rng = np.random.default_rng(0)
        tensors = to_tensor(np.stack([square_image(dataset.image(i), size) for i in range(batch)]))
        tensors = tensors.contiguous(memory_format=torch.channels_last)

        def compute() -> None:
            with torch.inference_mode():
                for image in tensors.split(1):  # one at a time is fastest on a CPU, and what building does
                    fast(image)

        computing = median_ms(compute, rounds)
        reading = median_ms(lambda: bank.features(rng.choice(images, batch, replace=False).tolist()), 4 * rounds)
        return {
            "computing_ms": computing[0],
            "reading_ms": reading[0],
            "ratio": reading[0] / computing[0],
            "cpu_ratio": reading[1] / computing[1],
            "memory_mb": memory_over_reads(bank, batch, reads),
        }


def main() -> None:
    """Measure, print, and write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", default="lite0")
    parser.add_argument("--size", type=int, default=417)
    parser.add_argument("--images", type=int, default=48, help="images in the bank")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--reads", type=int, default=100_000, help="images read to watch the memory")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--small", action="store_true", help="a few seconds, to see that it runs")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    if options.small:
        options.encoder, options.size, options.images, options.batch, options.rounds, options.reads = (
            "tiny",
            65,
            8,
            4,
            2,
            200,
        )
    torch.set_num_threads(options.threads)
    keys = ("encoder", "size", "images", "batch", "rounds", "reads")
    figures = measure(*(getattr(options, key) for key in keys))
    about = {key: getattr(options, key) for key in (*keys, "threads")}
    about |= {"torch": str(torch.__version__), "load": os.getloadavg()[0]}
    setting = f"{options.encoder} at {options.size} px, batch {options.batch}"
    print(f"{setting}, {options.threads} threads, load {about['load']:.1f}")
    print(f"computing {figures['computing_ms']:8.1f} ms\nreading   {figures['reading_ms']:8.1f} ms")
    print(f"ratio     {100 * figures['ratio']:8.2f} % (of processor time {100 * figures['cpu_ratio']:.2f} %)")
    for reads, memory in figures["memory_mb"]:
        print(f"after {reads:>7} reads {'?' if memory is None else f'{memory:.0f}'} MB")
    if options.json:
        write_json(options.json, {**about, **figures})


if __name__ == "__main__":
    main()
