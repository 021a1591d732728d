"""ClassInteraction between classes against networks written for one pixel and one class at a time."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.methods import slow
from tests.models.calibrators.cases import make_scores, make_similarity, reorder
from torch import Tensor, nn

from gfss.methods.pcn import log_odds
from gfss.models.calibrators.pcn_support import (
    ClassInteraction,
    PixelInteraction,
    SimilarityMaps,
    log_odds_scores,
    strongest_other,
)

SIZE = (4, 5)
MAPS = 2  # feature maps that similarity comes from
BASE = 3
HIDDEN = 6


class ImageMaps(NamedTuple):
    """Similarity maps of one image, outside torch."""

    score_fusion: np.ndarray
    support: np.ndarray
    self_similarity: np.ndarray


def make_random(module: nn.Module) -> nn.Module:
    """The module in double precision with all weights random: zero layers would hide what comes before them."""
    module = module.double()
    generator = torch.Generator().manual_seed(0)
    for weight in module.parameters():
        weight.data = 0.5 * torch.randn(weight.shape, generator=generator, dtype=torch.float64)
    return module


def make_interaction(attention: bool) -> ClassInteraction:
    class_interaction = make_random(ClassInteraction(MAPS, attention, hidden=HIDDEN))
    assert isinstance(class_interaction, ClassInteraction)
    return class_interaction


def make_inputs(novel: int, attention: bool = True) -> tuple[Tensor, int, SimilarityMaps, Tensor | None]:
    """What a class interaction is called with."""
    generator = torch.Generator().manual_seed(4)
    fused = make_scores(BASE, novel, SIZE)
    offsets = torch.randn(fused.shape, generator=generator, dtype=torch.float64) if attention else None
    return fused, novel, make_similarity(BASE, novel, MAPS, SIZE), offsets


def other_maximum(scores: np.ndarray, label: int, y: int, x: int) -> float:
    """Largest score among the other classes at a pixel."""
    return max(scores[other, y, x] for other in range(len(scores)) if other != label)


def class_values(fused: np.ndarray, novel: int, label: int, y: int, x: int) -> list[float]:
    """The eight inputs of a class at a pixel."""
    known = len(fused) - novel
    own = fused[label]
    return [
        own[y, x],
        math.log(max(own[y, x], 1e-4)) / 4,
        other_maximum(fused, label, y, x),
        max(own.flat),
        sum(own.flat) / own.size,
        float(label == 0),
        float(0 < label < known),
        float(label >= known),
    ]


def held(probability: float) -> float:
    """A novel probability away from certainty."""
    return min(max(probability, 1e-3), 1 - 1e-3)


def log_ratio(probability: float) -> float:
    return math.log(held(probability) / (1 - held(probability)))


def slow_pixel(module: PixelInteraction, fused: np.ndarray, novel: int) -> np.ndarray:
    """Offsets of one image by the smallest network."""
    weights = slow.parameters(module)
    found = np.zeros_like(fused)
    for label, y, x in np.ndindex(*fused.shape):
        values = class_values(fused, novel, label, y, x)
        total = float(weights["second.bias"][0])
        for unit in range(len(weights["first.bias"])):
            row = weights["first.weight"][unit, :, 0, 0]
            before = weights["first.bias"][unit] + sum(w * v for w, v in zip(row, values, strict=True))
            total += weights["second.weight"][0, unit, 0, 0] * max(before, 0.0)
        found[label, y, x] = total
    return found


def slow_self_similarity_values(self_similarity: np.ndarray, label: int, y: int, x: int) -> list[float]:
    """Cohesion of a class at a pixel in every map, then its leads over the best of all other classes."""
    scaled = [[4 * one[m, y, x] - 2 for one in self_similarity] for m in range(MAPS)]
    leads = [row[label] - max(v for other, v in enumerate(row) if other != label) for row in scaled]
    return [*(row[label] for row in scaled), *leads]


def slow_embedding(weights: dict[str, np.ndarray], fused: np.ndarray, novel: int, similarity: ImageMaps) -> np.ndarray:
    """Embedding of a novel class at every pixel, from its scores and its similarity, (novel, hidden, h, w)."""
    known = len(fused) - novel
    shared = similarity.score_fusion
    embedding = []
    for k in range(novel):
        own, alone, support = shared[known + k], fused[known + k], similarity.support[k]
        ratio = np.array([[log_ratio(p) / 4 for p in row] for row in own])
        near, like, confused = 4 * support[:MAPS], 2 * support[MAPS:-1], support[-1]
        strongest = np.array([[max(shared[1:known, y, x]) for x in range(own.shape[1])] for y in range(own.shape[0])])
        background = np.array([[math.log(max(p, 1e-4)) / 4 for p in row] for row in shared[0]])
        doubt = np.array([[math.log(max(p, 1e-3)) / 4 for p in row] for row in confused])
        judged = [ratio, own, *near]  # these also over the whole image
        inputs = [ratio, own, shared[0], background, strongest, *near, *like, confused, doubt]
        inputs += [np.full_like(own, max(one.flat)) for one in judged]
        inputs += [np.full_like(own, sum(one.flat) / one.size) for one in judged]
        inputs += [np.array([[log_ratio(p) / 4 for p in row] for row in alone]), alone]
        inputs.append(np.full_like(own, math.log(novel) / 2))
        together = np.zeros((2 * MAPS, *own.shape))
        for y, x in np.ndindex(*own.shape):
            together[:, y, x] = slow_self_similarity_values(similarity.self_similarity, known + k, y, x)
        maps = np.stack([*inputs, *together])
        for layer in ("novel_layers.0", "novel_layers.2"):
            maps = slow.relu(slow.convolve(maps, weights[f"{layer}.weight"], weights[f"{layer}.bias"]))
        embedding.append(slow.convolve(maps, weights["novel_embedding.weight"], weights["novel_embedding.bias"]))
    return np.stack(embedding)


def slow_interaction(
    module: ClassInteraction, fused: np.ndarray, novel: int, similarity: ImageMaps, offsets: np.ndarray | None
) -> np.ndarray:
    """Offsets of one image by the network that reads the similarity."""
    weights = slow.parameters(module)
    known = len(fused) - novel
    shared = similarity.score_fusion
    embedding = slow_embedding(weights, fused, novel, similarity)
    found = np.zeros_like(fused)
    for label, y, x in np.ndindex(*fused.shape):
        values = class_values(shared, novel, label, y, x)
        values += [fused[label, y, x], math.log(max(fused[label, y, x], 1e-4)) / 4]
        values += slow_self_similarity_values(similarity.self_similarity, label, y, x)
        if offsets is not None:
            values += [offsets[label, y, x], other_maximum(offsets, label, y, x)]
        rivals = [shared[known + k, y, x] for k in range(novel)]
        rival = label - known if label >= known else rivals.index(max(rivals))
        score = math.log(max(shared[label if label < known else 0, y, x], 1e-4))
        score += log_ratio(float(shared[label, y, x])) - math.log(novel) / 2 if label >= known else 0.0
        total = weights["head.weight"][0, -1, 0, 0] * score
        for unit in range(HIDDEN):
            own = sum(w * v for w, v in zip(weights["class_layer.weight"][unit, :, 0, 0], values, strict=True))
            total += weights["head.weight"][0, unit, 0, 0] * max(own + embedding[rival, unit, y, x], 0.0)
        found[label, y, x] = total
    return found


@pytest.mark.parametrize("novel", [1, 3])
def test_the_pixel_network_equals_loops(novel: int) -> None:
    module = make_random(PixelInteraction(HIDDEN))
    assert isinstance(module, PixelInteraction)
    fused = make_scores(BASE, novel, SIZE)
    found = slow.array(module(fused, novel))
    for image in range(len(fused)):
        np.testing.assert_allclose(found[image], slow_pixel(module, slow.array(fused[image]), novel), atol=1e-9)


@pytest.mark.parametrize("attention", [True, False], ids=["with attention", "without attention"])
@pytest.mark.parametrize("novel", [1, 3])
def test_the_exchange_equals_loops(novel: int, attention: bool) -> None:
    module = make_interaction(attention)
    fused, _, similarity, offsets = make_inputs(novel, attention)
    fused[0, 0, 0, :2], fused[0, -1, 1, :2] = 1e-6, torch.tensor([1e-5, 1 - 1e-5])  # beyond what is told apart
    similarity.support[0, 0, -1, 0, :2] = 1e-5
    similarity.score_fusion[0, 0, 2, :2] = 1e-6
    similarity.score_fusion[0, -1, 3, :2] = torch.tensor([1e-5, 1 - 1e-5])
    similarity.self_similarity[1, 1:3, 0, 1, :3] = 0.99  # two classes are equally alike
    found = slow.array(module(fused, novel, similarity, offsets))
    for image in range(len(fused)):
        given = None if offsets is None else slow.array(offsets[image])
        embedding = ImageMaps(*(slow.array(part[image]) for part in similarity))
        expected = slow_interaction(module, slow.array(fused[image]), novel, embedding, given)
        np.testing.assert_allclose(found[image], expected, atol=1e-9)


@settings(max_examples=15, deadline=None)
@given(st.booleans(), st.permutations(range(1, BASE + 1)), st.permutations(range(3)))
def test_permuting_classes_permutes_the_offsets(attention: bool, base: list[int], novel: list[int]) -> None:
    """Base classes by themselves, novel ones together with their similarity."""
    module = make_interaction(attention)
    fused, _, similarity, offsets = make_inputs(3, attention)
    order = [0, *base, *(BASE + 1 + k for k in novel)]
    moved = None if offsets is None else offsets[:, order]
    expected = module(fused, 3, similarity, offsets)[:, order]
    torch.testing.assert_close(
        module(fused[:, order], 3, reorder(similarity, order), moved), expected, rtol=0, atol=1e-10
    )


@pytest.mark.parametrize("novel", [1, 3])
def test_a_zero_head_gives_exactly_no_offsets(novel: int) -> None:
    class_interaction, pixel = make_interaction(attention=True), make_random(PixelInteraction(HIDDEN))
    fused, _, similarity, offsets = make_inputs(novel)
    for weight in (*class_interaction.head.parameters(), *pixel.second.parameters()):  # type: ignore[union-attr]
        nn.init.zeros_(weight)
    assert torch.equal(class_interaction(fused, novel, similarity, offsets), torch.zeros_like(fused))
    assert torch.equal(pixel(fused, novel), torch.zeros_like(fused))


def test_networks_start_at_the_log_odds_rule_and_at_nothing() -> None:
    fused, _, similarity, offsets = make_inputs(2)
    fresh = ClassInteraction(MAPS, attention=True).double()
    expected = log_odds_scores(similarity.score_fusion, 2)
    torch.testing.assert_close(fresh(fused, 2, similarity, offsets), expected, rtol=0, atol=1e-12)
    assert torch.equal(PixelInteraction().double()(fused, 2), torch.zeros_like(fused))


def test_log_odds_scores_are_the_logarithms_of_the_rule() -> None:
    fused = make_scores(BASE, 1, SIZE).clamp(2e-3, 1 - 2e-3)  # where nothing is held back
    torch.testing.assert_close(log_odds_scores(fused, 1).softmax(dim=1), log_odds(fused, 1), rtol=0, atol=1e-12)


def test_each_of_several_novel_classes_is_rarer_than_one() -> None:
    one = make_scores(BASE, 1, SIZE)
    four = torch.cat([one, *(one[:, -1:] for _ in range(3))], dim=1)
    lowered = log_odds_scores(four, 4)[:, -4:].exp()
    torch.testing.assert_close(
        2 * lowered, log_odds_scores(one, 1)[:, -1:].exp().expand_as(lowered), rtol=1e-12, atol=0
    )


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 6), st.integers(0, 1000))
def test_strongest_other_with_many_ties(classes: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(3, (2, classes, 3, 3), generator=generator).float()
    found = strongest_other(scores)
    for image, label, y, x in np.ndindex(*scores.shape):
        assert found[image, label, y, x] == other_maximum(scores[image].numpy(), label, y, x)


@pytest.mark.parametrize("novel", [1, 3])
def test_an_interaction_of_one_fusion_reads_nsf_in_place_of_the_other(novel: int) -> None:
    both, one = (
        make_interaction(attention=False),
        ClassInteraction(MAPS, attention=False, both_fusions=False, hidden=HIDDEN),
    )
    one.double().load_state_dict(both.state_dict())
    fused, _, similarity, _ = make_inputs(novel, attention=False)
    found = one(fused, novel, similarity)
    assert torch.equal(found, both(fused, novel, similarity._replace(score_fusion=fused)))
    assert not torch.allclose(found, both(fused, novel, similarity))
