"""Training-free rules against plain loops over pixels."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gfss.methods.pcn import RULES, split

Rule = Callable[[list[float], int], list[float]]


def gated(scores: list[float], novel: int) -> list[float]:
    known, new = scores[1:-novel], scores[-novel:]
    return [scores[0], *known, *(score * (1 - max(known)) for score in new)]


def background_share(scores: list[float], novel: int) -> list[float]:
    known, new = scores[1:-novel], scores[-novel:]
    left = scores[0]
    for score in new:
        left *= 1 - score
    return [left, *known, *(scores[0] * score for score in new)]


def log_odds(scores: list[float], novel: int) -> list[float]:
    """Softmax over base log-probabilities and background log-probability + log-odds."""
    known, new = scores[1:-novel], scores[-novel:]
    background = math.log(scores[0])
    logits = [background, *map(math.log, known), *(background + math.log(p / (1 - p)) for p in new)]
    total = sum(map(math.exp, logits))
    return [math.exp(logit) / total for logit in logits]


REFERENCES: dict[str, Rule] = {"gated": gated, "background-share": background_share, "log-odds": log_odds}


def fused(base: int, novel: int) -> Tensor:
    """NSF scores (2, 1 + base + novel, 4, 5)."""
    generator = torch.Generator().manual_seed(base + 10 * novel)
    known = torch.randn(2, 1 + base, 4, 5, generator=generator, dtype=torch.float64).softmax(dim=1)
    new = torch.randn(2, novel, 4, 5, generator=generator, dtype=torch.float64).sigmoid()
    return torch.cat([known, new], dim=1)


def test_every_rule_has_a_reference() -> None:
    assert REFERENCES.keys() == RULES.keys()


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(("base", "novel"), [(1, 1), (4, 1), (5, 3)])
def test_rule_equals_its_plain_loop(name: str, base: int, novel: int) -> None:
    scores = fused(base, novel)
    expected = torch.empty_like(scores)
    for image in range(scores.shape[0]):
        for y in range(scores.shape[2]):
            for x in range(scores.shape[3]):
                pixel = REFERENCES[name](scores[image, :, y, x].tolist(), novel)
                expected[image, :, y, x] = torch.tensor(pixel, dtype=torch.float64)
    torch.testing.assert_close(RULES[name](scores, novel), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", RULES)
def test_rule_stays_finite_where_the_classifiers_are_certain(name: str) -> None:
    scores = torch.zeros(1, 4, 2, 2)
    scores[:, 1, 0] = 1  # upper row: a base class and the novel class are both certain
    scores[:, 0, 1] = 0.9  # lower row: the novel class is certain, the background nearly so
    scores[:, 3] = 1
    result = RULES[name](scores, 1)
    assert result.isfinite().all()
    assert (result.argmax(dim=1)[:, 0] == 1).all()  # the base class keeps its pixels
    assert (result.argmax(dim=1)[:, 1] == 3).all()


@pytest.mark.parametrize("name", RULES)
def test_no_novel_evidence_leaves_the_base_map(name: str) -> None:
    scores = fused(4, 2)
    scores[:, -2:] = 0
    assert torch.equal(RULES[name](scores, 2).argmax(dim=1), scores.argmax(dim=1))


def test_split_keeps_the_class_order() -> None:
    scores = torch.arange(6.0).view(1, 6, 1, 1)
    assert [part.flatten().tolist() for part in split(scores, 2)] == [[0], [1, 2, 3], [4, 5]]
