from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from tests.evaluation.trivial import Background, with_oracle
from tests.training.tiny import FOLD, make_context, make_source
from torch import Tensor

from gfss.common.errors import GfssError
from gfss.data.episodes import Task
from gfss.evaluation import protocols
from gfss.evaluation.protocols import MethodResult, ProtocolName, draw_tasks, evaluate_methods
from gfss.features.episodes import EpisodeSampler, Support
from gfss.methods import build_method
from gfss.methods.base import Method
from gfss.models.base_model import Features

BOTH: list[ProtocolName] = ["paired", "joint"]
TASKS = 4


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> EpisodeSampler:
    return make_source(tmp_path_factory.mktemp("source"), keep=True)


def figures(result: MethodResult) -> dict[str, dict[str, object]]:
    return {name: metric.summary().model_dump() for name, metric in result.metrics.items()}


def run(source: EpisodeSampler, names: list[str], tasks: list[Task]) -> dict[str, MethodResult]:
    context = make_context(source)
    seen, oracle = with_oracle(source)
    own: dict[str, Method] = {"oracle": oracle, "background": Background()}
    return evaluate_methods([own.get(name) or build_method(name, context) for name in names], seen, tasks)


@pytest.mark.parametrize("protocol", BOTH)
@pytest.mark.parametrize("shots", [1, 3])
@pytest.mark.parametrize(("name", "expected"), [("oracle", 100.0), ("background", 0.0)])
def test_trivial_methods_score_exactly(
    source: EpisodeSampler, protocol: ProtocolName, shots: int, name: str, expected: float
) -> None:
    tasks = draw_tasks(source, protocol, shots, TASKS, seed=0)
    found = figures(run(source, [name], tasks)[name])
    assert set(found) == {"per-image", "accumulated"}
    for values in found.values():
        assert [values[key] for key in ("base", "novel", "miou", "mean", "harmonic")] == [expected] * 5
        assert set(values["classes"].values()) == {expected}  # type: ignore[attr-defined]


def test_the_oracle_knows_the_truth_of_every_chunk(source: EpisodeSampler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocols, "CHUNK", 5)
    tasks = draw_tasks(source, "joint", 1, 1, seed=0)
    assert figures(run(source, ["oracle"], tasks)["oracle"])["accumulated"]["background"] == 100.0


@pytest.mark.parametrize("protocol", BOTH)
def test_figures_do_not_depend_on_the_order_of_tasks(source: EpisodeSampler, protocol: ProtocolName) -> None:
    tasks = draw_tasks(source, protocol, 1, TASKS, seed=0)
    shuffled = random.Random(0).sample(tasks, len(tasks))
    assert shuffled != tasks
    forward, other = run(source, ["nsf"], tasks), run(source, ["nsf"], shuffled)
    assert figures(forward["nsf"]) == figures(other["nsf"])


def test_a_method_scores_the_same_alone_and_among_others(source: EpisodeSampler) -> None:
    tasks = draw_tasks(source, "paired", 1, 2, seed=1)
    together = run(source, ["score", "nsf", "background", "npf"], tasks)
    for name in ("score", "nsf", "npf"):
        assert figures(run(source, [name], tasks)[name]) == figures(together[name])


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Some torch threads, and so workers; copies of a method remember nothing for it."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("protocol", BOTH)
def test_results_do_not_depend_on_the_number_of_threads(source: EpisodeSampler, protocol: ProtocolName) -> None:
    tasks = draw_tasks(source, protocol, 1, 5, seed=0)
    found: list[object] = []
    for number in (1, 2, 3):
        with threads(number):
            found.append({name: figures(result) for name, result in run(source, ["nsf", "bcm"], tasks).items()})
            assert torch.get_num_threads() == number
    assert found[0] == found[1] == found[2]


class Broken(Method):
    """Cannot learn."""

    name = "broken"

    def learn(self, support: Support) -> None:
        raise GfssError("cannot learn")

    def scores(self, query: Features) -> Tensor:
        return query.base


