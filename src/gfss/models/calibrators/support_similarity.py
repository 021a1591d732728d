"""Evidence about a query: what the support set says for every novel class, and what the query says itself.

The novel classifier is fitted on a handful of images and knows nothing but its own answer. Three things that it cannot
say are kept in a :class:`SupportMemory` and compared with a query without any training:

* nearness: is a position more like the object than like anything else in the support images;
* likeness: how much does it look like the average of the object;
* confusion: does the base classifier answer here as it answers on the object (cows that it takes for horses).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from gfss.data.catalog import VOID
from gfss.models.calibrators.self_similarity import cohesion
from gfss.models.fusion import mask_shares
from gfss.models.pspnet import Features

NEAREST = 5  # positions of the object whose similarities are averaged
OBJECT_SHARE, REST_SHARE = 0.5, 0.9  # share of a position that must be object, or anything else
POSITIONS_PER_IMAGE = 96  # of the object and of the rest; evenly spaced ones where there are more
MOST_POSITIONS = 256  # of all support images together
CHUNK = 8  # queries compared at once


@dataclass(frozen=True)
class SupportMemory:
    """What is kept of a support set, one entry per novel class; vectors have length one.

    Attributes:
        features: names of the maps that are compared.
        object: per class and map, vectors of the object's positions (positions, channels).
        rest: likewise of everything else in the support images.
        average: likewise one vector, the object's average (channels,).
        confusion: what the base classifier says on the object, (novel, base + 1).
    """

    features: tuple[str, ...]
    object: tuple[tuple[Tensor, ...], ...]
    rest: tuple[tuple[Tensor, ...], ...]
    average: tuple[tuple[Tensor, ...], ...]
    confusion: Tensor

    @property
    def novel(self) -> int:
        """Number of novel classes."""
        return len(self.object)

    def of(self, k: int, m: int) -> tuple[Tensor, Tensor, Tensor]:
        """Vectors of novel class ``k`` in map ``m``: object, rest, average."""
        return self.object[k][m], self.rest[k][m], self.average[k][m]


class Evidence(NamedTuple):
    """What a calibrator may know of queries besides their fused scores.

    Attributes:
        shared: one softmax over the scores of all classes, (queries, classes, h, w).
        support: what the support set says for every novel class, (queries, novel, maps, h, w); see :func:`compare`.
        cohesion: what the query says for every class, (queries, classes, maps, h, w); see
            :mod:`gfss.models.calibrators.self_similarity`.
    """

    shared: Tensor
    support: Tensor
    cohesion: Tensor


def gather(memory: SupportMemory, query: Features, shared: Tensor) -> Evidence:
    """All evidence about queries whose scores, softmaxed over all classes, are ``shared``."""
    return Evidence(shared, compare(memory, query), cohesion(query, shared, memory.features))


def evidence_channels(maps: int) -> int:
    """What the support says for a novel class: nearness and likeness in each of so many feature maps, and confusion."""
    return 2 * maps + 1


def remember(features: Features, labels: Tensor, novel: Sequence[int], names: Sequence[str]) -> SupportMemory:
    """Memory of a support set.

    Args:
        features: of all support images.
        labels: (supports, height, width).
        novel: labels of the novel classes.
        names: maps to compare.
    """
    maps = [features.unit(name).transpose(0, 1).flatten(1).T for name in names]
    void = mask_shares(labels, VOID, features.size).flatten()
    answers = features.base.softmax(dim=1).transpose(0, 1).flatten(1)  # (base + 1, positions)
    object_rows, rest_rows, averages, confusion = [], [], [], []
    most = most_positions(len(labels))
    for label in novel:
        share = mask_shares(labels, label, features.size).flatten()
        inside = evenly((share >= min(OBJECT_SHARE, 0.9 * float(share.max()))).nonzero()[:, 0], most)
        outside = evenly((1 - share - void > REST_SHARE).nonzero()[:, 0], most)
        weights = share / share.sum()
        object_rows.append(tuple(rows[inside] for rows in maps))
        rest_rows.append(tuple(rows[outside] for rows in maps))
        averages.append(tuple(F.normalize(weights @ rows, dim=0) for rows in maps))
        confusion.append(answers @ weights)
    return SupportMemory(tuple(names), tuple(object_rows), tuple(rest_rows), tuple(averages), torch.stack(confusion))


def most_positions(supports: int) -> int:
    """How many positions of the object, and of the rest, are kept of so many support images."""
    return min(MOST_POSITIONS, supports * POSITIONS_PER_IMAGE)


def evenly(positions: Tensor, most: int) -> Tensor:
    """At most so many of some positions, evenly spaced."""
    if len(positions) <= most:
        return positions
    return positions[torch.linspace(0, len(positions) - 1, most).round().long()]


def compare(memory: SupportMemory, query: Features) -> Tensor:
    """Evidence of queries, (queries, novel, maps, h, w): nearness in every feature map, likeness in each, confusion."""
    maps = [query.unit(name).flatten(2) for name in memory.features]
    answers = query.base.softmax(dim=1).flatten(2)
    chunks = [slice(i, i + CHUNK) for i in range(0, len(query), CHUNK)]
    parts = [_compare(memory, [vectors[chunk] for vectors in maps], answers[chunk]) for chunk in chunks]
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).unflatten(-1, query.size)


def _compare(memory: SupportMemory, maps: Sequence[Tensor], answers: Tensor) -> Tensor:
    """Evidence (queries, novel, maps, positions) from unit vectors (queries, channels, positions) of every map.

    Nearness is the similarity to the nearest positions of the object less that to the nearest one of the rest.
    """
    classes: list[Tensor] = []
    for k in range(memory.novel):
        alike = [_alike(vectors, *memory.of(k, m)) for m, vectors in enumerate(maps)]
        to_own, to_rest, like = (torch.stack(parts, dim=2) for parts in zip(*alike, strict=True))
        near = _highest(to_own, min(NEAREST, to_own.shape[1])).mean(dim=1) - to_rest[:, 0]
        confused = (memory.confusion[k] @ answers)[:, None]
        classes.append(torch.cat([near, like[:, 0], confused], dim=1))
    return torch.stack(classes, dim=1)


def _alike(vectors: Tensor, own: Tensor, rest: Tensor, average: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Similarities (queries, n, positions): to every position of the object, to the nearest of the rest (0 if there is
    no rest), to the average.
    """
    products = torch.cat([own, rest, average[None]]) @ vectors  # at once: the vectors are read only once
    to_own, to_rest, like = products.split([len(own), len(rest), 1], dim=1)
    return to_own, to_rest.amax(dim=1, keepdim=True) if len(rest) else torch.zeros_like(like), like


def _highest(values: Tensor, count: int) -> Tensor:
    """The ``count`` highest values over dimension 1, highest first.

    Row by row, all columns at once: for few of many that is faster on a CPU than torch's top k.
    """
    if torch.compiler.is_exporting():
        return values.topk(count, dim=1).values
    found: list[Tensor] = []
    for row in values.unbind(dim=1):
        for rank, best in enumerate(found):
            found[rank], row = torch.maximum(best, row), torch.minimum(best, row)
        if len(found) < count:
            found.append(row)
    return torch.stack(found, dim=1)
