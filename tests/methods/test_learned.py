"""What holds for every trained compared system."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.methods.cases import make_context, make_episode
from torch import Tensor
from torch.nn.modules.dropout import _DropoutNd

from gfss.common.errors import GfssError
from gfss.features.episodes import Episode, Query
from gfss.methods import build_method
from gfss.methods.denet import Denet
from gfss.methods.learned import Learned
from gfss.training.loop import Schedule, TrainingRun, train

NAMES = ["acastle", "capl", "denet", "pfenet"]


def build(name: str) -> Learned:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        method = build_method(name, make_context(base=5))
    assert isinstance(method, Learned)
    assert method.name == name
    return method


def training_episode() -> Episode:
    """Base class 3 of five plays the novel class; features come out of inference mode, as from a feature store."""
    episode = make_episode(base=4)
    with torch.inference_mode():
        support = replace(episode.support, features=episode.support.features.map(torch.clone))
        query = Query(episode.query.features.map(torch.clone), episode.query.labels)
    return Episode(replace(support, base_labels=(0, 1, 2, 4, 5)), query)


@pytest.mark.parametrize("name", NAMES)
def test_an_untrained_method_refuses_to_score(name: str) -> None:
    method = build(name)
    episode = make_episode()
    method.learn(episode.support)
    with pytest.raises(GfssError, match=f"method '{name}' is not trained yet"):
        method.scores(episode.query.features)


@pytest.mark.parametrize("name", NAMES)
def test_a_support_without_the_class_is_refused(name: str) -> None:
    support = make_episode().support
    nothing = replace(support, labels=torch.zeros_like(support.labels))
    with pytest.raises(GfssError, match="support image 1 has no pixel of the class"):
        build(name).learn(nothing)


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_reaches_every_parameter(name: str) -> None:
    method = build(name)
    total, pixels = method.loss(training_episode())
    (total / pixels).backward()
    assert method.module is not None
    still = [key for key, value in method.module.named_parameters() if value.grad is None or not value.grad.any()]
    assert not still


@pytest.mark.parametrize("name", NAMES)
def test_training_lowers_the_loss_and_repeats(name: str) -> None:
    episode = training_episode()

    def run() -> tuple[float, float, dict[str, Tensor]]:
        method = build(name)
        assert method.module is not None
        before, pixels = method.loss(episode)
        train(method.module, lambda step: method.loss(episode), Schedule(15, 5e-3, "adamw"), run=TrainingRun(seed=1))
        after, _ = method.loss(episode)
        return (before / pixels).item(), (after / pixels).item(), method.module.state_dict()

    before, after, weights = run()
    assert after < before
    again = run()[2]
    assert all(torch.equal(value, again[key]) for key, value in weights.items())


@pytest.mark.parametrize(("name", "count"), [("acastle", 2), ("denet", 8), ("pfenet", 6)])
def test_every_dropout_takes_part_in_training(name: str, count: int) -> None:
    """With all others switched off, two passes still differ."""
    episode = training_episode()
    method = build(name)
    assert method.module is not None
    method.module.train()
    dropouts = [part for part in method.module.modules() if isinstance(part, _DropoutNd)]
    assert len(dropouts) == count
    if isinstance(method, Denet):
        method.classifier.row_dropout = 0.0
    rates = [dropout.p for dropout in dropouts]
    for rate, one in zip(rates, dropouts, strict=True):
        for other in dropouts:
            other.p = 0.0
        same = {method.loss(episode)[0].item() for _ in range(3)}
        assert len(same) == 1
        one.p = max(rate, 0.5)
        torch.manual_seed(0)
        assert len({method.loss(episode)[0].item() for _ in range(6)}) > 1
