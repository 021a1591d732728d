"""BCM in its published settings: what it reads, how it chooses its penalty, how shots are joined."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.methods.cases import BASE, make_episode, map_labels
from tests.methods.test_bcm import said, taken_for
from torch import Tensor

from gfss.common.errors import GfssError
from gfss.methods import bcm_published
from gfss.methods.bcm_published import (
    PENALTIES,
    PublishedBaseClassMining,
    average_precision,
    fit_cross_validated,
    shots_of,
    stratified_parts,
)
from gfss.methods.probe import LinearClassifier, ProbeOptions, fit_probe

MEANING = {6: 3}  # the novel class is taken for base class 3


def test_penalties_are_those_of_the_published_program() -> None:
    assert len(PENALTIES) == 10
    assert PENALTIES[0] == pytest.approx(1e-4)
    assert PENALTIES[-1] == pytest.approx(1e4)
    assert PENALTIES[5] / PENALTIES[4] == pytest.approx(10 ** (8 / 9))


def test_average_precision_is_the_area_in_steps() -> None:
    generator = torch.Generator().manual_seed(0)
    scores, positive = torch.rand(40, generator=generator), torch.rand(40, generator=generator) < 0.3
    area, recall = 0.0, 0.0
    for threshold in sorted(scores.tolist(), reverse=True):
        found = scores >= threshold
        hits = float((found & positive).sum())
        area += (hits / float(positive.sum()) - recall) * hits / float(found.sum())
        recall = hits / float(positive.sum())
    assert average_precision(scores, positive) == pytest.approx(area)


def test_every_part_has_its_share_of_every_class() -> None:
    labels = torch.tensor([0] * 10 + [1] * 5)
    parts = stratified_parts(labels)
    assert [int((parts[labels == 0] == part).sum()) for part in range(5)] == [2] * 5
    assert [int((parts[labels == 1] == part).sum()) for part in range(5)] == [1] * 5


def test_the_penalty_with_the_best_held_out_precision_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    labels = (torch.arange(60) % 3 == 0).long()
    samples = torch.randn(60, 12, generator=generator) + labels[:, None] * 0.5
    parts = stratified_parts(labels)
    means = []
    for penalty in PENALTIES:
        held_out = []
        for part in range(5):
            model = fit_probe(samples[parts != part], labels[parts != part], 2, ProbeOptions(penalty, 100, 1e-4))
            odds = samples[parts == part] @ (model.rows[1] - model.rows[0])
            held_out.append(average_precision(odds, labels[parts == part] == 1))
        means.append(sum(held_out) / 5)
    taken: list[float] = []
    fit = bcm_published.fit_probe

    def spy(*inputs: object) -> LinearClassifier:
        taken.append(inputs[3].inverse_penalty)  # type: ignore[attr-defined]
        return fit(*inputs)  # type: ignore[arg-type]

    monkeypatch.setattr(bcm_published, "fit_probe", spy)
    fit_cross_validated(samples, labels, 2)
    assert taken[-1] == PENALTIES[means.index(max(means))]


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_choice_is_that_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model", reason="scikit-learn is the reference here")
    generator = torch.Generator().manual_seed(2)
    labels = (torch.arange(90) % 3 == 0).long()
    samples = torch.randn(90, 15, generator=generator, dtype=torch.float64) + labels[:, None] * 0.4
    expected = linear_model.LogisticRegressionCV(Cs=10, cv=5, scoring="average_precision", max_iter=1000, tol=1e-6)
    expected.fit(samples.numpy(), labels.numpy())
    monkeypatch.setattr(bcm_published, "FIT", ProbeOptions(iterations=1000, tolerance=1e-8))
    found = fit_cross_validated(samples, labels, 2)
    torch.testing.assert_close(found.rows[1] - found.rows[0], torch.from_numpy(expected.coef_[0]), rtol=1e-3, atol=1e-3)


def learned(
    support_shots: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[PublishedBaseClassMining, list[tuple[Tensor, Tensor]]]:
    """The method after learning, and what each of its regressions was fitted on."""
    fitted: list[tuple[Tensor, Tensor]] = []
    fit = bcm_published.fit_cross_validated

    def spy(samples: Tensor, labels: Tensor, classes: int) -> LinearClassifier:
        fitted.append((samples, labels))
        return fit(samples, labels, classes)

    monkeypatch.setattr(bcm_published, "fit_cross_validated", spy)
    method = PublishedBaseClassMining()
    method.learn(said(make_episode(support_shots).support, MEANING))
    return method, fitted


def test_it_reads_square_roots_and_as_many_others_as_novel_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    support = make_episode(1).support
    _, fitted = learned(1, monkeypatch)
    ((samples, labels),) = fitted
    novel = map_labels(support.labels, support.features.size)[0] == BASE + 1
    expected = support.features.bottleneck[0][:, novel].sqrt().T
    torch.testing.assert_close(samples[labels == 1], expected)
    assert int((labels == 0).sum()) == int((labels == 1).sum()) == int(novel.sum())


def test_shots_are_fitted_alone_and_their_probabilities_averaged(monkeypatch: pytest.MonkeyPatch) -> None:
    method, fitted = learned(3, monkeypatch)
    assert len(fitted) == 3
    episode = make_episode(3)
    query = taken_for(episode.query.features, episode.query.labels, MEANING)
    maps = query.bottleneck.sqrt()
    shares = torch.stack([shot.classifier.logits(maps).softmax(dim=1) for shot in method.confusions[0]]).mean(dim=0)
    found = method.scores(query)
    where = query.base.argmax(dim=1) == 3
    wins = found.argmax(dim=1) == BASE + 1
    assert torch.equal(wins[where], (shares[:, 1] > shares[:, 0])[where])
    assert not wins[~where].any(), "only the confused class is overruled"
    torch.testing.assert_close(found[:, : BASE + 1], query.base)


def test_images_of_a_shot_are_the_same_ones_of_every_class() -> None:
    assert shots_of((0, 0, 1, 1, 1)) == [[0, 2], [1, 3], [4]]


def test_supports_of_nothing_but_the_class_are_refused() -> None:
    support = make_episode(1).support
    alone = replace(support, labels=torch.full_like(support.labels, BASE + 1))
    with pytest.raises(GfssError, match="only new classes"):
        PublishedBaseClassMining().learn(said(alone, MEANING))
