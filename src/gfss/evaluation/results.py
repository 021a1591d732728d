"""What one method achieved, in one task and in all so far, and how long it took."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gfss.evaluation.metrics import Metric

PARTS = ("learn", "segment", "count")


def _no_time() -> dict[str, float]:
    return dict.fromkeys(PARTS, 0.0)


@dataclass
class Outcome:
    """Of one method in one task.

    Attributes:
        counts: results of :func:`gfss.evaluation.metrics.image_counts`, all images of the task together.
        seconds: time spent learning, segmenting and counting.
    """

    counts: list[Tensor] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=_no_time)

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Add the time of a block to a part."""
        start = time.perf_counter()
        yield
        if torch.cuda.is_initialized():  # what a GPU was asked for is done
            torch.cuda.synchronize()
        self.seconds[part] += time.perf_counter() - start


@dataclass
class MethodResult:
    """Outcome of one method.

    Attributes:
        metrics: by name, over all tasks.
        seconds: time spent learning, segmenting and counting.
    """

    metrics: dict[str, Metric]
    seconds: dict[str, float] = field(default_factory=_no_time)

    def update(self, outcome: Outcome, novel: Sequence[str]) -> None:
        """Take in a task; ``novel`` are the names of its novel classes."""
        for metric in self.metrics.values():
            metric.update(torch.cat(outcome.counts), novel)
        self.seconds = {part: seconds + outcome.seconds[part] for part, seconds in self.seconds.items()}

    def __add__(self, other: MethodResult) -> MethodResult:
        """The outcome over the tasks of both."""
        return MethodResult(
            {key: metric + other.metrics[key] for key, metric in self.metrics.items()},
            {part: seconds + other.seconds[part] for part, seconds in self.seconds.items()},
        )

    def state(self) -> dict[str, Any]:
        """As JSON, without loss."""
        return {"metrics": {key: metric.state() for key, metric in self.metrics.items()}, "seconds": self.seconds}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state` gave."""
        for key, metric in self.metrics.items():
            metric.restore(state["metrics"][key])
        self.seconds = {part: float(state["seconds"][part]) for part in self.seconds}
