"""Plans and runs: what is done is seen from the files, a run stopped anywhere continues, two runs are equal."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.conftest import REPOSITORY
from tests.experiments.tiny_recipe import fake_record, tiny_content

import gfss.experiments.runner
from gfss.common.errors import GfssError
from gfss.evaluation.costs import read_costs
from gfss.evaluation.records import Record, find_records, read_record, same_result, write_record
from gfss.experiments.plan import Plan, differences
from gfss.experiments.recipe_files import make_recipe
from gfss.experiments.recipes import Recipe
from gfss.experiments.runner import run_plan
from gfss.experiments.stages import train_base_stage, train_method_stage


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan") / "squares"
    tiny_content(folder)
    return folder


def states(plan: Plan) -> list[tuple[str, str]]:
    return [(step.kind, step.state) for step in plan.steps]


def plan_in(folder: Path, recipe: Recipe) -> Plan:
    return Plan(recipe, folder / "runs", folder / "results")


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the tiny recipe has been run."""
    folder = tmp_path_factory.mktemp("finished")
    run_plan(plan_in(folder, make_recipe(tiny_content(data))))
    return folder


def test_a_new_plan_has_every_stage_in_order(data: Path, tmp_path: Path) -> None:
    recipe = make_recipe(tiny_content(data, methods=["acastle+T", "nsf"], calibrators={}, shots=[1, 2]))
    plan = plan_in(tmp_path, recipe)
    names = [(step.kind, step.shots, step.methods) for step in plan.steps]
    assert names[0] == ("base", 0, ())
    assert names[1:4] == [
        ("train", 1, ("acastle",)),
        ("train", 1, ("acastle+T",)),
        ("evaluate", 1, ("acastle+T", "nsf")),
    ]
    assert names[4:] == [("train", 2, ("acastle+T",)), ("evaluate", 2, ("acastle+T", "nsf"))]  # acastle serves both
    assert all(step.state == "todo" and step.cost.seconds > 0 for step in plan.steps)


def test_what_is_done_is_not_done_again(data: Path, finished: Path) -> None:
    plan = plan_in(finished, make_recipe(tiny_content(data)))
    assert states(plan) == [("base", "done"), ("evaluate", "done")]
    assert run_plan(plan) == 0
    records = [read_record(path) for path in find_records([finished / "results"])]
    assert {record.method for record in records} == {"base", "nsf", "pcn-support"}
    (cost,) = read_costs(next((finished / "results").rglob("costs.csv")))
    assert (cost.method, cost.resumed) == ("pcn-support", False)
    assert cost.seconds > 0


