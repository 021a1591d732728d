"""Predictions of any network: the same tasks, truth and record as those of ``gfss evaluate``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.data.make import png
from tests.experiments.tiny_recipe import tiny_recipe

from gfss import metrics, protocols
from gfss.common.devices import CPU
from gfss.common.errors import GfssError
from gfss.evaluation.records import Record, same_result
from gfss.experiments.experiment import Experiment
from gfss.experiments.runner import evaluate_recipe, run_plan
from gfss.experiments.spec import Recipe
from gfss.experiments.steps import Plan
from gfss.models.ops.upsample import class_map


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, Path]:
    """A recipe whose base model is trained, and its folder of runs."""
    folder = tmp_path_factory.mktemp("scoring")
    made = tiny_recipe(folder / "data", methods=["nsf"], protocols={"paired": 3, "joint": 2})
    run_plan(Plan(made, folder / "runs", folder / "results", only="base"))
    return made, folder / "runs"


def as_a_stranger(recipe: Recipe, runs: Path, tasks: protocols.TaskSet) -> metrics.Scorer:
    """NSF's label maps, computed without the evaluator and handed to the scorer."""
    experiment = Experiment(recipe, 0, runs, CPU)
    method, source = experiment.method("nsf", 1), experiment.val_source

    def predict(task: protocols.TaskImages) -> Iterator[torch.Tensor]:
        method.learn(source.support(tasks.draw(task.number), source.fold))
        for query in task.queries:
            yield class_map(method.scores(source.store.features([query.index])), (recipe.size, recipe.size))[0]

    scorer = metrics.Scorer(tasks)
    for number in reversed(range(len(tasks))):  # the order of tasks does not matter
        scorer.add(tasks[number], predict(tasks[number]))
    return scorer


@pytest.mark.parametrize("protocol", ["paired", "joint"])
def test_the_record_is_that_of_gfss_evaluate(recipe: tuple[Recipe, Path], protocol: str) -> None:
    made, runs = recipe
    (wanted,) = (record for record in evaluate_recipe(made, runs, CPU, None) if record.protocol == protocol)
    open_tasks = {"paired": protocols.paired, "joint": protocols.joint}[protocol]
    tasks = open_tasks(made.data, 0, tasks=made.protocols[protocol], size=made.size)  # type: ignore[index]
    scorer = as_a_stranger(made, runs, tasks)
    assert same_result(scorer.record("nsf", "tiny", wanted.spec, wanted.artifacts), wanted)
    assert scorer.figures() == wanted.figures


def test_the_truth_scores_100_at_any_size(recipe: tuple[Recipe, Path]) -> None:
    made, _ = recipe

    def truth(task: protocols.TaskImages) -> Iterator[np.ndarray]:
        for query in task.queries:
            mask = query.mask()
            yield np.where(mask == 255, 0, mask)

    for size in (33, None):
        record = metrics.score(protocols.paired(made.data, tasks=2, size=size), truth, "truth")
        assert record.figures["per-image"].harmonic == record.figures["accumulated"].harmonic == 100
        assert record.spec["size"] == size


def test_a_prediction_of_the_size_of_the_file_is_fitted(recipe: tuple[Recipe, Path]) -> None:
    task = protocols.paired(recipe[0].data, tasks=1, size=49)[0]
    query = task.queries[0]
    own = query.table[query.dataset.mask(query.index)]
    assert own.shape != (49, 49)
    assert (query.fit(own) == query.mask()).all()


