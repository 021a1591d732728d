"""Scoring the predictions of any network on the tasks of a protocol; the result is a record like all others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from gfss.common.errors import GfssError
from gfss.common.files import versions
from gfss.common.progress import track
from gfss.data.task_set import TaskImages, TaskSet
from gfss.evaluation.metrics import METRICS, Figures, image_counts
from gfss.evaluation.protocols import MethodResult, Outcome
from gfss.evaluation.records import MetricName, Record, Run, peak_memory_mb, per_task

Predict = Callable[[TaskImages], Iterable[np.ndarray | Tensor]]


class Scorer:
    """Takes the label maps of one task after another, in any order, and gives figures and a record.

    Args:
        tasks: from :func:`gfss.protocols.paired` or :func:`gfss.protocols.joint`.
    """

    def __init__(self, tasks: TaskSet) -> None:
        if tasks.kind == "episode":
            raise GfssError("training episodes have no record; score the tasks of protocols.paired or protocols.joint")
        self.tasks = tasks
        self._counts: dict[int, Tensor] = {}
        self._start = time.perf_counter()

    def add(self, task: TaskImages, predictions: Iterable[np.ndarray | Tensor]) -> None:
        """Take the predictions of a task; a generator is read map by map.

        Args:
            predictions: for every query in order its labels (height, width): 0 background, base classes, novel
                classes, as in ``task.classes``; in the size of ``query.mask()`` or of the image file.
        """
        classes, counts = len(task.classes), []
        given = iter(predictions)
        for number, query in enumerate(task.queries):
            if (one := next(given, None)) is None:
                raise GfssError(f"task {task.number} has {len(task.queries)} queries, but {number} predictions came")
            labels = query.fit(_checked(one, query.id, classes))
            counts.append(image_counts(torch.from_numpy(labels)[None], torch.from_numpy(query.mask())[None], classes))
        if next(given, None) is not None:
            raise GfssError(f"task {task.number} has {len(task.queries)} queries, but more predictions came")
        self._counts[task.number] = torch.cat(counts)

    def figures(self) -> dict[MetricName, Figures]:
        """Figures of the tasks so far under both metrics, in percent."""
        return {cast(MetricName, key): metric.summary() for key, metric in self._result().metrics.items()}

    def record(
        self, method: str, encoder: str = "own", spec: Mapping[str, Any] | None = None, artifacts: Iterable[str] = ()
    ) -> Record:
        """The record of the tasks so far, which have to be the first ones.

        Args:
            method: name of the network, for tables.
            encoder: name of its encoder, for tables.
            spec: settings that the result depends on; tables keep records apart that differ in them.
            artifacts: identities of what it was made with.
        """
        done = sorted(self._counts)
        if not done or done != list(range(len(done))):
            raise GfssError(
                f"a record needs the first tasks without gaps, but it has {done[:5]} ...; add tasks 0, 1, 2 ..."
            )
        tasks, result = self.tasks, self._result()
        source = tasks.learn_from or tasks.dataset
        drawn = [tasks.draw(number) for number in done]
        return Record(
            data=tasks.data,
            fold=tasks.fold_name,
            shots=tasks.shots,
            encoder=encoder,
            method=method,
            protocol=cast(Any, tasks.kind),
            tasks=len(done),
            seed=tasks.seed,
            spec=dict(
                {"size": tasks.size, "supports": "train" if tasks.learn_from else "val"} if spec is None else spec
            ),
            artifacts=list(artifacts),
            base_classes=list(tasks.base_classes),
            novel_classes=list(tasks.novel_classes),
            supports=[[source.ids[i] for group in task.supports for i in group] for task in drawn],
            figures={cast(MetricName, key): metric.summary() for key, metric in result.metrics.items()},
            per_task=per_task(result.metrics, done),
            run=Run(
                seconds={"all methods": time.perf_counter() - self._start},
                peak_memory_mb=peak_memory_mb(),
                versions=versions(),
            ),
        )

    def _result(self) -> MethodResult:
        names = self.tasks.base_classes, self.tasks.novel_classes
        result = MethodResult({key: metric(*names) for key, metric in METRICS.items()})
        for number in sorted(self._counts):
            drawn = self.tasks.draw(number)
            novel = [self.tasks.dataset.classes[c - 1] for c in drawn.novel]
            result.update(Outcome([self._counts[number]]), novel)
        return result


def _checked(prediction: np.ndarray | Tensor, name: str, classes: int) -> np.ndarray:
    """A prediction as an array, if it is a map of labels."""
    labels = prediction.detach().cpu().numpy() if isinstance(prediction, Tensor) else np.asarray(prediction)
    if labels.dtype.kind not in "iub":
        raise GfssError(f"the prediction for {name} has type {labels.dtype}; give labels (integers), not scores")
    if labels.size and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise GfssError(
            f"the prediction for {name} has labels {labels.min()} to {labels.max()}, but its task has 0 to "
            f"{classes - 1}; TaskImages.classes names them"
        )
    return labels


def score(
    tasks: TaskSet, predict: Predict, method: str, encoder: str = "own", spec: Mapping[str, Any] | None = None
) -> Record:
    """Run a network over all tasks of a set.

    Args:
        predict: is called with every task and gives the label map of each of its queries, in order; see
            :meth:`Scorer.add`.
        method: name of the network; ``encoder`` and ``spec`` as in :meth:`Scorer.record`.
    """
    scorer = Scorer(tasks)
    for task in track(tasks, "tasks", total=len(tasks)):
        scorer.add(task, predict(task))
    return scorer.record(method, encoder, spec)