def test_two_processes_write_the_record_of_one(data: Path, finished: Path, tmp_path: Path) -> None:
    content = tiny_content(data, methods=["nsf", "pcn-support", "npf"], protocols={"paired": 5})
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(content))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "gfss"]
    command = [*launcher, "run", str(recipe), "--runs", str(finished / "runs"), "--out", str(tmp_path / "two")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    run_plan(Plan(make_recipe(content), finished / "runs", tmp_path / "one"))
    first, second = ([read_record(path) for path in find_records([tmp_path / name])] for name in ("one", "two"))
    assert [record.method for record in first] == ["base", "npf", "nsf", "pcn-support"]
    assert all(same_result(a, b) for a, b in zip(first, second, strict=True))


def test_only_the_missing_method_is_evaluated(data: Path, finished: Path) -> None:
    recipe = make_recipe(tiny_content(data, methods=["nsf", "pcn-support", "npf"]))
    (step,) = plan_in(finished, recipe).todo
    assert (step.kind, step.methods) == ("evaluate", ("npf",))


def test_records_without_their_models_need_no_training(data: Path, finished: Path) -> None:
    plan = Plan(make_recipe(tiny_content(data)), finished / "other runs", finished / "results")
    assert states(plan) == [("base", "not needed"), ("evaluate", "done")]
    models = Plan(plan.recipe, plan.runs, plan.out, records=False)
    assert states(models) == [("base", "todo"), ("train", "todo")]


def test_records_of_other_settings_are_outdated(data: Path, finished: Path) -> None:
    more_tasks = plan_in(finished, make_recipe(tiny_content(data, protocols={"paired": 3})))
    assert [step.methods for step in more_tasks.todo] == [("nsf", "pcn-support")]


def test_records_of_more_tasks_stay(data: Path, finished: Path) -> None:
    fewer_tasks = plan_in(finished, make_recipe(tiny_content(data, protocols={"paired": 1})))
    assert not fewer_tasks.todo


def test_models_of_other_settings_are_refused(data: Path, finished: Path) -> None:
    content = tiny_content(data, protocols={"paired": 3})
    content["episodic"]["iterations"] = 9
    with pytest.raises(GfssError, match="iterations = 2 instead of 9"):
        _ = plan_in(finished, make_recipe(content)).steps
    content["tag"] = "longer"
    assert len(plan_in(finished, make_recipe(content)).todo) == 3


def test_records_of_another_output_stride_or_kind_of_folds_are_not_taken(tmp_path: Path) -> None:
    def plan(**changes: object) -> Plan:
        content = {"data": "coco", "encoder": "lite0", "methods": ["nsf"], **changes}
        return Plan(make_recipe(content), tmp_path / "runs", tmp_path / "results")

    def write(of: Plan) -> Path:
        settings = json.loads(json.dumps(of.recipe.settings("nsf", 1)))
        path = of.record_path(0, "nsf", 1, "paired", 0)
        write_record(path, fake_record("nsf", data="coco", recipe=settings))
        return path

    usual = write(plan())
    assert not plan().todo
    assert not plan(output_stride=16).todo  # the usual one
    assert plan(contiguous=True).todo
    assert plan(output_stride=8).todo
    assert write(plan(contiguous=True)) != usual
    assert not plan(contiguous=True).todo
    write(plan(output_stride=8))
    assert not plan(output_stride=8).todo
    assert plan().todo


def test_a_base_model_of_another_output_stride_is_refused(data: Path, finished: Path) -> None:
    experiment = make_recipe(tiny_content(data)).experiment(0, finished / "runs")
    experiment.output_stride = 8
    with pytest.raises(GfssError, match="output stride 4, not 8"):
        _ = experiment.model


def test_methods_on_another_base_model_are_refused(data: Path, finished: Path, tmp_path: Path) -> None:
    """The base model was moved away and trained anew, what stood on it stayed."""
    shutil.copytree(finished / "runs", tmp_path / "runs")
    content = tiny_content(data, protocols={"paired": 3})
    first = Plan(make_recipe(content), tmp_path / "runs", tmp_path / "results")
    folder = first.experiment(0).base_folder
    shutil.rmtree(folder)
    content["base"]["epochs"] = 3
    recipe = make_recipe(content)
    train_base_stage(recipe.experiment(0, tmp_path / "runs"), options=recipe.base)
    with pytest.raises(GfssError, match="on a base model with epochs = 1 instead of 3"):
        _ = Plan(recipe, tmp_path / "runs", tmp_path / "results").steps
    experiment = recipe.experiment(0, tmp_path / "runs")
    with pytest.raises(GfssError, match="base model whose epochs is 1, not 3"):
        experiment.method("pcn-support", 1)
    shutil.rmtree(experiment.method_folder("pcn-support", 1))
    with pytest.raises(GfssError, match="base-without-part1of3 was trained with epochs 1"):
        train_method_stage(experiment, "pcn-support", 1, options=recipe.training("pcn-support", 1))


def test_an_interrupted_run_continues_and_equals_another(
    data: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_in(tmp_path, make_recipe(tiny_content(data)))

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(gfss.experiments.runner, "train_method_stage", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_plan(plan)
    plan = plan_in(tmp_path, plan.recipe)
    assert states(plan) == [("base", "done"), ("train", "todo"), ("evaluate", "todo")]
    run_plan(plan)
    for path in find_records([tmp_path / "results"]):
        other = finished / "results" / path.relative_to(tmp_path / "results")
        assert same_result(read_record(path), read_record(other))


def test_differences_are_only_about_what_both_sides_say() -> None:
    found = {"a": 1, "base": {"levels": ["x"], "old": 3}}
    assert differences(found, {"b": 2, "base": {"levels": ("x",), "new": 4}}) == []
    assert differences(found, {"a": 2, "base": {"levels": ("y",)}}) == [
        "a = 1 instead of 2",
        "base.levels = ['x'] instead of ('y',)",
    ]


def test_a_setting_from_after_a_training_is_a_difference_where_asked() -> None:
    found = {"rate": 1, "calibrator": {"kind": "x"}}
    wanted = {"rate": 1, "overlap": 0.5, "calibrator": {"kind": "x", "both_fusions": True}}
    assert differences(found, wanted) == []
    assert differences(found, wanted, complete=True) == [
        "calibrator.both_fusions = nothing instead of True",
        "overlap = nothing instead of 0.5",
    ]


def test_a_record_from_before_a_setting_is_outdated(data: Path, finished: Path) -> None:
    path = next(path for path in find_records([finished / "results"]) if read_record(path).method == "pcn-support")
    content = path.read_text()
    try:
        older = json.loads(content)
        del older["recipe"]["training"]["overlap"]
        path.write_text(json.dumps(older))
        assert ("evaluate", "todo") in states(plan_in(finished, make_recipe(tiny_content(data))))
    finally:
        path.write_text(content)
    assert ("evaluate", "todo") not in states(plan_in(finished, make_recipe(tiny_content(data))))


def test_another_data_set_of_the_same_name_is_not_taken_for_done(data: Path, finished: Path, tmp_path: Path) -> None:
    other = tmp_path / data.name
    shutil.copytree(data, other)
    plan = plan_in(finished, make_recipe(tiny_content(other)))
    assert not plan.todo  # a copy is the same data
    shutil.copy(other / "masks" / "val_000.png", other / "masks" / "val_001.png")
    assert [step.kind for step in plan_in(finished, plan.recipe).todo] == ["evaluate"]
    shutil.copy(other / "masks" / "train_000.png", other / "masks" / "train_001.png")
    with pytest.raises(GfssError, match="was trained on other images or masks than those now in"):
        _ = plan_in(finished, plan.recipe).todo


def test_changed_train_images_are_noticed_though_all_records_are_there(
    data: Path, finished: Path, tmp_path: Path
) -> None:
    """The base model, then what stands on it: each is refused until it is moved away."""
    other = tmp_path / data.name
    shutil.copytree(data, other)
    for name in ("runs", "results"):
        shutil.copytree(finished / name, tmp_path / name)
    shutil.copy(other / "masks" / "train_000.png", other / "masks" / "train_001.png")
    recipe = make_recipe(tiny_content(other))
    experiment = recipe.experiment(0, tmp_path / "runs")
    with pytest.raises(GfssError, match="base was trained on other images or masks"):
        _ = plan_in(tmp_path, recipe).todo
    shutil.rmtree(experiment.base_folder)
    train_base_stage(experiment, options=recipe.base)
    with pytest.raises(GfssError, match="pcn-support-1shot was trained on other images or masks"):
        _ = plan_in(tmp_path, recipe).todo
    with pytest.raises(GfssError, match="pcn-support-1shot was trained beside a base model of other images"):
        experiment.method("pcn-support", 1)
    shutil.rmtree(experiment.method_folder("pcn-support", 1))
    with pytest.raises(GfssError, match="base-without-part1of3 was trained on other images or masks"):
        run_plan(plan_in(tmp_path, recipe))


def test_a_record_of_more_tasks_that_came_meanwhile_stays(
    data: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(finished / "results", tmp_path / "results")
    plan = Plan(make_recipe(tiny_content(data)), finished / "runs", tmp_path / "results")
    path = plan.record_path(0, "nsf", 1, "paired", 0)
    usual = read_record(path)
    path.unlink()
    evaluate = gfss.experiments.runner.evaluate_stage

    def beside_another(*what: Any, **more: Any) -> list[Record]:
        write_record(path, usual.model_copy(update={"tasks": 900}))
        return evaluate(*what, **more)

    monkeypatch.setattr(gfss.experiments.runner, "evaluate_stage", beside_another)
    assert run_plan(plan) == 1
    assert read_record(path).tasks == 900


def test_a_base_model_is_measured_if_its_record_is_of_another(data: Path, finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished / "results", tmp_path / "results")
    recipe = make_recipe(tiny_content(data, protocols={"paired": 3}))
    plan = Plan(recipe, finished / "runs", tmp_path / "results")
    path = plan.record_path(0, "base", 0, "joint", 0)
    record = read_record(path)
    assert [step.kind for step in plan.todo] == ["evaluate"]
    other = {**record.recipe, "base": {**record.recipe["base"], "epochs": 99}}
    write_record(path, record.model_copy(update={"recipe": other}))
    assert [step.kind for step in Plan(recipe, plan.runs, plan.out).todo] == ["measure", "evaluate"]


def test_a_base_model_without_a_record_is_measured(data: Path, finished: Path, tmp_path: Path) -> None:
    recipe = make_recipe(tiny_content(data, methods=["nsf"], calibrators={}))
    plan = Plan(recipe, finished / "runs", tmp_path)
    assert [step.kind for step in plan.todo] == ["measure", "evaluate"]
    run_plan(plan)
    path = plan.record_path(0, "base", 0, "joint", 0)
    found, expected = read_record(path), read_record(finished / "results" / path.relative_to(tmp_path))
    assert same_result(found, expected)
    assert not Plan(recipe, finished / "runs", tmp_path).todo