def test_classes_have_roles_and_episodes_take_the_fake_class_out_of_the_base(recipe: tuple[Recipe, Path]) -> None:
    tasks = protocols.paired(recipe[0].data, 1, tasks=4, size=33)
    for task in tasks:
        assert task.base == tasks.base_classes
        assert task.classes == ("background", *task.base, *task.novel)
        assert task.novel[0] in tasks.novel_classes
        assert all(sample.drawn_for == task.novel[0] for sample in task.supports)
        assert all((sample.mask() == len(task.base) + 1).any() for sample in task.supports)
        assert all(sample.path.exists() for sample in task.queries)
        assert not {s.id for s in task.supports} & {q.id for q in task.queries}
    for episode in protocols.episodes(recipe[0].data, 1, count=4, size=33):
        (fake,) = episode.novel
        assert fake in tasks.base_classes
        assert set(episode.base) == set(tasks.base_classes) - {fake}
        assert (episode.supports[0].mask() == len(episode.base) + 1).any()
        assert (
            max(int(np.max(q.mask(), where=q.mask() < 255, initial=0)) for q in episode.queries)
            <= len(episode.base) + 1
        )


def test_novel_classes_may_be_named_and_tasks_are_a_sequence(recipe: tuple[Recipe, Path]) -> None:
    every = protocols.paired(recipe[0].data, 0, tasks=3, size=33)
    name = every.novel_classes[0]
    named = protocols.paired(recipe[0].data, [name], tasks=3, size=33)
    assert (named.fold_name, named.novel_classes) == (name, (name,))
    assert len(every) == 3
    assert every[-1].number == 2
    with pytest.raises(IndexError):
        every[3]


def test_wrong_predictions_are_answered_in_a_sentence(recipe: tuple[Recipe, Path]) -> None:
    tasks = protocols.paired(recipe[0].data, tasks=2, size=33)
    scorer, task = metrics.Scorer(tasks), tasks[1]
    good = [np.zeros((33, 33), np.uint8) for _ in task.queries]
    for predictions, words in {
        "few": (good[1:], "predictions came"),
        "many": ([*good, good[0]], "more predictions"),
        "label": ([good[0] + 200, *good[1:]], "has labels 200 to 200, but its task has 0 to"),
        "scores": ([good[0].astype(float), *good[1:]], "not scores"),
        "shape": ([good[0][:5], *good[1:]], "should be 33 x 33 or"),
    }.values():
        with pytest.raises(GfssError, match=words):
            scorer.add(task, predictions)
    scorer.add(task, good)
    with pytest.raises(GfssError, match="first tasks without gaps"):
        scorer.record("late")
    with pytest.raises(GfssError, match="training episodes"):
        metrics.Scorer(protocols.episodes(recipe[0].data, count=1))


def test_own_data_of_other_sizes_is_compared_in_full(tmp_path: Path) -> None:
    for number in range(40):
        mask = np.zeros((40, 30 + number), np.uint8)
        mask[:, :20] = 1 + number % 2
        png(tmp_path / "masks" / f"{number}.png", mask)
        png(tmp_path / "images" / f"{number}.png", np.zeros((*mask.shape, 3), np.uint8))
    (tmp_path / "classes.txt").write_text("a\nb\n")
    (task,) = protocols.paired(tmp_path, ["b"], tasks=1, size=None)
    assert {query.mask().shape for query in task.queries} <= {(40, 30 + number) for number in range(40)}


def test_results_are_a_data_frame(recipe: tuple[Recipe, Path], tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="gfss.results needs pandas")
    import gfss

    tasks = protocols.paired(recipe[0].data, tasks=1, size=33)
    record: Record = metrics.score(tasks, lambda task: [query.mask() * 0 for query in task.queries], "nothing")
    metrics.write_record(tmp_path / "nothing.json", record)
    frame = gfss.results(tmp_path)
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["metric"]) == ["per-image", "accumulated"]
    assert list(frame["novel"]) == [0.0, 0.0]
    assert "results" in dir(gfss)


def test_the_example_of_the_docs_runs(
    recipe: tuple[Recipe, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "protocols-and-metrics.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    (code,) = (block for block in blocks if "my-results" in block)
    monkeypatch.chdir(tmp_path)
    exec(code.replace('"pascal"', repr(recipe[0].data)).replace("tasks=1000", "tasks=2"), {})
    record = metrics.read_record(tmp_path / "my-results" / "fold0.json")
    assert (record.tasks, record.figures["per-image"].novel) == (2, 0)
