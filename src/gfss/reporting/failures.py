"""Failure cases: the worst tasks of a method, each with the likely reason by measurable criteria.

The paper names three reasons: only part of the object is in the image, the object looks unlike the support's
(variance inside the class), and a known class that looks alike takes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from gfss.data.catalog import VOID
from gfss.data.episodes import Task
from gfss.features.sampler import EpisodeSampler
from gfss.methods.base import Method
from gfss.models.fusion import mask_shares, masked_average
from gfss.models.ops.upsample import class_map

Reason = Literal["partial object", "confusable class", "intra-class variance"]
CUT_OFF = 0.12  # share of the outline on the image's edge from which an object counts as cut off
TAKEN = 0.5  # share of the missed pixels that one base class must have taken to count as confusable


@dataclass(frozen=True)
class Failure:
    """The worst query of a task.

    Attributes:
        task: the task.
        query: place of the query among the task's queries.
        iou: of the novel class in this query, in percent.
        edge_share: share of the object's outline that lies on the edge of the image.
        taken_by: base class that took most of the missed pixels, empty if none did.
        taken_share: its share of the missed pixels.
        similarity: cosine between the object's mean feature and the support's.
    """

    task: Task
    query: int
    iou: float
    edge_share: float
    taken_by: str
    taken_share: float
    similarity: float

    @property
    def reason(self) -> Reason:
        """Cut off first, then taken by a known class; what is neither looks unlike its support."""
        if self.edge_share >= CUT_OFF:
            return "partial object"
        return "confusable class" if self.taken_share >= TAKEN else "intra-class variance"

    def sentence(self, name: str) -> str:
        """In words; ``name`` is the novel class."""
        taken = f"{100 * self.taken_share:.0f} % of the missed pixels went to {self.taken_by}" if self.taken_by else ""
        parts = [
            f"{100 * self.edge_share:.0f} % of the outline on the edge",
            taken or "no known class took it",
            f"similarity to the support {self.similarity:.2f}",
        ]
        return f"{name}, IoU {self.iou:.1f}: {self.reason} ({', '.join(parts)})"


@torch.no_grad()
def worst_tasks(source: EpisodeSampler, method: Method, tasks: Sequence[Task], count: int) -> list[Failure]:
    """The worst query of each of the worst tasks, by the novel class's mean IoU over its own queries."""
    judged: list[tuple[float, Failure]] = []
    for drawn in tasks:
        method.learn(source.support(drawn, source.fold))
        own = range(0, len(drawn.queries), 2)  # the first of each pair shows the novel class
        images = [drawn.queries[i] for i in own]
        features = source.store.features(images)
        truth = source.store.labels(images, source.fold.label_table(drawn.novel))
        size = (truth.shape[-2], truth.shape[-1])
        predicted = class_map(method.scores(features), size)
        novel = len(source.fold.base) + 1
        ious = [_iou(p, t, novel) for p, t in zip(predicted, truth, strict=True)]
        lowest = min(range(len(ious)), key=ious.__getitem__)
        judged.append((sum(ious) / len(ious), _failure(source, drawn, 2 * lowest, predicted[lowest], truth[lowest])))
    judged.sort(key=lambda pair: pair[0])
    return [failure for _, failure in judged[:count]]


def edge_share(mask: Tensor, inside: Tensor) -> float:
    """Share of a mask's outline that lies on the edge of the image.

    Args:
        mask: object, (height, width) bool.
        inside: pixels of the image itself, without padding, (height, width) bool.
    """
    outline = mask & (_eroded(mask) == 0)
    edge = inside & (_eroded(inside) == 0)
    return float((outline & edge).sum()) / max(1, int(outline.sum()))


def _failure(source: EpisodeSampler, drawn: Task, query: int, predicted: Tensor, truth: Tensor) -> Failure:
    novel = len(source.fold.base) + 1
    mask = truth == novel
    missed = predicted[mask & (predicted != novel)].long()
    base_counts = torch.bincount(missed, minlength=novel)[1:novel]
    taker = int(base_counts.argmax())
    share = float(base_counts[taker]) / max(1, len(missed))
    class_id = source.fold.base[taker]
    return Failure(
        task=drawn,
        query=query,
        iou=_iou(predicted, truth, novel),
        edge_share=edge_share(mask, _image_area(truth)),
        taken_by=source.dataset.classes[class_id - 1] if share > 0 else "",
        taken_share=share,
        similarity=_similarity(source, drawn, query, truth),
    )


def _similarity(source: EpisodeSampler, drawn: Task, query: int, truth: Tensor) -> float:
    """Cosine between mean features inside the object, support against query."""
    support = source.support(drawn, source.fold)
    maps = source.store.features([drawn.queries[query]]).bottleneck
    novel, size = len(source.fold.base) + 1, (maps.shape[-2], maps.shape[-1])
    theirs = masked_average(support.features.bottleneck, mask_shares(support.labels, novel, size))
    own = masked_average(maps, mask_shares(truth[None], novel, size))
    return float(F.cosine_similarity(theirs, own, dim=0))


def _iou(predicted: Tensor, truth: Tensor, label: int) -> float:
    valid = truth != VOID
    ours, true = (predicted == label) & valid, truth == label
    return 100 * float((ours & true).sum()) / max(1, int((ours | true).sum()))


def _image_area(truth: Tensor) -> Tensor:
    """The rectangle that is not padding: padding is void, at the bottom and at the right."""
    seen = truth != VOID
    rows, columns = seen.any(dim=1).nonzero(), seen.any(dim=0).nonzero()
    inside = torch.zeros_like(seen)
    if len(rows):
        inside[: int(rows.max()) + 1, : int(columns.max()) + 1] = True
    return inside


def _eroded(mask: Tensor) -> Tensor:
    """1 where a pixel and all its neighbours are in the mask; beyond the map nothing is."""
    padded = F.pad(mask[None, None].float(), (1, 1, 1, 1))
    return -F.max_pool2d(-padded, 3, stride=1)[0, 0]
