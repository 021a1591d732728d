"""PFENet run once for every class: scores, and the memory of the base classes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from tests.methods.cases import make_context, make_episode
from tests.methods.slow import Array, array, cosine, ready, relu, softmax
from tests.methods.test_pfenet import slow_prior, slow_segment, slow_vector

from gfss.methods.pfenet import PfenetOptions
from gfss.methods.pfenet_per_class import EXEMPLARS, Exemplars, PfenetPerClass

SLIM = PfenetOptions(width=3)
KEPT = (0, 1, 3, 4, 5)  # base class 2 plays the novel class


def slow_base_class(p: dict[str, Array], place: int, middle: Array, high: Array) -> Array:
    """Logits of one query for a base class, from its kept positions."""
    count = min(int(p["exemplars.seen"][place]), EXEMPLARS)
    kept = [p["exemplars.high"][place, i] for i in range(count)]
    best = np.array([[max([0.0, *(cosine(high[:, y, x], s) for s in kept)]) for x in range(9)] for y in range(9)])
    weight = p["net.reduce_support.0.weight"][:, :, 0, 0]
    vector = sum(relu(weight @ p["exemplars.middle"][place, i]) for i in range(count)) / count
    prior = (best - best.min()) / (best.max() - best.min() + 1e-7)
    return slow_segment(_net(p), middle, vector, prior)[0]


def _net(p: dict[str, Array]) -> dict[str, Array]:
    return {name.removeprefix("net."): value for name, value in p.items()}


def test_scores_follow_the_formulas_and_an_unseen_class_never_wins() -> None:
    method = PfenetPerClass(make_context(base=5).model.head, SLIM)
    episode = make_episode(shots=2, novel=2, base=4, queries=1)
    support = replace(episode.support, base_labels=KEPT)
    method.loss(replace(episode, support=support))
    method.exemplars.seen[KEPT[4] - 1] = 0  # as if no training image had shown it
    p = ready(method)
    method.learn(support)
    scores = array(method.scores(episode.query.features))[0]
    middle, high = (array(episode.query.features.levels[name][0]) for name in ("layer3", "layer4"))
    found: list[Array] = []
    unseen: list[int] = []
    for label, full in enumerate(KEPT[1:], start=1):
        if p["exemplars.seen"][full - 1] == 0:
            unseen.append(label)
            found.append(np.full((2, 9, 9), [[[40.0]], [[-40.0]]]))
        else:
            found.append(slow_base_class(p, full - 1, middle, high))
    for position in range(2):
        prior = slow_prior(support, position, high)
        found.append(slow_segment(_net(p), middle, slow_vector(_net(p), support, position), prior)[0])
    assert p["exemplars.seen"][1] == 0  # the fake novel class is no base class
    assert 4 in unseen
    assert len(unseen) < 4
    assert not np.isin(scores.argmax(axis=0), unseen).any()
    for y in range(9):
        for x in range(9):
            classes = [softmax(logits[:, y, x].tolist())[1] for logits in found]
            expected = [min(1 - c for c in classes), *classes]
            np.testing.assert_allclose(scores[:, y, x], expected, atol=1e-5)


def test_kept_positions_are_of_the_labelled_class() -> None:
    method = PfenetPerClass(make_context(base=5).model.head, SLIM)
    episode = make_episode(base=4)
    labels = torch.zeros_like(episode.support.labels)
    labels[:, 8:16, 8:16] = 2
    labels[:, 20:28, 20:28] = 5  # the novel class
    method.loss(replace(episode, support=replace(episode.support, labels=labels, base_labels=KEPT)))
    kept, _ = method.exemplars.of(KEPT[2] - 1)
    mostly_inside = episode.support.features.levels["layer3"][0, :, 2:4, 2:4].flatten(1).T
    assert torch.equal(kept[:4], mostly_inside)


def test_the_newest_positions_replace_the_oldest() -> None:
    memory = Exemplars(base=2, middle=1, high=1)
    values = torch.arange(EXEMPLARS + 3.0)[:, None]
    for start in range(0, len(values), 10):
        memory.keep(1, values[start : start + 10], -values[start : start + 10])
    middle, high = memory.of(1)
    assert sorted(middle.flatten().tolist()) == list(range(3, EXEMPLARS + 3))
    assert torch.equal(middle, -high)
    assert len(memory.of(0)[0]) == 0
