"""DIaM against a slow implementation straight from its formulas, and its promises."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.methods.cases import STRIDE, make_episode
from torch import Tensor
from torch.nn import functional as F

from gfss.features.episodes import Episode
from gfss.methods import diam
from gfss.methods.diam import Diam
from gfss.methods.diam_low_rank import LowRankForm, leading_directions
from gfss.methods.diam_options import CHOSEN, PROGRAM, PUBLISHED, DiamOptions
from gfss.methods.prototypes import novel_prototypes

SMALL = (5, 6)
FEW = DiamOptions(iterations=13)  # enough to pass the second estimate of the class shares
WHOLE = LowRankForm(support_rank=10_000, query_rank=10_000, dense=100)  # nothing is left out


def test_published_weights() -> None:
    weights = PUBLISHED.support_weight, PUBLISHED.prior_weight, PUBLISHED.entropy_weight, PUBLISHED.distillation_weight
    assert weights == (100, 1, 1, 100)
    assert PUBLISHED.distillation_several == 100
    assert (PUBLISHED.rate, PUBLISHED.iterations, PUBLISHED.prior_update) == (1.25e-3, 100, 10)


@pytest.mark.parametrize(("shots", "novel", "distillation"), [(1, 1, 3.0), (1, 2, 100.0), (2, 2, 3.0)])
def test_equals_the_slow_implementation(shots: int, novel: int, distillation: float) -> None:
    episode = make_episode(shots, novel, size=SMALL)
    other = {"distillation_several": 1e3} if novel == 1 else {"distillation_weight": 1e3}  # must not be read
    options = replace(FEW, **{"distillation_weight": distillation, "distillation_several": distillation, **other})
    method = Diam(options)
    method.learn(episode.support)
    found = method.scores(episode.query.features)
    expected = np.stack([slow_scores(episode, image, options) for image in range(len(episode.query.features))])
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("low_rank", [False, True])
@pytest.mark.parametrize("novel", [1, 2])
def test_the_published_program_equals_the_slow_implementation(novel: int, low_rank: bool) -> None:
    options = replace(PROGRAM, iterations=13, low_rank=low_rank)
    episode = make_episode(2, novel, size=SMALL)
    method = Diam(options, form=WHOLE)
    assert method.reads_void
    assert method.probabilities
    method.void = episode.query.labels == 255
    assert method.void.any()
    method.learn(episode.support)
    found = method.scores(episode.query.features)
    expected = np.stack([slow_scores(episode, image, options) for image in range(len(episode.query.features))])
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)
    method.void = None
    assert not np.allclose(method.scores(episode.query.features).numpy(), expected, atol=1e-5)


def test_a_query_that_is_void_everywhere_counts_as_one_without_void() -> None:
    episode = make_episode(1, 1, size=SMALL)
    method = Diam(replace(FEW, void_left_out=True))
    method.learn(episode.support)
    unknown = method.scores(episode.query.features)
    method.void = torch.ones_like(episode.query.labels, dtype=torch.bool)
    assert torch.equal(method.scores(episode.query.features), unknown)


@pytest.mark.parametrize(("shots", "novel"), [(1, 1), (2, 2)])
def test_the_low_rank_form_with_all_directions_is_the_descent(shots: int, novel: int) -> None:
    episode = make_episode(shots, novel, queries=3)
    plain, whole = Diam(FEW), Diam(replace(FEW, low_rank=True), form=WHOLE)
    for method in (plain, whole):
        method.learn(episode.support)
    expected = plain.scores(episode.query.features)
    found = whole.scores(episode.query.features)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


def slow_scores(episode: Episode, image: int, options: DiamOptions) -> np.ndarray:
    """Scores (classes, h, w) of one query by loops over positions and derivatives by the chain rule."""
    support, novel = episode.support, episode.support.novel
    base = support.base + 1
    height, width = support.features.size
    background = options.background_one_shot if len(support.owners) == novel else options.background_more_shots
    distillation = options.distillation_weight if novel == 1 else options.distillation_several
    places = [(y, x) for y in range(height) for x in range(width)]
    query = [episode.query.features.bottleneck[image, :, y, x].double().numpy() for y, x in places]
    snapshot = [_softmax(episode.query.features.base[image, :, y, x].double().numpy()) for y, x in places]
    truth = [int(episode.query.labels[image, y * STRIDE, x * STRIDE]) for y, x in places]
    counted = [i for i, label in enumerate(truth) if label != 255 or not options.void_left_out]
    samples = []
    for i in range(len(support.labels)):
        for y, x in places:
            label = int(support.labels[i, y * STRIDE, x * STRIDE])
            if label != 255:
                samples.append(
                    (support.features.bottleneck[i, :, y, x].double().numpy(), label if label >= base else 0)
                )
    if options.pooled:
        own = [[x for x, given in samples if given == base + new] for new in range(novel)]
        prototypes = torch.tensor(np.array([sum(some) / len(some) for some in own]))
    else:
        prototypes = novel_prototypes(support).double()
    rows = torch.cat([support.base_rows.double(), F.normalize(prototypes, dim=1)]).numpy()
    biases = np.zeros(len(rows))
    prior = np.zeros(len(rows))
    for iteration in range(options.iterations):
        row_steps, bias_steps = np.zeros_like(rows), np.zeros_like(biases)

        def follow(
            x: np.ndarray, p: np.ndarray, slope: np.ndarray, row_steps: np.ndarray, bias_steps: np.ndarray
        ) -> None:
            """Add the derivatives of one position, given those with respect to its probabilities."""
            through = p * (slope - (slope * p).sum())
            row_steps += np.outer(through, x)
            bias_steps += through

        for x, label in samples:
            p = _softmax(rows @ x + biases)
            slope = np.zeros(len(rows))
            if label == 0:
                slope[:base] = -background / p[:base].sum()
            else:
                slope[label] = -1 / p[label]
            follow(x, p, options.support_weight / len(samples) * slope, row_steps, bias_steps)
        probabilities = {i: _softmax(rows @ query[i] + biases) for i in counted}
        shares = sum(probabilities.values()) / len(counted)
        if iteration in (0, 10):
            prior = shares
        for i, p in probabilities.items():
            q = snapshot[i]
            slope = options.prior_weight * (np.log(shares / prior) + 1) - options.entropy_weight * (np.log(p) + 1)
            for k in range(len(rows)):
                inside = p[0] + p[base:].sum() if k == 0 or k >= base else p[k]
                outside = q[k] if k < base else q[0]
                slope[k] += distillation * (math.log(inside / outside) + 1)
            follow(query[i], p, slope / len(counted), row_steps, bias_steps)
        rows, biases = rows - options.rate * row_steps, biases - options.rate * bias_steps
    scores = np.stack([rows @ x + biases for x in query], axis=1)
    if options.as_probabilities:
        scores = np.stack([_softmax(column) for column in scores.T], axis=1)
    return scores.reshape(len(rows), height, width)


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max())
    return powers / powers.sum()


@pytest.mark.parametrize("low_rank", [False, True])
def test_derivatives_are_those_of_the_loss(low_rank: bool) -> None:
    """A step of either form against automatic differentiation of the loss as it is defined."""
    episode = make_episode(1, 2)
    query = episode.query.features
    method = Diam(replace(FEW, iterations=1, low_rank=low_rank), form=WHOLE)
    method.learn(episode.support)
    table = method.start.repeat(len(query), 1, 1).requires_grad_()
    (slopes,) = torch.autograd.grad(defined_loss(table, episode, method).sum(), table)
    adapted = method.adapt(query, method.position_weights(query))
    steps = (method.start - adapted) / method.options.rate
    torch.testing.assert_close(steps, slopes, atol=1e-3, rtol=1e-4)  # differences of numbers near 1, divided by 1e-3


def defined_loss(table: Tensor, episode: Episode, method: Diam, prior: Tensor | None = None) -> Tensor:
    """DIaM's loss (images,) of classifiers; the estimated class shares are their own if not given."""
    support, query = episode.support, episode.query.features
    known = support.base + 1
    height, width = support.features.size
    labels = support.labels[:, ::STRIDE, ::STRIDE][:, :height, :width].flatten().long()
    labelled = labels != 255
    samples = support.features.bottleneck.movedim(1, -1).flatten(0, 2)[labelled]
    labels = labels[labelled]
    found = (table[..., :-1] @ samples.T + table[..., -1:]).softmax(dim=1)
    none = labels < known
    background = 0.01 if len(support.owners) == support.novel else 0.15
    right = torch.stack(
        [found[:, :known].sum(dim=1)[:, i] if none[i] else found[:, labels[i], i] for i in range(len(labels))]
    )
    entropy_of_support = -(torch.where(none, background, 1.0)[:, None] * right.log()).mean(dim=0)
    p = (table[..., :-1] @ query.bottleneck.flatten(2) + table[..., -1:]).softmax(dim=1)
    shares = p.mean(dim=2)
    divergence = (shares * (shares / (shares if prior is None else prior)).log()).sum(dim=1)
    entropy = -(p * p.log()).sum(dim=1).mean(dim=1)
    told = torch.cat([p[:, :1] + p[:, known:].sum(dim=1, keepdim=True), p[:, 1:known]], dim=1)
    distillation = (told * (told.log() - query.base.flatten(2).log_softmax(dim=1))).sum(dim=1).mean(dim=1)
    return 100 * entropy_of_support + divergence + entropy + method.distillation * distillation


