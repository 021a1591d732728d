"""Confusion between background, known and new classes over some tasks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gfss.data.catalog import VOID
from gfss.data.episodes import Task
from gfss.evaluation.protocols import show_images
from gfss.features.episodes import EpisodeSampler
from gfss.methods.base import Method
from gfss.models.ops.upsample import class_map

GROUPS = ("background", "known", "new")


@torch.no_grad()
def group_confusion(
    source: EpisodeSampler, methods: Sequence[Method], tasks: Sequence[Task]
) -> dict[str, list[list[float]]]:
    """For every method the share in percent of each group's pixels (rows) that is seen as each group (columns)."""
    base = len(source.fold.base)
    counts = {method.name: torch.zeros(len(GROUPS), len(GROUPS), dtype=torch.int64) for method in methods}
    for drawn in tasks:
        support = source.support(drawn, source.fold)
        shown = [image for group in drawn.supports for image in group]
        features = source.store.features(drawn.queries)
        truth = source.store.labels(drawn.queries, source.fold.label_table(drawn.novel))
        for method in methods:
            show_images([method], source, shown)
            method.learn(support)
            show_images([method], source, drawn.queries)
            predicted = class_map(method.scores(features), (truth.shape[-2], truth.shape[-1]))
            counts[method.name] += count_groups(predicted, truth, base)
    return {name: _shares(count) for name, count in counts.items()}


def count_groups(predicted: Tensor, truth: Tensor, base: int) -> Tensor:
    """Pixels by true group (rows) and seen group (columns), (3, 3); void left out.

    >>> count_groups(torch.tensor([[0, 2, 3]]), torch.tensor([[0, 1, 255]]), base=2).tolist()
    [[1, 0, 0], [0, 1, 0], [0, 0, 0]]
    """
    valid = truth != VOID
    rows, columns = (_group(labels[valid], base) for labels in (truth, predicted))
    return torch.bincount(3 * rows + columns, minlength=9).view(3, 3)


def _group(labels: Tensor, base: int) -> Tensor:
    return (labels > 0).long() + (labels > base).long()


def _shares(counts: Tensor) -> list[list[float]]:
    return (100 * counts / counts.sum(dim=1, keepdim=True).clamp_min(1)).tolist()
