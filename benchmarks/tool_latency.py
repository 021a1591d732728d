"""What segmenting and teaching cost, side by side with the encoder's own forward pass.

The encoder is timed as it is built and in the fused form (batch norm folded in) that the tool runs.

    python benchmarks/tool_latency.py --json latency.json

Without ``--model`` the head has random weights: the time does not depend on their values.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import gfss
from gfss.app.network import Network
from gfss.app.segmenter import Segmenter
from gfss.common.files import write_json
from gfss.data.catalog import PASCAL_CLASSES
from gfss.data.images import square_image, to_tensor
from gfss.models.base_model import BaseCard, BaseModel, PyramidHead
from gfss.models.encoders import build_encoder
from gfss.models.encoders.base import fused
from gfss.training.base import BaseOptions

IMAGE = (375, 500)  # height and width of a usual PASCAL photograph
SHOTS = 5  # images of the longer lesson


def untrained_model(size: int) -> Segmenter:
    """A model of the embedded one's form: lite0, 20 base classes."""
    encoder = build_encoder("lite0")
    options = BaseOptions()
    channels = {name: encoder.channels[name] for name in options.levels}
    head = PyramidHead(channels, len(PASCAL_CLASSES) + 1, options.pyramid, options.width, options.separable)
    card = BaseCard("lite0", encoder.stride, encoder.weights_hash(), False, size, PASCAL_CLASSES, (), "none", None)
    return Segmenter(Network(BaseModel(encoder, head, card)))


def interleaved(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median time in milliseconds of each; they take turns, so that other load on the machine hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append(1000 * (time.perf_counter() - start))
    return {name: statistics.median(values[1:]) for name, values in times.items()}


def main() -> None:
    """Measure, print, write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="name or folder of a model; a random lite0 model if left out")
    parser.add_argument("--size", type=int, default=417, help="input side of the random model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    model = gfss.load(options.model) if options.model else untrained_model(options.size)
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (*IMAGE, 3), dtype=np.uint8)
    mask = np.zeros(IMAGE, dtype=np.uint8)
    mask[100:250, 150:350] = 1
    encoder = model.network.base.encoder
    fast = fused(encoder)
    square = to_tensor(square_image(image, model.network.size)[None])
    last = square.contiguous(memory_format=torch.channels_last)

    def forward() -> None:
        with torch.inference_mode():
            encoder(square)

    def fused_forward() -> None:
        with torch.inference_mode():
            fast(last)

    shots = [rng.integers(0, 256, (*IMAGE, 3), dtype=np.uint8) for _ in range(SHOTS)]

    def teach() -> None:
        model.teach("new class", image, mask)
        model.forget("new class")

    def teach_more() -> None:
        model.teach("new class", shots, [mask] * SHOTS)
        model.forget("new class")

    model.teach("known by now", image[::-1].copy(), mask[::-1].copy())
    runs = {"encoder": forward, "fused": fused_forward, "segment": lambda: model.segment(image)}
    segmenting = interleaved(runs, options.rounds)
    model.forget("known by now")
    runs = {"encoder": forward, "teach": teach, "teach more": teach_more}
    teaching = interleaved(runs, max(3, options.rounds // 3))
    scale = 2**20 if sys.platform == "darwin" else 2**10
    figures = {
        "encoder_ms": segmenting["encoder"],
        "fused_encoder_ms": segmenting["fused"],
        "segment_ms": segmenting["segment"],
        "segment_per_encoder": segmenting["segment"] / segmenting["encoder"],
        "segment_per_fused_encoder": segmenting["segment"] / segmenting["fused"],
        "teach_ms": teaching["teach"],
        f"teach_{SHOTS}_images_ms": teaching["teach more"],
        "teach_per_encoder": teaching["teach"] / teaching["encoder"],
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale,
        "load": os.getloadavg()[0],
    }
    for name, value in figures.items():
        print(f"{name:>26} {value:8.2f}")
    if options.json:
        write_json(options.json, {"torch": str(torch.__version__), "threads": options.threads, **figures})


if __name__ == "__main__":
    main()
