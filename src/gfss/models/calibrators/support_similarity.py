"""Similarity of a query to the support set, for every novel class.

The novel classifier is fitted on a handful of images and knows nothing but its own scores. A :class:`SupportMemory`
holds what else the support shows, and a query is compared with it without any training:

* nearness: is a position more like the object than like anything else in the support images;
* likeness: how much does it look like the average of the object;
* confusion: does the base classifier predict here what it predicts on the object (cows that it takes for horses).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from gfss.data.catalog import VOID
from gfss.models.calibrators.self_similarity import self_similarity
from gfss.models.fusion import mask_shares
from gfss.models.ops.highest import highest
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
        confusion: class probabilities of the base classifier on the object, (novel, base + 1).
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


class SimilarityMaps(NamedTuple):
    """What a calibrator may know of queries besides their fused scores.

    Attributes:
        score_fusion: one softmax over the scores of all classes, (queries, classes, h, w).
        support: similarity to the support for every novel class, (queries, novel, 2 maps + 1, h, w); see
            :func:`support_similarity`.
        self_similarity: similarity within the query for every class, (queries, classes, maps, h, w); see
            :mod:`gfss.models.calibrators.self_similarity`.
    """

    score_fusion: Tensor
    support: Tensor
    self_similarity: Tensor


def similarity_maps(memory: SupportMemory, query: Features, score_fusion: Tensor) -> SimilarityMaps:
    """All that a calibrator reads of queries whose scores, softmaxed over all classes, are ``score_fusion``."""
    within = self_similarity(query, score_fusion, memory.features)
    return SimilarityMaps(score_fusion, support_similarity(memory, query), within)


def support_similarity_channels(maps: int) -> int:
    """Maps of a novel class: nearness and likeness in each of so many feature maps, and confusion."""
    return 2 * maps + 1


def build_support_memory(
    features: Features, labels: Tensor, novel: Sequence[int], names: Sequence[str]
) -> SupportMemory:
    """Memory of a support set.

    Args:
        features: of all support images.
        labels: (supports, height, width).
        novel: labels of the novel classes.
        names: maps to compare.
    """
    maps = [features.unit(name).transpose(0, 1).flatten(1).T for name in names]
    void = mask_shares(labels, VOID, features.size).flatten()
    predicted = features.base.softmax(dim=1).transpose(0, 1).flatten(1)  # (base + 1, positions)
    object_rows, rest_rows, averages, confusion = [], [], [], []
    most = most_positions(len(labels))
    for label in novel:
        share = mask_shares(labels, label, features.size).flatten()
        inside = evenly_spaced((share >= min(OBJECT_SHARE, 0.9 * float(share.max()))).nonzero()[:, 0], most)
        outside = evenly_spaced((1 - share - void > REST_SHARE).nonzero()[:, 0], most)
        weights = share / share.sum()
        object_rows.append(tuple(rows[inside] for rows in maps))
        rest_rows.append(tuple(rows[outside] for rows in maps))
        averages.append(tuple(F.normalize(weights @ rows, dim=0) for rows in maps))
        confusion.append(predicted @ weights)
    return SupportMemory(tuple(names), tuple(object_rows), tuple(rest_rows), tuple(averages), torch.stack(confusion))


def most_positions(supports: int) -> int:
    """How many positions of the object, and of the rest, are kept of so many support images."""
    return min(MOST_POSITIONS, supports * POSITIONS_PER_IMAGE)


def evenly_spaced(positions: Tensor, most: int) -> Tensor:
    """At most so many of some positions, evenly spaced."""
    if len(positions) <= most:
        return positions
    return positions[torch.linspace(0, len(positions) - 1, most).round().long()]


def support_similarity(memory: SupportMemory, query: Features) -> Tensor:
    """Nearness in every feature map, likeness in each, confusion: (queries, novel, 2 maps + 1, h, w)."""
    maps = [query.unit(name).flatten(2) for name in memory.features]
    predicted = query.base.softmax(dim=1).flatten(2)
    chunks = [slice(i, i + CHUNK) for i in range(0, len(query), CHUNK)]
    parts = [_chunk_similarity(memory, [vectors[chunk] for vectors in maps], predicted[chunk]) for chunk in chunks]
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).unflatten(-1, query.size)


def _chunk_similarity(memory: SupportMemory, maps: Sequence[Tensor], predicted: Tensor) -> Tensor:
    """Similarity (queries, novel, 2 maps + 1, positions) from unit vectors (queries, channels, positions) of every map.

    Nearness is the similarity to the nearest positions of the object less that to the nearest one of the rest.
    """
    classes: list[Tensor] = []
    for k in range(memory.novel):
        cosines = [_cosines(vectors, *memory.of(k, m)) for m, vectors in enumerate(maps)]
        to_object, to_rest, to_average = (torch.stack(parts, dim=2) for parts in zip(*cosines, strict=True))
        nearness = highest(to_object, min(NEAREST, to_object.shape[1])).mean(dim=1) - to_rest[:, 0]
        confusion = (memory.confusion[k] @ predicted)[:, None]
        classes.append(torch.cat([nearness, to_average[:, 0], confusion], dim=1))
    return torch.stack(classes, dim=1)


def _cosines(vectors: Tensor, own: Tensor, rest: Tensor, average: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Similarities (queries, n, positions): to every position of the object, to the nearest of the rest (0 if there is
    no rest), to the average.
    """
    products = torch.cat([own, rest, average[None]]) @ vectors  # at once: the vectors are read only once
    to_object, to_rest, to_average = products.split([len(own), len(rest), 1], dim=1)
    nearest = to_rest.amax(dim=1, keepdim=True) if len(rest) else torch.zeros_like(to_average)
    return to_object, nearest, to_average
