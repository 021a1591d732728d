"""Failure cases: the worst queries of a method, each with what went wrong, by counting pixels.

The object was *missed* (seen as background), *confused* (seen as a known class), or the novel class *flooded* the image
(claimed pixels that are not its own); the largest of the three is the reason.
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
from gfss.features.episodes import EpisodeSampler
from gfss.methods.base import Method
from gfss.methods.prototypes import masked_average
from gfss.models.ops.upsample import class_map, mask_shares

WORST = 3  # queries of a task that may be shown
Reason = Literal["missed", "confused", "flooded"]


@dataclass(frozen=True)
class Failure:
    """The worst query of a task.

    Attributes:
        task: the task.
        query: place of the query among the task's queries.
        iou: of the novel class in this query, in percent.
        missed: pixels of the object that are seen as background.
        confused: pixels of the object that are seen as the base class that took most of it.
        taken_by: that class, empty if none took any.
        flooded: pixels outside the object that are seen as the novel class.
        area: pixels of the object.
        edge_share: share of the object's outline that lies on the edge of the image.
        similarity: cosine between the object's mean feature and the support's.
    """

    task: Task
    query: int
    iou: float
    missed: int
    confused: int
    taken_by: str
    flooded: int
    area: int
    edge_share: float
    similarity: float

    @property
    def reason(self) -> Reason:
        """What cost most pixels."""
        counts: dict[Reason, int] = {"missed": self.missed, "confused": self.confused, "flooded": self.flooded}
        return max(counts, key=lambda reason: counts[reason])

    def sentence(self, name: str) -> str:
        """In words; ``name`` is the novel class."""
        area = max(1, self.area)
        what = {
            "missed": f"{100 * self.missed / area:.0f} % of the object seen as background",
            "confused": f"{100 * self.confused / area:.0f} % of the object seen as {self.taken_by}",
            "flooded": f"{self.flooded / area:.1f} times the object's area wrongly claimed",
        }[self.reason]
        return (
            f"{name}, IoU {self.iou:.1f}: {self.reason} ({what}; {100 * self.edge_share:.0f} % of its outline on the "
            f"edge, similarity to the support {self.similarity:.2f})"
        )


@torch.no_grad()
def worst_tasks(source: EpisodeSampler, method: Method, tasks: Sequence[Task], count: int) -> list[Failure]:
    """The worst queries by the novel class's IoU, novel classes taking turns, no image twice."""
    judged: dict[int, list[Failure]] = {}
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
        lowest = sorted(range(len(ious)), key=ious.__getitem__)[:WORST]
        found = [_failure(source, drawn, 2 * place, predicted[place], truth[place]) for place in lowest]
        judged.setdefault(drawn.novel[0], []).extend(found)
    ranked = [sorted(group, key=lambda failure: failure.iou) for group in judged.values()]
    chosen: dict[int, Failure] = {}
    for turn in range(max(map(len, ranked), default=0)):
        for failure in (group[turn] for group in ranked if turn < len(group)):
            if len(chosen) < count:
                chosen.setdefault(failure.task.queries[failure.query], failure)
    return list(chosen.values())


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
    seen = torch.bincount(predicted[mask].long(), minlength=novel + 1)
    taker = int(seen[1:novel].argmax())
    taken = int(seen[1 + taker])
    return Failure(
        task=drawn,
        query=query,
        iou=_iou(predicted, truth, novel),
        missed=int(seen[0]),
        confused=taken,
        taken_by=source.dataset.classes[source.fold.base[taker] - 1] if taken else "",
        flooded=int(((predicted == novel) & ~mask & (truth != VOID)).sum()),
        area=int(mask.sum()),
        edge_share=edge_share(mask, _image_area(truth)),
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
