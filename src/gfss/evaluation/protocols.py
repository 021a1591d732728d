"""How methods are evaluated: the paired protocol (the paper's) and the joint one.

All methods of a call see exactly the same tasks, and each task's features are read once for all of them. Tasks are
worked on side by side, one per torch thread.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from gfss.common.devices import CopyPool, parallel_map
from gfss.common.errors import GfssError, unknown
from gfss.common.files import cache_folder, program_hash, read_json, write_json
from gfss.common.progress import Bar
from gfss.data.catalog import VOID
from gfss.data.datasets.base import MIN_AREA
from gfss.data.episodes import Fold, Task, joint_task, task
from gfss.evaluation.metrics import METRICS, Metric, image_counts
from gfss.features.episodes import EpisodeSampler, Query
from gfss.methods.base import Method
from gfss.models.ops.upsample import class_map

PARTS = ("learn", "segment", "count")
KEEP_SECONDS = 60
CODE = ("common", "data", "models", "features", "methods", "training", "evaluation")  # what results could depend on
ProtocolName = Literal["paired", "joint"]
CHUNK = 8  # queries that are scored at once; with more, memory is the bottleneck


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


@dataclass
class Kept:
    """Results of the first tasks of an evaluation, in a file.

    Attributes:
        path: named by all that the results depend on (:func:`kept_results`).
    """

    path: Path
    _written: float = field(default_factory=time.monotonic)
    _most: int = 0

    def restore(self, results: dict[str, MethodResult], most: int) -> int:
        """Fill in what is known of the first tasks; how many they are, none if the file is torn or knows too many.

        Args:
            most: tasks that are asked for.
        """
        self._most = most
        if not self.path.exists():
            return 0
        known = deepcopy(results)
        try:
            content = read_json(self.path)
            done = int(content["tasks"])
            for name, result in known.items():
                result.restore(content["results"][name])
        except (GfssError, KeyError, TypeError, ValueError, RuntimeError):
            return 0
        if done > most:
            return 0
        results.update(known)
        return done

    def keep(self, results: Mapping[str, MethodResult], tasks: int, complete: bool = False) -> None:
        """Write the results of the first tasks, at most once a minute unless they are complete.

        A file that knows more tasks stays: another evaluation of the same may go on, or be taken up later.
        """
        if complete or time.monotonic() - self._written >= KEEP_SECONDS:
            if self._known() < tasks:
                states = {name: result.state() for name, result in results.items()}
                write_json(self.path, {"tasks": tasks, "results": states})
            self._written = time.monotonic()

    def remove(self) -> None:
        """The records are written; another evaluation computes everything again."""
        if self._known() <= self._most:
            self.path.unlink(missing_ok=True)

    def _known(self) -> int:
        """Tasks that the file knows; 0 if there is none, or a torn one."""
        if not self.path.exists():
            return 0
        try:
            return int(read_json(self.path)["tasks"])
        except (GfssError, KeyError, TypeError, ValueError):
            return 0


def kept_results(about: Mapping[str, Any], most: int = 0) -> Kept:
    """Where the results of an evaluation are kept until it is complete.

    Args:
        about: everything that they depend on but the program itself and the number of tasks, as JSON: what was meant
            for many tasks may be finished with fewer.
        most: tasks that are asked for, where results are only removed.
    """
    key = hashlib.sha256(json.dumps([about, program_hash(*CODE)], sort_keys=True).encode()).hexdigest()[:20]
    return Kept(cache_folder("evaluations") / f"{key}.json", _most=most)


def draw_tasks(
    source: EpisodeSampler,
    protocol: ProtocolName,
    shots: int,
    count: int,
    seed: int,
    supports: EpisodeSampler | None = None,
    support_area: int = MIN_AREA,
) -> list[Task]:
    """The tasks of a protocol: ``count`` paired tasks, or ``count`` support draws of the joint protocol.

    Args:
        supports: in the joint protocol, the split that supports are drawn from if it is another one.
        support_area: in the joint protocol, the least area of a class in its supports.
    """
    other = supports.dataset if supports else None
    if protocol == "paired":
        return [task(source.dataset, source.fold, seed, i, shots) for i in range(count)]
    if protocol == "joint":
        return [joint_task(source.dataset, source.fold, seed, i, shots, other, support_area) for i in range(count)]
    raise unknown("protocol", protocol, ("paired", "joint"))


def evaluate_methods(
    methods: Sequence[Method],
    source: EpisodeSampler,
    tasks: Sequence[Task],
    supports: EpisodeSampler | None = None,
    kept: Kept | None = None,
) -> dict[str, MethodResult]:
    """Run methods over tasks.

    Args:
        methods: with different names.
        source: queries come from here, supports too unless ``supports`` is given.
        tasks: from :func:`draw_tasks`.
        kept: where the results so far are kept in case of an interruption; at the end all of them, until the caller
            has written its records.
    """
    if len({method.name for method in methods}) != len(methods):
        raise GfssError("two methods have the same name; name each method once")
    fold, dataset = source.fold, source.dataset
    names = [dataset.classes[c - 1] for c in fold.base], [dataset.classes[c - 1] for c in fold.novel]
    results = {
        method.name: MethodResult({key: metric(*names) for key, metric in METRICS.items()}) for method in methods
    }
    done = kept.restore(results, len(tasks)) if kept else 0
    copies = CopyPool(methods, len(tasks) - done, source.store.device)

    def work(drawn: Task) -> dict[str, Outcome]:
        with copies.one() as own, torch.no_grad():
            return _evaluate_task(own, source, supports or source, drawn, fold)

    with Bar("tasks", len(tasks), done) as bar:
        outcomes = parallel_map(work, tasks[done:], source.store.device)
        for number, (drawn, outcome) in enumerate(zip(tasks[done:], outcomes, strict=True), start=done + 1):
            for name, result in results.items():
                result.update(outcome[name], [dataset.classes[c - 1] for c in drawn.novel])
            if kept:
                kept.keep(results, number)
            bar.advance()
    if kept:
        kept.keep(results, len(tasks), complete=True)
    return results


def _evaluate_task(
    methods: Sequence[Method], source: EpisodeSampler, supports: EpisodeSampler, drawn: Task, fold: Fold
) -> dict[str, Outcome]:
    support = supports.support(drawn, fold)
    show_images(methods, supports, [image for group in drawn.supports for image in group])
    outcomes = {method.name: Outcome() for method in methods}
    for method in methods:
        with outcomes[method.name].timed("learn"):
            method.learn(support)
    for images, query in _chunks(source, drawn, fold):
        show_images(methods, source, images)
        for method in methods:
            outcome = outcomes[method.name]
            method.void = query.labels == VOID if method.reads_void else None
            with outcome.timed("segment"):
                scores = method.scores(query.features)
            if scores.isnan().any():
                raise GfssError(f"method '{method.name}' produced NaN scores")
            with outcome.timed("count"):
                predicted = class_map(scores, (query.labels.shape[-2], query.labels.shape[-1]))
                outcome.counts.append(image_counts(predicted, query.labels, scores.shape[1]).cpu())
    return outcomes


def show_images(methods: Sequence[Method], source: EpisodeSampler, images: Sequence[int]) -> None:
    """Show those methods that read images the ones that their next call is about."""
    readers = [method for method in methods if method.reads_images]
    pixels = source.images(images) if readers else None
    for method in readers:
        assert pixels is not None
        method.show(pixels)


def _chunks(source: EpisodeSampler, drawn: Task, fold: Fold) -> Iterator[tuple[Sequence[int], Query]]:
    table = fold.label_table(drawn.novel)
    for start in range(0, len(drawn.queries), CHUNK):
        images = drawn.queries[start : start + CHUNK]
        yield images, Query(source.store.features(images), source.store.labels(images, table))
