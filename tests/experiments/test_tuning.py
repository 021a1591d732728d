"""Settings are compared on base classes that are new to base model and episodes, and on no novel class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tests.experiments.tiny_recipe import tiny_content

import gfss.experiments.tuning
from gfss.cli import main
from gfss.common.errors import GfssError
from gfss.evaluation.records import Record, find_records, read_record, same_result
from gfss.experiments.experiment import Experiment
from gfss.experiments.plan import Plan
from gfss.experiments.recipe_files import make_recipe
from gfss.experiments.recipes import Recipe
from gfss.experiments.runner import run_plan
from gfss.experiments.tuning import Tuning, parts_of
from gfss.features.sampler import HeldOutSamplers

PART, GROUPS, TASKS = 2, 3, 3
EPISODIC = {"preset": "frozen", "iterations": 30, "rate": 0.02, "batch": 2, "episodes": 4, "pairs": 2, "several": 2}


def content(data: Path, **changes: Any) -> dict[str, Any]:
    calibrator = {"preset": "pcn-support", "compared": ["layer4"]}
    usual: dict[str, Any] = {
        "methods": ["nsf", "pcn-support", "plain"],
        "calibrators": {"pcn-support": calibrator, "plain": calibrator},
        "per_method": {"plain": {"preset": "episodic", "overlap": 0}},
        "episodic": EPISODIC,
    }
    return tiny_content(data, **usual | changes)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuning") / "squares"
    tiny_content(folder)
    return folder


@pytest.fixture(scope="module")
def runs(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the base model."""
    folder = tmp_path_factory.mktemp("runs")
    recipe = make_recipe(tiny_content(data, methods=["nsf"], calibrators={}))
    run_plan(Plan(recipe, folder, folder / "unused", records=False))
    return folder


def opened(recipe: Recipe, runs: Path) -> Experiment:
    return recipe.experiment(0, runs)


@pytest.fixture(scope="module")
def records(data: Path, runs: Path) -> list[Record]:
    recipe = make_recipe(content(data))
    return list(Tuning(recipe, opened(recipe, runs), 1, PART).examine(TASKS))


def test_tasks_show_images_and_classes_of_the_part_left_out(data: Path, runs: Path, records: list[Record]) -> None:
    experiment = opened(make_recipe(content(data)), runs)
    train, fold = experiment.train_set, experiment.classes
    part = [train.classes[c - 1] for c in np.array_split(np.array(fold.base), GROUPS)[PART - 1]]
    novel = {train.classes[c - 1] for c in fold.novel}
    for record in records:
        assert record.novel_classes == part
        assert not novel & {*record.novel_classes, *record.base_classes}
        assert set(record.base_classes) == {train.classes[c - 1] for c in fold.base} - set(part)
        assert {train.ids.index(name) % GROUPS for names in record.supports for name in names} == {PART - 1}
        assert record.supports == records[0].supports
        assert (record.data, record.fold) == (f"{data.name}, base classes held out", f"0, part {PART} of {GROUPS}")


def test_episodes_show_no_image_of_the_part_left_out_and_none_of_its_classes_as_new(
    data: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = make_recipe(content(data, episodic=EPISODIC | {"iterations": 1}))
    experiment = opened(recipe, runs)
    part = set(np.array_split(np.array(experiment.classes.base), GROUPS)[PART - 1].tolist())
    seen: list[HeldOutSamplers] = []
    train = gfss.experiments.tuning.train_calibrator

    def spy(method: Any, source: HeldOutSamplers, *rest: Any, **options: Any) -> list[float]:
        seen.append(source)
        return train(method, source, *rest, **options)

    monkeypatch.setattr(gfss.experiments.tuning, "train_calibrator", spy)
    list(Tuning(recipe, experiment, 1, PART).examine(1))
    assert len(seen) == 2  # one for each calibrator
    for source in seen:
        assert len(source.sources) == GROUPS - 1
        drawn = [source.for_episode(i).draw(0, i) for i in range(0, 200, 7)]
        drawn += [source.for_episode(i).draw_several(0, i, 1, 2, 4) for i in range(0, 200, 7)]
        assert not part & {c for task in drawn for c in task.novel}
        images = {i for task in drawn for i in (*sum(task.supports, ()), *task.queries)}
        assert PART - 1 not in {i % GROUPS for i in images}


def test_what_is_trained_is_not_trained_again_and_other_settings_are(
    data: Path, runs: Path, records: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = make_recipe(content(data))
    trained: list[str] = []
    train = gfss.experiments.tuning.train_calibrator

    def spy(method: Any, *rest: Any, **options: Any) -> list[float]:
        trained.append(method.name)
        return train(method, *rest, **options)

    monkeypatch.setattr(gfss.experiments.tuning, "train_calibrator", spy)
    again = list(Tuning(recipe, opened(recipe, runs), 1, PART).examine(TASKS))
    assert not trained
    assert all(same_result(first, second) for first, second in zip(records, again, strict=True))
    other = make_recipe(content(data, per_method={"plain": {"preset": "episodic", "overlap": 0.25}}))
    list(Tuning(other, opened(other, runs), 1, PART).examine(1))
    assert trained == ["plain"]


def test_settings_differ_in_what_they_say_and_do(records: list[Record]) -> None:
    nsf, pcn, plain = records
    assert "training" not in nsf.recipe
    assert (pcn.recipe["training"]["overlap"], plain.recipe["training"]["overlap"]) == (0.5, 0)
    assert pcn.figures != plain.figures != nsf.figures


def test_what_cannot_be_compared_is_refused(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = make_recipe(content(data))
    assert parts_of(recipe) == [1, 2, 3]
    assert parts_of(recipe, [3]) == [3]
    with pytest.raises(GfssError, match="there is no part 4; the base classes are held out in 3 parts, 1 to 3"):
        parts_of(recipe, [1, 4])
    for name, inner in (("capl", "capl"), ("capl+T", "capl"), ("pcn-support+T", "pcn-support")):
        other = make_recipe(content(data, methods=[name], calibrators={}, per_method={}))
        with pytest.raises(GfssError, match=f"method '{inner}' is trained on the features of one base model"):
            parts_of(other)
    with pytest.raises(GfssError, match="nothing is left to train on"):
        parts_of(make_recipe(content(data, episodic=EPISODIC | {"held_out": 1})))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(GfssError, match="start gfss tune without torchrun"):
        parts_of(recipe)


def test_every_seed_has_tasks_of_its_own_and_records_say_how_they_were_trained(data: Path, runs: Path) -> None:
    recipe = make_recipe(content(data, seeds=[0, 5], episodic=EPISODIC | {"held_out": 0}))
    found = list(Tuning(recipe, opened(recipe, runs), 1, PART).examine(2))
    assert [(record.method, record.seed) for record in found] == [
        (name, seed) for seed in (0, 5) for name in ("nsf", "pcn-support", "plain")
    ]
    assert found[0].supports != found[3].supports
    assert {record.recipe["training"]["held_out"] for record in found if "training" in record.recipe} == {GROUPS}


def test_the_command_trains_what_is_missing_and_prints_tables(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "choices.yaml"
    file.write_text(yaml.safe_dump(content(data)))
    folders = ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "tuning")]
    assert main(["tune", str(file), "--part", "2", "--tasks", "2", *folders]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "squares, base classes held out, 1 shot, paired protocol, per-image IoU in percent" in shown
    assert "0, part 2 of 3" in shown
    found = find_records([tmp_path / "tuning"])
    assert [path.parent.name for path in found] == ["fold0-part2of3"] * 3
    assert {read_record(path).method for path in found} == {"nsf", "pcn-support", "plain"}