def shares_of(table: Tensor, episode: Episode) -> Tensor:
    """Class shares (images, classes) of query images."""
    logits = table[..., :-1] @ episode.query.features.bottleneck.flatten(2) + table[..., -1:]
    return logits.softmax(dim=1).mean(dim=2)


def after(steps: int, method: Diam, episode: Episode) -> Tensor:
    """Classifiers after some steps."""
    method.options = replace(method.options, iterations=steps)
    return method.adapt(episode.query.features, method.position_weights(episode.query.features))


def test_losses_fall_on_average() -> None:
    losses = []
    for seed in range(4):
        episode = make_episode(1, 1, queries=4, seed=seed)
        method = Diam()
        method.learn(episode.support)
        tables = {steps: after(steps, method, episode) for steps in (10, 20, 30, 50, 75, 100)}
        prior = shares_of(tables[10], episode)  # from then on
        losses.append(torch.stack([defined_loss(table, episode, method, prior).mean() for table in tables.values()]))
    assert (torch.stack(losses).mean(dim=0).diff() < 0).all()


def test_reading_supports_in_every_second_step_changes_little() -> None:
    episode = make_episode(2, 2, queries=4)
    results = []
    for dense in (10, 100):
        method = Diam(CHOSEN, form=replace(WHOLE, dense=dense))
        method.learn(episode.support)
        results.append(method.scores(episode.query.features))
    start = Diam(replace(FEW, iterations=1, rate=1e-30))
    start.learn(episode.support)
    way = (results[1] - start.scores(episode.query.features)).abs().max()
    assert 0 < (results[0] - results[1]).abs().max() < 1e-3 * way


