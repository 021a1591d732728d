"""DIaM with options of its own in recipes: further methods by name, seen in records, plans and comparisons."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
from tests.experiments.tiny_recipe import tiny_content

from gfss.common.errors import GfssError
from gfss.evaluation.records import find_records, read_record, same_result
from gfss.experiments.estimate import Estimate
from gfss.experiments.experiment import Experiment
from gfss.experiments.plan import Plan
from gfss.experiments.recipe_files import make_recipe
from gfss.experiments.recipes import Recipe
from gfss.experiments.runner import run_plan
from gfss.experiments.stages import episodes_key
from gfss.experiments.tuning import Tuning
from gfss.methods.diam import Diam
from gfss.methods.diam_options import PUBLISHED, DiamOptions
from gfss.methods.pcn import Calibrated

SHORT = {"iterations": 2}


def small(data: Path, weight: float = 3.0, **changes: object) -> Recipe:
    diams = {"diam": SHORT, "tight": {**SHORT, "distillation_weight": weight}}
    usual = {"methods": ["diam", "tight"], "diams": diams, "calibrators": {}}
    return make_recipe(tiny_content(data, **usual | changes))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a recipe with two kinds of DIaM has been run; its data are in ``squares``."""
    folder = tmp_path_factory.mktemp("diams")
    run_plan(plan_in(folder, small(folder / "squares")))
    return folder


def plan_in(folder: Path, recipe: Recipe) -> Plan:
    return Plan(recipe, folder / "runs", folder / "results")


def experiment_in(folder: Path, recipe: Recipe) -> Experiment:
    return recipe.experiment(0, folder / "runs")


def test_records_say_with_which_options(folder: Path) -> None:
    records = {record.method: record for record in map(read_record, find_records([folder / "results"]))}
    weights = {name: record.recipe["diam"]["distillation_weight"] for name, record in records.items() if name != "base"}
    assert weights == {"diam": DiamOptions().distillation_weight, "tight": 3.0}
    assert records["tight"].recipe["diam"]["iterations"] == 2


def test_other_options_outdate_the_record_of_that_method_only(folder: Path) -> None:
    assert not plan_in(folder, small(folder / "squares")).todo
    (step,) = plan_in(folder, small(folder / "squares", 50.0)).todo
    assert step.methods == ("tight",)


def test_a_record_from_before_options_were_written_down_is_outdated(folder: Path, tmp_path: Path) -> None:
    recipe = small(folder / "squares")
    results = tmp_path / "results"
    for path in find_records([folder / "results"]):
        record = read_record(path)
        record.recipe.pop("diam", None)
        place = results / path.relative_to(folder / "results")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(record.model_dump_json())
    (step,) = Plan(recipe, folder / "runs", results).todo
    assert set(step.methods) == {"diam", "tight"}


def test_a_calibrator_stands_on_the_named_one(folder: Path) -> None:
    calibrators = {"tight+T": {"dimension": 8}}
    recipe = small(folder / "squares", methods=["diam", "tight+T"], calibrators=calibrators)
    method = experiment_in(folder, recipe).method("tight+T", 1, trained=False)
    assert isinstance(method, Calibrated)
    assert isinstance(method.inner, Diam)
    assert (method.inner.name, method.inner.options.iterations) == ("tight", 2)
    assert recipe.settings("tight+T", 1)["training"]["diam"] == asdict(method.inner.options)


def test_published_recipes_take_the_published_weights(folder: Path) -> None:
    recipe = small(folder / "squares", published=True, methods=["diam"], diams={})
    assert recipe.diam("diam") == PUBLISHED
    method = experiment_in(folder, recipe).method("diam", 1)
    assert isinstance(method, Diam)
    assert method.options == PUBLISHED


def test_they_are_compared_on_held_out_classes(folder: Path) -> None:
    recipe = small(folder / "squares", 50.0)
    records = list(Tuning(recipe, experiment_in(folder, recipe), 1, 2).examine(2))
    assert [(r.method, r.recipe["diam"]["distillation_weight"]) for r in records] == [("diam", 3.0), ("tight", 50.0)]


def test_a_calibrator_trained_on_other_options_is_not_taken_for_done(folder: Path) -> None:
    def recipe(weight: float) -> Recipe:
        return small(folder / "squares", weight, methods=["diam", "tight+T"], calibrators={"tight+T": {"dimension": 8}})

    plan = plan_in(folder, recipe(3.0))
    run_plan(plan)
    assert not plan_in(folder, recipe(3.0)).todo
    with pytest.raises(GfssError, match=r"diam\.distillation_weight = 3.0 instead of 50.0"):
        _ = plan_in(folder, recipe(50.0)).todo
    with pytest.raises(GfssError, match="was trained with diam"):
        experiment_in(folder, recipe(50.0)).method("tight+T", 1)
    sources = experiment_in(folder, recipe(3.0)).train_source
    keys = {
        episodes_key(experiment_in(folder, recipe(3.0)), Diam(options, "tight"), sources)
        for options in (DiamOptions(), PUBLISHED)
    }
    assert len(keys) == 2


def test_a_plan_counts_the_adaptation_to_every_query(tmp_path: Path) -> None:
    fast, slow = (
        Estimate(small(tmp_path / "squares", methods=["diam"], diams={"diam": {"iterations": iterations}}))
        for iterations in (1, 1000)
    )
    assert slow.evaluation(["nsf"], 1, "paired", 10) == fast.evaluation(["nsf"], 1, "paired", 10)
    longer = [one.evaluation(["diam"], 1, "paired", 10).seconds for one in (fast, slow)]
    assert longer[1] > 2 * longer[0]
    assert slow.evaluation(["diam"], 5, "joint", 10).seconds > slow.evaluation(["diam"], 1, "joint", 10).seconds


def test_a_calibrator_on_a_named_one_is_compared_twice(folder: Path) -> None:
    """The second comparison finds the calibrator of the first."""
    calibrators = {"tight+T": {"preset": "pcn-support", "compared": ["layer4"]}}
    recipe = small(folder / "squares", methods=["diam", "tight+T"], calibrators=calibrators)
    first, second = (list(Tuning(recipe, experiment_in(folder, recipe), 1, 2).examine(1)) for _ in range(2))
    assert [same_result(*both) for both in zip(first, second, strict=True)] == [True, True]
