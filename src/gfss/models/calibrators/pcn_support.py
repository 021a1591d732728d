"""The calibrator of ``pcn-support``: similarity to the support and within the query, and interaction of the classes.

The novel classifier is fitted on a handful of images and knows nothing but its own scores. A :class:`SupportMemory`
holds what else the support shows, and a query is compared with it without any training:

* nearness: is a position more like the object than like anything else in the support images;
* likeness: how much does it look like the average of the object;
* confusion: does the base classifier predict here what it predicts on the object (cows that it takes for horses).

:func:`self_similarity` compares a query with itself, because one object looks more like itself than like its kind. Each
class gathers the features of the positions that it claims, which is the covariance of its score map with the feature
channels, as in the paper's calibrator; every position is compared with what was gathered. A class that claims next to
nothing gathers nothing and is like nothing.

The cross-covariance treats every class by itself. With the two networks here, a novel class learns that a base class
already claims a pixel, and the other way round; they are shared by all classes, so the number of classes stays free and
their order does not matter:

* :class:`PixelInteraction` sees a pixel's scores and nothing else: the smallest learned calibrator;
* :class:`ClassInteraction` also sees both fusions, both similarities, the neighbourhood of the pixel and the
  cross-covariance's offsets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gfss.data.catalog import VOID
from gfss.models.base_model import Features
from gfss.models.ops.upsample import mask_shares

SHARPNESS = 2  # power of the scores: positions that a class is sure of count more
NEAREST = 5  # positions of the object whose similarities are averaged
OBJECT_SHARE, REST_SHARE = 0.5, 0.9  # share of a position that must be object, or anything else
POSITIONS_PER_IMAGE = 96  # of the object and of the rest; evenly spaced ones where there are more
MOST_POSITIONS = 256  # of all support images together
CHUNK = 8  # queries compared at once
LOG_FLOOR = 1e-4
SURE = 1e-3  # novel probabilities are taken as between this and one minus this
LOG_SCALE = 4.0  # logarithms are divided by it, so that all inputs are of similar size
CLASS_INPUTS = 8
NOVEL_INPUTS = 14  # of a novel class, and six more for every feature map


def highest(values: Tensor, count: int) -> Tensor:
    """The ``count`` highest values over dimension 1, highest first: ``values.topk(count, dim=1).values``.

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


def self_similarity(query: Features, scores: Tensor, names: Sequence[str]) -> Tensor:
    """Cosine of every position with what each class claims, (queries, classes, maps, h, w).

    Args:
        scores: of all classes, in [0, 1], (queries, classes, h, w).
        names: maps to compare.
    """
    claims = scores.flatten(2) ** SHARPNESS
    found: list[Tensor] = []
    for name in names:
        rows = query.unit(name).flatten(2)  # (queries, channels, positions)
        gathered = F.normalize(claims @ rows.transpose(1, 2), dim=2)  # (queries, classes, channels)
        found.append(gathered @ rows)
    return torch.stack(found, dim=2).unflatten(3, query.size)


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
            :mod:`gfss.models.calibrators.pcn_support`.
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


class PixelInteraction(nn.Module):
    """Offsets of all class scores from the scores at the same pixel."""

    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.first = nn.Conv2d(CLASS_INPUTS, hidden, 1)
        self.second = nn.Conv2d(hidden, 1, 1)
        for weight in self.second.parameters():
            nn.init.zeros_(weight)

    def forward(self, fused: Tensor, novel: int) -> Tensor:
        """Offsets (batch, classes, h, w); arguments as in :meth:`ClassInteraction.forward`."""
        inputs = class_inputs(fused, novel).flatten(0, 1)
        return self.second(torch.relu(self.first(inputs))).view_as(fused)


