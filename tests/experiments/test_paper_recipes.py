"""The recipes for graphics cards, made small in every number, run from the first step to the last."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.training.tiny import SIZE, write_data

from gfss.common.errors import GfssError
from gfss.evaluation.records import find_records, read_record
from gfss.experiments.recipes import read_recipe, recipe_names
from gfss.experiments.runner import run_plan
from gfss.experiments.steps import Plan

SMALL = {
    "encoder": "tiny",
    "output_stride": 4,
    "size": SIZE,
    "folds": 0,
    "shots": 1,
    "base.epochs": 1,
    "base.pyramid": 4,
    "base.width": 8,
    "novel.hidden": 8,
    "novel.steps": 2,
    "training.iterations": 1,
    "training.batch": 1,
    "protocols.paired": 1,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("colours"))


@pytest.mark.parametrize("name", [name for name in recipe_names() if name.startswith("paper/")])
def test_every_step_of_a_paper_recipe_runs(name: str, data: Path, tmp_path: Path) -> None:
    changes = [f"{key}={value}" for key, value in SMALL.items()]
    usual = read_recipe(name).methods  # published widths are for GPUs
    changes += [f"methods.{method}.published=false" for method in ("denet", "pfenet") if method in usual]
    recipe = read_recipe(name, [f"data={data}", *changes])
    plan = Plan(recipe, tmp_path / "runs", tmp_path / "results")
    assert len(plan.todo) > 2
    run_plan(plan)
    records = [read_record(path) for path in find_records([tmp_path / "results"])]
    assert {record.method for record in records} == {*recipe.evaluated, "base"}
    assert not Plan(recipe, plan.runs, plan.out).todo


@pytest.mark.parametrize(
    ("change", "words"),
    [("methods=denet", "'denet' needs layer3"), ("methods=pfenet", "'pfenet' needs layer2 or layer3")],
)
def test_levels_that_a_method_needs_are_asked_for_before_anything_runs(change: str, words: str) -> None:
    with pytest.raises(GfssError, match=words):
        read_recipe("paper/pascal-resnet50", ["levels=layer4", change])


def test_maps_that_evidence_needs_are_asked_for_before_anything_runs() -> None:
    changes = ["levels=layer4", "base.levels=[layer4]", "novel=paper", "methods=pcn-support"]
    with pytest.raises(GfssError, match=r"methods\.pcn-support\.calibrator\.compared.*layer3"):
        read_recipe("frozen/pascal-lite0", changes)