def test_an_error_in_a_worker_ends_the_examination(source: EpisodeSampler) -> None:
    tasks = draw_tasks(source, "paired", 1, 8, seed=0)
    with threads(2), pytest.raises(GfssError, match="cannot learn"):
        evaluate_methods([Broken()], source, tasks)


class Witness(Method):
    """Remembers what it was shown."""

    def __init__(self, name: str) -> None:
        self.name = name  # type: ignore[misc]
        self.seen: list[Support | Features] = []

    def learn(self, support: Support) -> None:
        self.seen.append(support)
        self.classes = support.base + 1 + support.novel

    def scores(self, query: Features) -> Tensor:
        self.seen.append(query)
        assert not torch.is_grad_enabled()
        scores = torch.zeros(len(query), self.classes, *query.size)
        scores[:, 0] = 1
        return scores


@pytest.mark.parametrize("protocol", BOTH)
def test_all_methods_see_the_same_tasks(source: EpisodeSampler, protocol: ProtocolName) -> None:
    first, second = Witness("first"), Witness("second")
    tasks = draw_tasks(source, protocol, 2, 3, seed=0)
    with threads(1):
        evaluate_methods([first, second], source, tasks)
    assert len(first.seen) > len(tasks)
    assert all(left is right for left, right in zip(first.seen, second.seen, strict=True))
    supports = [item for item in first.seen if isinstance(item, Support)]
    assert [support.novel for support in supports] == [len(drawn.novel) for drawn in tasks]
    assert [len(support.owners) for support in supports] == [2 * len(drawn.novel) for drawn in tasks]


def test_supports_may_come_from_another_split(source: EpisodeSampler, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = make_source(tmp_path_factory.mktemp("other"), count=24, seed=1)
    tasks = draw_tasks(source, "joint", 1, 2, seed=0, supports=other)
    assert all(len(drawn.queries) == len(source.dataset) for drawn in tasks)
    witness = Witness("witness")
    with threads(1):
        results = evaluate_methods([witness], source, tasks, supports=other)
    shown = next(item for item in witness.seen if isinstance(item, Support))
    images = [image for group in tasks[0].supports for image in group]
    assert torch.equal(shown.labels, other.store.bank.labels(images, FOLD.label_table(FOLD.novel)))
    assert figures(results["witness"])["accumulated"]["base"] == 0


def test_time_is_counted_for_every_part(source: EpisodeSampler) -> None:
    tasks = draw_tasks(source, "paired", 1, 1, seed=0)
    seconds = run(source, ["nsf"], tasks)["nsf"].seconds
    assert set(seconds) == {"learn", "segment", "count"}
    assert min(seconds.values()) > 0


def test_unknown_protocol(source: EpisodeSampler) -> None:
    with pytest.raises(GfssError, match="unknown protocol 'pared'; did you mean 'paired'"):
        draw_tasks(source, "pared", 1, 1, 0)  # type: ignore[arg-type]


def test_methods_need_different_names(source: EpisodeSampler) -> None:
    with pytest.raises(GfssError, match="two methods have the same name"):
        evaluate_methods([Witness("same"), Witness("same")], source, [])


class NoNumbers(Method):
    """One class of one pixel is no number."""

    name = "no-numbers"

    def learn(self, support: Support) -> None:
        self.classes = support.base + 1 + support.novel

    def scores(self, query: Features) -> Tensor:
        scores = torch.zeros(len(query), self.classes, *query.size)
        scores[-1, -1, 0, 0] = torch.nan
        return scores


def test_scores_that_are_no_numbers_are_refused(source: EpisodeSampler) -> None:
    with pytest.raises(GfssError, match="method 'no-numbers' produced NaN scores"):
        evaluate_methods([NoNumbers()], source, draw_tasks(source, "paired", 1, 1, seed=0))
