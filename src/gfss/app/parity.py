"""How an exported model differs from the model itself, and how fast both are."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from gfss.app.exported import ExportedModel
from gfss.app.inputs import as_image
from gfss.data.images import mirrored_image

if TYPE_CHECKING:
    from gfss.app.segmenter import Segmenter

MOST_IMAGES = 32
OWN, FLOAT, FILE = "gfss", "onnxruntime in single precision", "this file"


@dataclass(frozen=True)
class Parity:
    """An exported model beside the model itself.

    Attributes:
        images: how many were compared.
        differing: share of their pixels that have another class.
        iou: mean IoU of the masks with the model's own, over the classes in either.
        milliseconds: of the network for one image, median, by what runs it.
    """

    images: int
    differing: float
    iou: float
    milliseconds: Mapping[str, float]

    @property
    def lines(self) -> list[str]:
        """The comparison in words."""
        times = ", ".join(f"{time:.0f} ms by {name}" for name, time in self.milliseconds.items())
        faster = self.milliseconds[FLOAT] / self.milliseconds[FILE]
        return [
            f"{self.images} images: {self.differing:.2%} of the pixels have another class than by gfss itself, "
            f"IoU {100 * self.iou:.1f} with its masks",
            f"an image takes {times}, {torch.get_num_threads()} thread(s): {faster:.2f} x the speed of onnxruntime",
        ]


def measure_parity(
    model: Segmenter,
    exported: ExportedModel,
    baseline: ExportedModel,
    images: Sequence[Path],
    clock: Callable[[], float] = time.perf_counter,
) -> Parity:
    """Compare an exported model with the model on some images, at most 32; all run in turn on each.

    Args:
        baseline: the model as ONNX in single precision, whose time is measured as well.
        clock: seconds; ``time.process_time`` does not count what other programs take.
    """
    runs: dict[str, Callable[[np.ndarray], Tensor]] = {
        OWN: lambda square: model.network.score_map(square, model.state),
        FLOAT: baseline.score_map,
        FILE: exported.score_map,
    }
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    counts = np.zeros((len(model.classes), len(model.classes)), dtype=np.int64)
    for path in images[:MOST_IMAGES]:
        square = mirrored_image(as_image(path), exported.size)
        for name, run in runs.items():
            start = clock()
            run(square)
            seconds[name].append(clock() - start)
        own, other = model.segment(path).mask, exported.segment(path).mask
        pairs = own.astype(np.int64).ravel() * len(counts) + other.ravel()
        counts += np.bincount(pairs, minlength=counts.size).reshape(counts.shape)
    same, union = counts.diagonal(), counts.sum(axis=0) + counts.sum(axis=1) - counts.diagonal()
    return Parity(
        images=len(images[:MOST_IMAGES]),
        differing=1 - float(same.sum() / counts.sum()),
        iou=float((same[union > 0] / union[union > 0]).mean()),
        milliseconds={name: 1000 * float(np.median(times)) for name, times in seconds.items()},
    )
