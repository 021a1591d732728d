"""What one method achieved so far, and how long it took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gfss.evaluation.metrics import Metric


@dataclass
class Result:
    """Outcome of one method.

    Attributes:
        metrics: by name, over all tasks.
        seconds: time spent learning, segmenting and counting.
    """

    metrics: dict[str, Metric]
    seconds: dict[str, float] = field(default_factory=lambda: {"learn": 0.0, "segment": 0.0, "count": 0.0})

    def __add__(self, other: Result) -> Result:
        """The outcome over the tasks of both."""
        return Result(
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