class ClassInteraction(nn.Module):
    """Offsets of all class scores from scores, similarity maps and cross-covariance.

    Scores come in two forms: each classifier's softmax by itself (NSF), and one softmax over the scores of both (score
    fusion), where a new class has to hold its own against the old ones. Two 3x3 convolutions turn each novel class's
    score and similarity maps into an embedding of every pixel. A second network then scores every class: a novel class
    with its own embedding, any other class with that of its strongest novel rival. The last layer also sees the
    log-odds rule on score fusion, where training starts.

    Args:
        maps: number of feature maps that are compared.
        attention: whether offsets of the cross-covariance come in.
        both_fusions: whether the scores of score fusion are read; NSF's take their place otherwise (self-similarity
            always comes from score fusion).
        hidden: width of both networks.
    """

    def __init__(self, maps: int, attention: bool, both_fusions: bool = True, hidden: int = 48) -> None:
        super().__init__()
        self.both_fusions = both_fusions
        self.novel_layers = nn.Sequential(
            nn.Conv2d(NOVEL_INPUTS + 6 * maps, hidden, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(hidden, hidden, 3, padding=1),
            nn.ReLU(),
        )
        self.novel_embedding = nn.Conv2d(hidden, hidden, 1)
        self.class_layer = nn.Conv2d(CLASS_INPUTS + 2 + 2 * maps + 2 * attention, hidden, 1, bias=False)
        self.head = nn.Conv2d(hidden + 1, 1, 1, bias=False)  # a bias would move all classes alike
        nn.init.zeros_(self.head.weight)
        with torch.no_grad():
            self.head.weight[0, -1] = 1

    def forward(self, fused: Tensor, novel: int, similarity: SimilarityMaps, offsets: Tensor | None = None) -> Tensor:
        """Offsets (batch, classes, h, w).

        Args:
            fused: NSF scores in [0, 1], (batch, classes, h, w).
            novel: number of novel classes, last in class order.
            similarity: of the query to the support and to itself.
            offsets: of the cross-covariance, like ``fused``.
        """
        batch, classes, height, width = fused.shape
        known, scores = classes - novel, similarity.score_fusion if self.both_fusions else fused
        within = self_similarity_inputs(similarity.self_similarity)
        novel_maps = torch.cat([novel_inputs(fused, scores, similarity.support), within[:, known:]], dim=2)
        embedding = self.novel_layers(novel_maps.flatten(0, 1).contiguous(memory_format=torch.channels_last))
        embedding = self.novel_embedding(embedding).contiguous().view(batch, novel, -1, height, width).transpose(1, 2)
        maps = [*class_inputs(scores, novel).unbind(dim=2), fused, log_scores(fused), *within.unbind(dim=2)]
        if offsets is not None:
            maps += [offsets, strongest_other(offsets)]
        inputs, rival = torch.stack(maps, dim=1), strongest_novel(embedding, scores[:, known:])
        if torch.compiler.is_exporting():
            learned = self._class_scores(inputs, rival, embedding)
        else:  # image by image: the hidden maps are large, and stay in the processor's cache so
            images = zip(inputs.split(1), rival.split(1), embedding.split(1), strict=True)
            learned = torch.cat([self._class_scores(*image) for image in images])
        return learned + self.head.weight[0, -1] * log_odds_scores(scores, novel)

    def _class_scores(self, inputs: Tensor, rival: Tensor, embedding: Tensor) -> Tensor:
        """The second network without the log-odds rule, (batch, classes, h, w).

        Args:
            inputs: of every class, (batch, inputs, classes, h, w).
            rival: embedding of the strongest novel class, (batch, hidden, h, w).
            embedding: of every novel class, (batch, hidden, novel, h, w).
        """
        rows = self.class_layer.weight[:, :, 0, 0] @ inputs.flatten(2)  # faster on a CPU than a convolution
        hidden = rows.view(len(inputs), -1, *inputs.shape[2:])
        known = inputs.shape[2] - embedding.shape[2]
        hidden[:, :, :known] += rival[:, :, None]
        hidden[:, :, known:] += embedding
        return (self.head.weight[0, :-1, 0, 0] @ rows.relu_()).view_as(inputs[:, 0])


def class_inputs(fused: Tensor, novel: int) -> Tensor:
    """What is known of every class at every pixel, (batch, classes, inputs, h, w)."""
    classes = fused.shape[1]
    kinds = fused.new_zeros(3, classes)
    kinds[0, 0] = 1  # background
    kinds[1, 1 : classes - novel] = 1  # base
    kinds[2, classes - novel :] = 1  # novel
    maps = [
        fused,
        log_scores(fused),
        strongest_other(fused),
        fused.amax(dim=(2, 3), keepdim=True).expand_as(fused),
        fused.mean(dim=(2, 3), keepdim=True).expand_as(fused),
        *(kind.view(1, -1, 1, 1).expand_as(fused) for kind in kinds),
    ]
    return torch.stack(maps, dim=2)


def self_similarity_inputs(similarity: Tensor) -> Tensor:
    """Self-similarity of every class and its lead over the strongest other class, (batch, classes, 2 maps, h, w)."""
    scaled = 4 * similarity - 2  # similarities lie close together: to the size of the other inputs
    return torch.cat([scaled, scaled - strongest_other(scaled)], dim=2)


def novel_inputs(nsf: Tensor, scores: Tensor, support: Tensor) -> Tensor:
    """What is known of every novel class at every pixel, (batch, novel, inputs, h, w).

    Args:
        nsf: normalised score fusion, (batch, classes, h, w).
        scores: score fusion under one softmax, likewise.
        support: similarity to the support, (batch, novel, 2 maps + 1, h, w).
    """
    known = nsf.shape[1] - support.shape[1]
    maps = support.shape[2] // 2
    own_nsf, own = nsf[:, known:, None], scores[:, known:, None]
    background = scores[:, None, :1].expand_as(own)
    strongest_base = scores[:, 1:known].amax(dim=1)[:, None, None].expand_as(own)
    nearness, likeness, confusion = support.split([maps, maps, 1], dim=2)
    nearness, likeness = 4 * nearness, 2 * likeness  # similarities vary little: to the size of the other inputs
    pooled = torch.cat([scaled_log_odds(own), own, nearness], dim=2)
    inputs = [
        scaled_log_odds(own),
        own,
        background,
        log_scores(background),
        strongest_base,
        nearness,
        likeness,
        confusion,
        confusion.clamp_min(SURE).log() / LOG_SCALE,
        pooled.amax(dim=(3, 4), keepdim=True).expand_as(pooled),
        pooled.mean(dim=(3, 4), keepdim=True).expand_as(pooled),
        scaled_log_odds(own_nsf),
        own_nsf,
        torch.full_like(own, math.log(support.shape[1]) / 2),
    ]
    return torch.cat(inputs, dim=2)


def log_scores(scores: Tensor) -> Tensor:
    """Logarithms of scores, to the size of other inputs."""
    return scores.clamp_min(LOG_FLOOR).log() / LOG_SCALE


def scaled_log_odds(scores: Tensor) -> Tensor:
    """Log-odds of novel scores, to the size of other inputs."""
    return scores.clamp(SURE, 1 - SURE).logit() / LOG_SCALE


def log_odds_scores(fused: Tensor, novel: int) -> Tensor:
    """Logarithms of the log-odds rule's scores (see :func:`gfss.methods.pcn.log_odds`), not normalised.

    Where there are n novel classes, each is rarer: its odds are divided by the root of n, which on held-out base
    classes was better than n or nothing.
    """
    known = fused.shape[1] - novel
    base = fused[:, :known].clamp_min(LOG_FLOOR).log()
    odds = fused[:, known:].clamp(SURE, 1 - SURE).logit() - math.log(novel) / 2
    return torch.cat([base, base[:, :1] + odds], dim=1)


def strongest_novel(values: Tensor, scores: Tensor) -> Tensor:
    """At every pixel the values (batch, n, novel, h, w) of the novel class with the highest score, (batch, n, h, w)."""
    if values.shape[2] == 1:
        return values[:, :, 0]
    best = scores.argmax(dim=1)[:, None, None].expand(-1, values.shape[1], -1, -1, -1)
    return values.gather(2, best)[:, :, 0]


def strongest_other(scores: Tensor) -> Tensor:
    """For every class the largest score among the other classes, same shape as ``scores``."""
    best = scores.amax(dim=1, keepdim=True)
    is_best = scores == best
    second = scores.masked_fill(is_best, -math.inf).amax(dim=1, keepdim=True)
    alone = is_best.sum(dim=1, keepdim=True) == 1  # where two are best, each has the other
    return torch.where(is_best & alone, second, best)
