from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.training.tiny import make_context, make_source

from gfss.evaluation import protocols as module
from gfss.evaluation.protocols import Kept, MethodResult, draw_tasks, evaluate_methods, kept_results
from gfss.features.episodes import EpisodeSampler, Support
from gfss.methods import build_method
from gfss.methods.base import Method
from gfss.methods.pcn import NormalisedScoreFusion

TASKS = 5
TORN = '{"tasks": 2, "results": {"nsf": {"metrics": {"per-image": [[1.0]], "accumulated": [[1]]}, "seconds": {}}}}'


class Pulled(NormalisedScoreFusion):
    """The plug is pulled at the given task."""

    def __init__(self, inner: NormalisedScoreFusion, at: int) -> None:
        super().__init__(inner.fitter)
        self.at, self.learned = at, 0

    def learn(self, support: Support) -> None:
        self.learned += 1
        if self.learned == self.at:
            raise KeyboardInterrupt
        super().learn(support)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> EpisodeSampler:
    return make_source(tmp_path_factory.mktemp("source"), keep=True)


@pytest.fixture(autouse=True)
def one_by_one() -> Iterator[None]:
    """One task after another, so that it is known which ones are done when the plug is pulled."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kept:
    monkeypatch.setattr(module, "KEEP_SECONDS", 0)
    return Kept(tmp_path / "kept.json")


def fusion(source: EpisodeSampler) -> NormalisedScoreFusion:
    method = build_method("nsf", make_context(source))
    assert isinstance(method, NormalisedScoreFusion)
    return method


def figures(result: MethodResult) -> list[object]:
    return [metric.summary().model_dump() for metric in result.metrics.values()]


def run(method: Method, source: EpisodeSampler, kept: Kept | None, tasks: int = TASKS) -> MethodResult:
    return evaluate_methods([method], source, draw_tasks(source, "paired", 1, tasks, seed=0), kept=kept)["nsf"]


def test_an_interrupted_evaluation_goes_on_where_it_stopped(source: EpisodeSampler, kept: Kept) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(Pulled(fusion(source), at=4), source, kept)
    second = Pulled(fusion(source), at=0)
    resumed = run(second, source, kept)
    assert second.learned == TASKS - 3
    assert figures(resumed) == figures(run(fusion(source), source, None))
    assert all(seconds > 0 for seconds in resumed.seconds.values())


@pytest.mark.parametrize(("tasks", "left"), [(4, 1), (3, 0), (2, 2)])  # two tasks are fewer than the three known
def test_fewer_tasks_can_be_asked_for_after_an_interruption(
    source: EpisodeSampler, kept: Kept, tasks: int, left: int
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(Pulled(fusion(source), at=4), source, kept)
    second = Pulled(fusion(source), at=0)
    resumed = run(second, source, kept, tasks)
    assert second.learned == left
    assert figures(resumed) == figures(run(fusion(source), source, None, tasks))


@pytest.mark.parametrize(
    "content", ["", "{}", TORN, '{"tasks": 2, "results": {"nsf": 1}}', '{"tasks": 2, "results": {}}']
)
def test_a_torn_file_counts_as_none(source: EpisodeSampler, kept: Kept, content: str) -> None:
    kept.path.write_text(content)
    method = Pulled(fusion(source), at=0)
    assert figures(run(method, source, kept)) == figures(run(fusion(source), source, None))
    assert method.learned == TASKS


def test_a_complete_evaluation_is_kept_until_its_records_are_written(source: EpisodeSampler, kept: Kept) -> None:
    first = run(fusion(source), source, kept)
    again = Pulled(fusion(source), at=0)
    assert figures(run(again, source, kept)) == figures(first)
    assert again.learned == 0
    kept.remove()
    assert not kept.path.exists()
    run(again, source, kept)
    assert again.learned == TASKS


def test_a_look_at_fewer_tasks_does_not_lose_those_of_an_interrupted_evaluation(
    source: EpisodeSampler, kept: Kept
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(Pulled(fusion(source), at=4), source, kept)
    look = Kept(kept.path)
    run(fusion(source), source, look, tasks=2)
    look.remove()
    second = Pulled(fusion(source), at=0)
    run(second, source, kept)
    assert second.learned == TASKS - 3


def test_two_evaluations_at_once_do_not_lose_the_longer_one(source: EpisodeSampler, kept: Kept) -> None:
    """Both began when nothing was known."""
    look = Kept(kept.path)
    shorter = {"nsf": run(fusion(source), source, look, tasks=2)}
    longer = {"nsf": run(fusion(source), source, kept)}
    look.keep(shorter, 2, complete=True)
    look.remove()
    again = Pulled(fusion(source), at=0)
    assert figures(run(again, source, Kept(kept.path))) == figures(longer["nsf"])
    assert again.learned == 0


def test_unfinished_results_are_written_once_a_minute(
    source: EpisodeSampler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEEP_SECONDS", 60)
    kept = Kept(tmp_path / "kept.json")
    with pytest.raises(KeyboardInterrupt):
        run(Pulled(fusion(source), at=TASKS), source, kept)
    assert not kept.path.exists()


def test_the_name_depends_on_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GFSS_CACHE", str(tmp_path))
    names = {kept_results({"seed": seed, "methods": methods}).path for seed in (0, 1) for methods in (["nsf"], ["pcn"])}
    assert len(names) == 4
    assert kept_results({"a": 1, "b": 2}).path == kept_results({"b": 2, "a": 1}).path