def test_few_directions_are_enough_where_features_have_few() -> None:
    """Features along five directions: ranks of six (with the ones for the biases) give what all directions give."""
    episode = make_episode(2, 2)
    channels = episode.query.features.bottleneck.shape[1]
    assert channels > 6
    maps = torch.randn(5, channels, generator=torch.Generator().manual_seed(3))
    for features in (episode.support.features, episode.query.features):
        flat = torch.einsum("nchw,rc,rd->ndhw", features.bottleneck, maps, maps) / channels
        features.bottleneck.copy_(flat)
    results = []
    for rank in (6, 1000, 2):
        form = replace(WHOLE, support_rank=rank, query_rank=rank)
        method = Diam(replace(FEW, low_rank=True), form=form)
        method.learn(episode.support)
        results.append(method.scores(episode.query.features))
    torch.testing.assert_close(results[0], results[1], atol=1e-4, rtol=1e-4)
    assert (results[2] - results[1]).abs().max() > 1e-2


def test_leading_directions() -> None:
    generator = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(2, 20, 20, generator=generator)).Q
    values = 0.5 ** torch.arange(20.0)
    gram = basis @ torch.diag(values) @ basis.transpose(1, 2)
    found = leading_directions(gram, 6)
    torch.testing.assert_close(found.transpose(1, 2) @ found, torch.eye(6).repeat(2, 1, 1), atol=1e-5, rtol=0)
    kept = torch.linalg.svdvals(basis[..., :4].transpose(1, 2) @ found)  # cosines of the first four with those found
    assert (kept > 0.99).all()
    assert torch.equal(found, leading_directions(gram, 6))
    assert torch.equal(leading_directions(gram, 20), torch.eye(20).repeat(2, 1, 1))


