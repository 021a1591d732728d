"""PFENet against its formulas, in both generalisations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.methods.cases import SIZE, STRIDE, make_context, make_episode
from tests.methods.slow import (
    Array,
    array,
    average,
    convolve,
    cosine,
    cross_entropy,
    masked_sum,
    ready,
    relu,
    resize,
    shares,
)

from gfss.common.errors import GfssError
from gfss.features.episodes import Support
from gfss.methods.pfenet import PUBLISHED, Pfenet, PfenetOptions, scaled_size
from gfss.models.base_model import PyramidHead

Sizes = list[tuple[int, int]]
SLIM = PfenetOptions(width=3)
SIZES: Sizes = [(9, 9), (4, 4), (2, 2), (1, 1)]  # fractions 1, 1/2, 1/4, 1/8 of the map


FIXED: Sizes = [(12, 12), (5, 5)]  # the first larger than the map, as 60 is for most


def slow_vector(p: dict[str, Array], support: Support, position: int) -> Array:
    shots: list[Array] = []
    for image, owner in enumerate(support.owners):
        if owner == position:
            reduced = relu(convolve(array(support.features.levels["layer3"][image]), p["reduce_support.0.weight"]))
            mask = shares(support.labels[image], support.base + 1 + position, SIZE)
            shots.append(masked_sum(reduced, mask) / (mask.sum() + 5e-4))
    return sum(shots) / len(shots)


def slow_prior(support: Support, position: int, query: Array, sampled: bool = False) -> Array:
    priors: list[Array] = []
    for image, owner in enumerate(support.owners):
        if owner != position:
            continue
        mask = shares(support.labels[image], support.base + 1 + position, SIZE)
        if sampled:
            mask = array(support.labels[image, ::STRIDE, ::STRIDE] == support.base + 1 + position)
        high = array(support.features.levels["layer4"][image])
        inside = [high[:, y, x] for y in range(9) for x in range(9) if mask[y, x] > 0]
        assert len(inside) < 81  # so that a position outside the mask counts with 0
        best = np.array(
            [[max([0.0, *(cosine(query[:, y, x], s) for s in inside)]) for x in range(9)] for y in range(9)]
        )
        priors.append((best - best.min()) / (best.max() - best.min() + 1e-7))
    return sum(priors) / len(priors)


def slow_output(p: dict[str, Array], name: str, x: Array) -> Array:
    hidden = relu(convolve(x, p[f"{name}.0.weight"]))
    return convolve(hidden, p[f"{name}.3.weight"], p[f"{name}.3.bias"])


def slow_segment(
    p: dict[str, Array], middle: Array, vector: Array, prior: Array, sizes: Sizes = SIZES
) -> tuple[Array, list[Array]]:
    """Logits of one query and the logits at the single scales."""

    def refined(x: Array, name: str) -> Array:
        return x + relu(convolve(relu(convolve(x, p[f"{name}.0.weight"])), p[f"{name}.2.weight"]))

    query = relu(convolve(middle, p["reduce_query.0.weight"]))
    maps: list[Array] = []
    for number, size in enumerate(sizes):
        guide = np.array([[[v] * size[1]] * size[0] for v in vector])
        entering = np.concatenate([average(query, size), guide, resize(prior[None], size)])
        x = relu(convolve(entering, p[f"enter.{number}.0.weight"]))
        if number:
            both = np.concatenate([x, resize(maps[-1], size)])
            x = x + relu(convolve(both, p[f"merge.{number - 1}.0.weight"]))
        maps.append(refined(x, f"refine.{number}"))
    joined = relu(convolve(np.concatenate([resize(x, SIZE) for x in maps]), p["join.0.weight"]))
    inner = [slow_output(p, f"inner.{number}", x) for number, x in enumerate(maps)]
    return slow_output(p, "output", refined(joined, "join_refine")), inner


def test_scores_and_loss_follow_the_formulas() -> None:
    method = Pfenet(make_context().model.head, SLIM)
    p = ready(method)
    episode = make_episode(shots=2, novel=2)
    features = episode.query.features
    scores: list[Array] = []
    expected, pixels = 0.0, 0
    for image in range(len(features)):
        maps = [array(features.base[image])]
        for position, label in enumerate(episode.support.novel_labels):
            prior = slow_prior(episode.support, position, array(features.levels["layer4"][image]))
            vector = slow_vector(p, episode.support, position)
            logits, inner = slow_segment(p, array(features.levels["layer3"][image]), vector, prior)
            rest = np.log(np.exp(array(features.base[image])).sum(axis=0))
            maps.append((rest + logits[1] - logits[0])[None])
            truth = episode.query.labels[image]
            binary = torch.where(truth == 255, truth, (truth == label).byte())
            part, count = cross_entropy(logits, binary)
            expected += part + sum(cross_entropy(scale, binary)[0] for scale in inner) / len(inner)
            pixels += count
        scores.append(np.concatenate(maps))
    method.learn(episode.support)
    np.testing.assert_allclose(array(method.scores(features)), scores, atol=1e-5)
    total, counted = method.loss(episode)
    assert int(counted) == pixels
    assert float(total) / pixels == pytest.approx(expected / pixels, abs=1e-5)


def test_the_published_form_has_fixed_bins_and_a_sampled_mask() -> None:
    assert (PUBLISHED.scales, PUBLISHED.sampled, PUBLISHED.rounded) == ((60, 30, 15, 8), True, False)
    method = Pfenet(make_context().model.head, replace(PUBLISHED, width=3, scales=(12, 5)))
    p = ready(method)
    episode = make_episode(shots=2)
    features = episode.query.features
    vector, scores = slow_vector(p, episode.support, 0), list[Array]()
    for base, middle, high in zip(features.base, features.levels["layer3"], features.levels["layer4"], strict=True):
        prior = slow_prior(episode.support, 0, array(high), sampled=True)
        logits, _ = slow_segment(p, array(middle), vector, prior, FIXED)
        rest = np.log(np.exp(array(base)).sum(axis=0))
        scores.append(np.concatenate([array(base), (rest + logits[1] - logits[0])[None]]))
    method.learn(episode.support)
    np.testing.assert_allclose(array(method.scores(features)), scores, atol=1e-5)


def test_the_published_bins_on_coco_are_fractions_cut_off() -> None:
    context = make_context()
    model = replace(context.model.card, data="coco")
    context.model.card = model
    options = replace(context, published=True).pfenet
    assert [scaled_size((27, 27), scale, options.rounded) for scale in options.scales] == [
        (27, 27), (13, 13), (6, 6), (3, 3)
    ]  # fmt: skip


def test_a_base_model_without_middle_levels_is_refused() -> None:
    with pytest.raises(GfssError, match="needs encoder level layer2, but there is only layer3, layer4"):
        Pfenet(make_context().model.head, PfenetOptions(middle=("layer2",)))


def test_only_the_middle_levels_that_exist_are_read() -> None:
    head = make_context().model.head
    assert Pfenet(head).middle == ("layer3",)
    assert Pfenet(head, channels={"layer2": 8, **head.channels}).middle == ("layer3",)
    others = PyramidHead({"layer4": 8}, 4, 4, 8)
    assert Pfenet(others, channels={"layer2": 8, "layer3": 8, "layer4": 8}).middle == ("layer2", "layer3")
