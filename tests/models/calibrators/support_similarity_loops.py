"""SimilarityMaps of a support set in plain loops over positions, classes and maps."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from tests.methods import slow
from torch import Tensor

from gfss.data.catalog import VOID
from gfss.models.base_model import Features

Vector = list[float]
Place = tuple[int, int, int]  # image, row, column


def unit(vector: Vector) -> Vector:
    length = math.sqrt(sum(v * v for v in vector))
    return [v / length if length > 0 else 0.0 for v in vector]


def inner(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def vectors(features: Features, name: str) -> dict[Place, Vector]:
    """The vector of length one of a map at every place, in order of images, rows and columns."""
    found: dict[Place, Vector] = {}
    for image in range(len(features)):
        if name == "pooled":
            maps = np.concatenate([slow.resize(slow.array(branch[image]), features.size) for branch in features.pooled])
        else:
            maps = slow.array(features.bottleneck[image] if name == "bottleneck" else features.levels[name][image])
        for y, x in np.ndindex(*features.size):
            found[image, y, x] = unit(maps[:, y, x].tolist())
    return found


def answers(features: Features) -> dict[Place, Vector]:
    """Probabilities of the base classifier at every place."""
    return {
        (image, y, x): slow.softmax(features.base[image, :, y, x].tolist())
        for image, y, x in np.ndindex(len(features), *features.size)
    }


def shares(labels: Tensor, label: int, size: tuple[int, int]) -> dict[Place, float]:
    """Share of a label at every place."""
    found: dict[Place, float] = {}
    for image in range(len(labels)):
        for (y, x), share in np.ndenumerate(slow.shares(labels[image], label, size)):
            found[image, y, x] = float(share)
    return found


def kept(places: list[Place], most: int) -> list[Place]:
    """At most so many of the places, evenly spaced from the first to the last."""
    if len(places) <= most:
        return places
    return [places[round(i * (len(places) - 1) / (most - 1))] for i in range(most)]


def average(values: dict[Place, Vector], share: dict[Place, float]) -> Vector:
    """Mean weighted by the object's share."""
    whole = sum(share.values())
    length = len(next(iter(values.values())))
    return [sum(share[p] * values[p][i] for p in values) / whole for i in range(length)]


def slow_evidence(
    labels: Tensor, novel: Sequence[int], names: Sequence[str], most: int, support: Features, query: Features
) -> np.ndarray:
    """SimilarityMaps (queries, novel, maps, h, w), one number at a time; at most ``most`` positions are kept."""
    found = np.zeros((len(query), len(novel), 2 * len(names) + 1, *query.size))
    void = shares(labels, VOID, support.size)
    for k, label in enumerate(novel):
        share = shares(labels, label, support.size)
        least = min(0.5, 0.9 * max(share.values()))
        inside = kept([p for p in share if share[p] >= least], most)
        outside = kept([p for p in share if 1 - share[p] - void[p] > 0.9], most)
        for m, name in enumerate(names):
            mine, theirs = vectors(support, name), vectors(query, name)
            middle = unit(average(mine, share))
            for (i, y, x), vector in theirs.items():
                nearest = sorted((inner(vector, mine[p]) for p in inside), reverse=True)[:5]
                near = sum(nearest) / len(nearest)
                if outside:
                    near -= max(inner(vector, mine[p]) for p in outside)
                found[i, k, m, y, x] = near
                found[i, k, len(names) + m, y, x] = inner(vector, middle)
        confusion = average(answers(support), share)
        for (i, y, x), said in answers(query).items():
            found[i, k, -1, y, x] = inner(confusion, said)
    return found
