"""SimilarityMaps of the support set against plain loops over positions, classes and maps."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from tests.methods.cases import make_episode, map_labels
from tests.models.calibrators.support_similarity_loops import shares, slow_evidence
from torch import Tensor

from gfss.data.catalog import VOID
from gfss.models.base_model import BINS, Features
from gfss.models.calibrators import pcn_support as module
from gfss.models.calibrators.pcn_support import (
    build_support_memory,
    self_similarity,
    similarity_maps,
    support_similarity,
    support_similarity_channels,
)

SIZE = (4, 5)
CELL = 4  # pixels per position, so that shares are exact: sixteenths
BASE = 3
NAMES = ("layer3", "layer4", "bottleneck")


@dataclass(frozen=True)
class Case:
    """A support set and what is asked about it."""

    labels: Tensor
    novel: tuple[int, ...] = (BASE + 1,)
    names: tuple[str, ...] = NAMES
    most: int = 1024


def squares(*images: tuple[tuple[int, int, int, int], ...]) -> Tensor:
    """Label maps with rectangles (top, left, height, width) in pixels, of consecutive labels."""
    labels = torch.zeros(len(images), SIZE[0] * CELL, SIZE[1] * CELL, dtype=torch.uint8)
    for image, boxes in enumerate(images):
        for number, (top, left, height, width) in enumerate(boxes):
            labels[image, top : top + height, left : left + width] = BASE + 1 + number
    return labels


def with_void(labels: Tensor) -> Tensor:
    """Void around and inside the objects."""
    labels = labels.clone()
    labels[:, :3], labels[:, 6, 4:9], labels[:, :, -5:-3] = VOID, VOID, VOID
    return labels


ONE = squares(((2, 3, 9, 10),))
THREE = squares(
    ((1, 2, 7, 6), (5, 8, 8, 7), (12, 0, 4, 9)), ((3, 9, 10, 8),), ((0, 0, 2, 2), (4, 4, 9, 9), (0, 14, 9, 6))
)
SPECKS = squares(((1, 1, 1, 1), (5, 6, 2, 1), (9, 9, 1, 1), (13, 13, 2, 1))).clamp_max(BASE + 1)
STRIPES = torch.where(torch.arange(SIZE[1] * CELL) % CELL == 0, BASE + 1, 0).to(torch.uint8).expand_as(ONE)
CASES = {
    "one class, one support": Case(ONE),
    "one class, three supports": Case(squares(((2, 3, 9, 10),), ((0, 0, 5, 6),), ((7, 7, 9, 13),))),
    "three classes": Case(THREE, (BASE + 1, BASE + 2, BASE + 3)),
    "void": Case(with_void(ONE)),
    "three classes and void": Case(with_void(THREE), (BASE + 1, BASE + 2, BASE + 3)),
    "nothing but the object and void": Case(torch.where(ONE == 0, VOID, ONE)),
    "a part of the object everywhere": Case(STRIPES),
    "less than half of every position": Case(SPECKS),
    "more positions than are kept": Case(THREE, (BASE + 1, BASE + 2, BASE + 3), most=4),
    "other maps": Case(ONE, names=("pooled", "layer3")),
}


def make_features(images: int, seed: int, size: tuple[int, int] = SIZE) -> Features:
    """Random maps: 3 and 4 channels in levels, 2 in each branch, 5 in the bottleneck, base scores."""
    generator = torch.Generator().manual_seed(seed)

    def maps(channels: int, shape: tuple[int, int]) -> Tensor:
        return torch.randn(images, channels, *shape, generator=generator)

    levels = {"layer3": maps(3, size), "layer4": maps(4, size)}
    bottleneck = maps(5, size).relu()
    bottleneck[0, :, 1, 2] = 0  # nothing was seen here
    return Features(levels, tuple(maps(2, (n, n)) for n in BINS), bottleneck, 2 * maps(BASE + 1, size))


@pytest.mark.parametrize("name", CASES)
def test_evidence_equals_loops(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    monkeypatch.setattr(module, "MOST_POSITIONS", case.most)
    support, query = make_features(len(case.labels), 0), make_features(2, 1)
    memory = build_support_memory(support, case.labels, case.novel, case.names)
    assert memory.novel == len(case.novel)
    found = support_similarity(memory, query)
    expected = slow_evidence(case.labels, case.novel, case.names, case.most, support, query)
    assert found.shape == (2, len(case.novel), support_similarity_channels(len(case.names)), *SIZE)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_the_cases_are_what_they_are_called() -> None:
    def rest(name: str) -> int:
        case = CASES[name]
        return len(build_support_memory(make_features(len(case.labels), 0), case.labels, case.novel, NAMES).rest[0][0])

    assert rest("nothing but the object and void") == rest("a part of the object everywhere") == 0
    assert rest("one class, one support") > 4
    assert max(shares(SPECKS, BASE + 1, SIZE).values()) < 0.5


def test_a_memory_holds_vectors_of_length_one_and_a_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_POSITIONS", 4)
    case = CASES["three classes"]
    memory = build_support_memory(make_features(3, 2), case.labels, case.novel, ("layer3", "layer4"))
    for rows in (*memory.object, *memory.rest):
        for one in rows:
            assert 0 < len(one) <= 4
            torch.testing.assert_close(one.norm(dim=1), torch.ones(len(one)))
    for vector in (vector for one in memory.average for vector in one):
        torch.testing.assert_close(vector.norm(), torch.tensor(1.0))
    torch.testing.assert_close(memory.confusion.sum(dim=1), torch.ones(3))


def test_by_itself_a_memory_keeps_few_positions() -> None:
    """Of an object larger than that, evenly spaced ones from the first to the last."""
    support = make_features(1, 2, (20, 25))
    labels = torch.zeros(1, 20 * CELL, 25 * CELL, dtype=torch.uint8)
    labels[:, :, : 13 * CELL] = BASE + 1
    memory = build_support_memory(support, labels, (BASE + 1,), ("layer4",))
    inside, outside = memory.object[0][0], memory.rest[0][0]
    assert len(inside) == len(outside) == 96  # of 260 and 240
    vectors = support.unit("layer4")[0].movedim(0, 2)
    own, others = vectors[:, :13].flatten(0, 1), vectors[:, 13:].flatten(0, 1)
    assert torch.equal(inside[[0, -1]], own[[0, -1]])
    assert torch.equal(inside, own[[round(i * 259 / 95) for i in range(96)]])
    assert torch.equal(outside, others[[round(i * 239 / 95) for i in range(96)]])


@pytest.mark.parametrize(("supports", "most"), [(1, 96), (2, 192), (3, 256), (25, 256)])
def test_more_support_images_keep_more_positions_up_to_a_limit(supports: int, most: int) -> None:
    support = make_features(supports, 2, (20, 25))
    labels = torch.zeros(supports, 20 * CELL, 25 * CELL, dtype=torch.uint8)
    labels[:, :, : 13 * CELL] = BASE + 1
    memory = build_support_memory(support, labels, (BASE + 1,), ("layer4",))
    assert len(memory.object[0][0]) == len(memory.rest[0][0]) == most


@pytest.mark.parametrize("maps", [1, 2, 5])
def test_evidence_channels_count_what_the_support_says(maps: int) -> None:
    names = (NAMES * 2)[:maps]
    found = support_similarity(build_support_memory(make_features(1, 0), ONE, (BASE + 1,), names), make_features(2, 1))
    assert found.shape[2] == support_similarity_channels(maps) == 2 * maps + 1


@pytest.mark.parametrize("name", ["one class, one support", "three classes", "other maps"])
def test_all_evidence_is_gathered_in_its_place(name: str) -> None:
    case = CASES[name]
    support, query = make_features(len(case.labels), 0), make_features(2, 1)
    memory = build_support_memory(support, case.labels, case.novel, case.names)
    generator = torch.Generator().manual_seed(5)
    shared = (3 * torch.randn(2, 1 + BASE + len(case.novel), *SIZE, generator=generator)).softmax(dim=1)
    found = similarity_maps(memory, query, shared)
    assert torch.equal(found.score_fusion, shared)
    assert torch.equal(found.support, support_similarity(memory, query))
    assert torch.equal(found.self_similarity, self_similarity(query, shared, case.names))
    assert found.self_similarity.shape == (2, 1 + BASE + len(case.novel), len(case.names), *SIZE)


@pytest.mark.parametrize("size", [SIZE, (7, 3)])
def test_queries_are_compared_alike_in_any_chunks(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["three classes"]
    memory = build_support_memory(make_features(3, 0), case.labels, case.novel, NAMES)
    query = make_features(5, 1, size)
    together = support_similarity(memory, query)
    monkeypatch.setattr(module, "CHUNK", 2)
    torch.testing.assert_close(support_similarity(memory, query), together, rtol=0, atol=1e-6)
    for i in range(5):
        torch.testing.assert_close(support_similarity(memory, query[[i]])[0], together[i], rtol=0, atol=1e-6)


def test_nearness_and_likeness_are_larger_on_the_object() -> None:
    episode = make_episode(shots=2, novel=2, queries=4)
    support = episode.support
    memory = build_support_memory(support.features, support.labels, support.novel_labels, NAMES)
    found = support_similarity(memory, episode.query.features)
    truth = map_labels(episode.query.labels, episode.query.features.size)
    for k, label in enumerate(support.novel_labels):
        for values in found[:, k, :-1].unbind(dim=1):
            assert values[truth == label].mean() > values[truth != label].mean() + 0.1


def test_the_scale_of_features_does_not_matter() -> None:
    support, query = make_features(1, 0), make_features(2, 1)
    plain = support_similarity(build_support_memory(support, ONE, (BASE + 1,), NAMES), query)
    support, query = (
        replace(one, levels={name: 7 * level for name, level in one.levels.items()}, bottleneck=7 * one.bottleneck)
        for one in (support, query)
    )
    torch.testing.assert_close(
        support_similarity(build_support_memory(support, ONE, (BASE + 1,), NAMES), query), plain, rtol=0, atol=1e-5
    )
