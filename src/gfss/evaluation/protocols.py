"""How methods are evaluated: the paired protocol (the paper's) and the joint one.

All methods of a call see exactly the same tasks, and each task's features are read once for all of them. Tasks are
worked on side by side, one per torch thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import torch

from gfss.common.errors import GfssError, unknown
from gfss.common.progress import Bar
from gfss.common.threads import CopyPool, parallel_map
from gfss.data.catalog import Fold
from gfss.data.datasets.base import MIN_AREA
from gfss.data.episodes import Task, joint_task, task
from gfss.evaluation.metrics import METRICS, image_counts
from gfss.evaluation.partial_results import Kept
from gfss.evaluation.results import MethodResult, Outcome
from gfss.features.sampler import EpisodeSampler
from gfss.features.support import Query
from gfss.methods.base import Method
from gfss.models.ops.upsample import class_map

ProtocolName = Literal["paired", "joint"]
CHUNK = 8  # queries that are scored at once; with more, memory is the bottleneck


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
