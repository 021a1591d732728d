"""What a plan will cost, and what ``gfss run --dry-run`` says of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gfss.cli import main
from gfss.experiments.estimate import Estimate
from gfss.experiments.plan import Plan
from gfss.experiments.recipe_files import find_recipe, read_recipe


def test_estimates_grow_with_the_work() -> None:
    small = read_recipe(find_recipe("frozen/pascal-lite0"), ["folds=[0, 1]"])
    large = read_recipe(find_recipe("paper/pascal-resnet50"), ["folds=0"])
    first, second = (step for step in Plan(small, Path("no runs"), Path("no results")).steps if step.kind == "base")
    other = next(step for step in Plan(large, Path("no runs"), Path("no results")).steps if step.kind == "base")
    assert other.cost.seconds > 50 * first.cost.seconds
    assert other.cost.memory > first.cost.memory
    assert first.cost.disk > 1
    assert second.cost.disk == 0  # the bank of a frozen encoder serves all folds


def test_held_out_base_models_are_counted_once() -> None:
    recipe = read_recipe(find_recipe("frozen/pascal-lite0"), ["folds=[0]", "shots=[1]"])
    plan, estimate = Plan(recipe, Path("no runs"), Path("no results")), Estimate(recipe)
    added = {
        step.methods[0]: step.cost.seconds - estimate.method(step.methods[0], 1).seconds
        for step in plan.steps
        if step.kind == "train"
    }
    assert added.pop("pixel") == pytest.approx(estimate.held_out(3).seconds)  # the first calibrator
    assert set(added) == {"acastle", "capl", "denet", "pfenet", "pcn", "pcn-support"}
    assert all(seconds == 0 for seconds in added.values())
    assert estimate.held_out(3).seconds == pytest.approx(4 / 3 * estimate.base(first=False).seconds)


def test_dry_run_prints_the_plan_and_what_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("GFSS_PASCAL", raising=False)
    monkeypatch.setenv("COLUMNS", "160")
    places = ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
    assert main(["run", "frozen/pascal-lite0", "--dry-run", "--set", "folds=0", *places]) == 0
    text = capsys.readouterr().out
    assert "15 of 15 steps left" in text
    assert "train the base model" in text
    assert "gfss data prepare pascal" in text
    assert not any(tmp_path.iterdir())
    assert main(["run", "frozen/pascal-lite0", *places]) == 2
    assert "GFSS_PASCAL=DIR" in capsys.readouterr().err


def test_weights_that_are_missing_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("GFSS_WEIGHTS", raising=False)
    words = ["run", "paper/pascal-resnet50", "--root", str(tmp_path), "--runs", str(tmp_path), "-o", str(tmp_path)]
    assert main(words) == 2
    message = capsys.readouterr().err
    assert "ImageNet weights for resnet50" in message
    assert len(message.splitlines()) == 1