@pytest.mark.parametrize("options", [DiamOptions(), CHOSEN])
def test_large_scores_stay_finite(options: DiamOptions) -> None:
    """Powers of scores far apart must neither overflow nor make every class impossible."""
    episode = make_episode(1, 1)
    for features in (episode.support.features, episode.query.features):
        features.bottleneck.mul_(30)
        features.base.mul_(30)
    method = Diam(options)
    method.learn(episode.support)
    assert method.scores(episode.query.features).isfinite().all()


def test_images_are_adapted_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    episode = make_episode(1, 2, queries=5)
    results = []
    for batch in (1, 3, 8):
        monkeypatch.setattr(diam, "BATCH", batch)
        method = Diam(FEW)
        method.learn(episode.support)
        results.append(method.scores(episode.query.features))
    torch.testing.assert_close(results[1], results[0], atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(results[2], results[0], atol=1e-4, rtol=1e-5)


def test_blocks_of_supports_change_nothing() -> None:
    episode = make_episode(2, 2)
    results = []
    for block in (7, 10_000):
        method = Diam(replace(FEW, low_rank=True), form=replace(WHOLE, block=block))
        method.learn(episode.support)
        assert method.low_rank is not None
        results.append((len(method.low_rank.blocks), method.scores(episode.query.features)))
    assert results[0][0] > results[1][0] == 3  # no novel class, the first, the second
    torch.testing.assert_close(results[0][1], results[1][1], atol=1e-4, rtol=1e-5)


def test_starts_at_the_base_scores_and_prototypes() -> None:
    episode = make_episode(2, 1)
    method = Diam(replace(FEW, iterations=1, rate=0.0))
    method.learn(episode.support)
    scores = method.scores(episode.query.features)
    torch.testing.assert_close(scores[:, :-1], episode.query.features.base, atol=1e-5, rtol=1e-5)
    direction = F.normalize(novel_prototypes(episode.support), dim=1)
    expected = torch.einsum("qchw,nc->qnhw", episode.query.features.bottleneck, direction)
    torch.testing.assert_close(scores[:, -1:], expected, atol=1e-5, rtol=1e-5)


def test_starts_at_the_biases_of_a_base_classifier_that_has_some() -> None:
    episode = make_episode(1, 1, size=SMALL)
    bias = torch.linspace(-1, 1, episode.support.base + 1)
    method = Diam(replace(FEW, iterations=0))
    method.learn(replace(episode.support, base_bias=bias))
    with_bias = method.scores(episode.query.features)
    method.learn(episode.support)
    without = method.scores(episode.query.features)
    known = len(bias)
    torch.testing.assert_close(with_bias[:, :known], without[:, :known] + bias[:, None, None])
    torch.testing.assert_close(with_bias[:, known:], without[:, known:])


def test_runs_in_inference_mode() -> None:
    """The harness scores in inference mode, and its features were made there."""
    with torch.inference_mode():
        episode = make_episode()
        method = Diam(FEW)
        method.learn(episode.support)
        inside = method.scores(episode.query.features)
    episode = make_episode()
    method.learn(episode.support)
    torch.testing.assert_close(inside.clone(), method.scores(episode.query.features))
