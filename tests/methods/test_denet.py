"""DENet against its formulas."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.methods.cases import SIZE, make_context, make_episode
from tests.methods.slow import Array, array, classify, convolve, cross_entropy, masked_sum, ready, relu, shares, sigmoid

from gfss.common.errors import GfssError
from gfss.features.episodes import Support
from gfss.methods.denet import PUBLISHED, Denet, DenetOptions

SLIM = replace(PUBLISHED, width=4, rates=(2, 3))
KEPT = (0, 1, 3, 4, 5)  # base class 2 plays the novel class


def slow_embed(p: dict[str, Array], maps: Array) -> Array:
    def layer(name: str, entering: Array, dilation: int = 1) -> Array:
        return relu(convolve(entering, p[f"embedding.{name}.0.weight"], p[f"embedding.{name}.0.bias"], dilation))

    x = layer("enter", maps, 2)
    whole = layer("image", np.array([[[channel.mean()]] for channel in x]))
    parts = [layer("local.0", x), layer("local.1", x, 2), layer("local.2", x, 3), np.broadcast_to(whole, (4, *SIZE))]
    joined = layer("join", np.concatenate(parts))
    x = convolve(joined, p["embedding.leave.0.weight"])
    # width 4 has four groups: every channel is normalised by itself
    normal = [(channel - channel.mean()) / np.sqrt(channel.var() + 1e-5) for channel in x]
    weight, bias = p["embedding.leave.1.weight"], p["embedding.leave.1.bias"]
    return relu(np.array([weight[c] * normal[c] + bias[c] for c in range(4)]))


def slow_rows(p: dict[str, Array], support: Support) -> list[Array]:
    rows = [p["classifier.rows"][label] for label in support.base_labels]
    for position, label in enumerate(support.novel_labels):
        shots: list[Array] = []
        for image, owner in enumerate(support.owners):
            if owner != position:
                continue
            maps = slow_embed(p, array(support.features.levels["layer3"][image]))
            mask = shares(support.labels[image], label, SIZE)
            pooled = masked_sum(maps, mask) / mask.size
            hidden = relu(p["classifier.attention.0.weight"] @ pooled + p["classifier.attention.0.bias"])
            gate = p["classifier.attention.2.weight"] @ hidden + p["classifier.attention.2.bias"]
            gated = np.array([sigmoid(g) * channel for g, channel in zip(gate, maps, strict=True)])
            prototype = masked_sum(gated, mask) / (mask.sum() + 1e-3)
            shots.append(p["classifier.transfer.weight"] @ prototype + p["classifier.transfer.bias"])
        rows.append(sum(shots) / len(shots))
    return rows


def test_scores_and_loss_follow_the_formulas() -> None:
    method = Denet(make_context(base=5).model.head, SLIM)
    p = ready(method)
    episode = make_episode(shots=2, novel=2, base=4)
    support = replace(episode.support, base_labels=KEPT)
    rows = slow_rows(p, support)
    expected = [classify(slow_embed(p, array(maps)), rows) for maps in episode.query.features.levels["layer3"]]
    method.learn(support)
    np.testing.assert_allclose(array(method.scores(episode.query.features)), expected, atol=1e-5)
    parts = [cross_entropy(s, labels) for s, labels in zip(expected, episode.query.labels, strict=True)]
    total, pixels = method.loss(replace(episode, support=support))
    assert int(pixels) == sum(count for _, count in parts)
    assert float(total / pixels) == pytest.approx(sum(part for part, _ in parts) / int(pixels), abs=1e-5)


def test_learned_rows_start_as_the_published_ones() -> None:
    """Evenly between -1 and 1 over the square root of the width."""
    torch.manual_seed(0)
    rows = Denet(make_context().model.head, PUBLISHED).classifier.rows
    assert float(rows.detach().abs().max()) == pytest.approx(256**-0.5, rel=0.02)


def test_training_drops_whole_base_rows_and_no_novel_row() -> None:
    method = Denet(make_context().model.head, replace(SLIM, dropout=0.0))
    support = make_episode(novel=2).support
    method.learn(support)
    kept = method.rows
    method.classifier.train()
    torch.manual_seed(0)
    dropped: set[bool] = set()
    for _ in range(10):
        method.learn(support)
        for row, original in zip(method.rows[:-2], kept[:-2], strict=True):
            dropped.add(gone := bool((row == 0).all()))
            assert gone or torch.allclose(row, 2 * original)
        torch.testing.assert_close(method.rows[-2:], kept[-2:])
    assert dropped == {True, False}


def test_a_level_that_the_base_model_does_not_read_is_named() -> None:
    with pytest.raises(GfssError, match=r"unknown encoder level 'layer5'.*layer3, layer4"):
        Denet(make_context().model.head, DenetOptions(levels=("layer5",)))
