"""The benchmarks of bank and episodes run and write what they found."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import REPOSITORY
from tests.experiments.tiny_recipe import tiny_content

from gfss.experiments.experiment import Experiment
from gfss.experiments.recipes import make_recipe
from gfss.experiments.runner import run_plan
from gfss.experiments.steps import Plan


def run(name: str, folder: Path) -> dict:
    out = folder / "figures.json"
    script = REPOSITORY / "benchmarks" / f"{name}.py"
    subprocess.run([sys.executable, str(script), "--small", "--threads", "1", "--json", str(out)], check=True)
    return json.loads(out.read_text())


def test_bank_reading(tmp_path: Path) -> None:
    figures = run("bank_reading", tmp_path)
    assert figures["ratio"] == figures["reading_ms"] / figures["computing_ms"]
    assert 0 < figures["ratio"] < 1
    assert [images for images, _ in figures["memory_mb"]][::10] == [0, 200]


def test_episode(tmp_path: Path) -> None:
    rows = run("episode", tmp_path)["rows"]
    assert set(rows) == {"cached", "fresh", "default"}
    for row in rows.values():
        assert row["ratio"] == row["anew_ms"] / row["bank_ms"] > 0


def test_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways give the same label maps, and the figures add up."""
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    end_to_end = importlib.import_module("end_to_end")
    plan = Plan(make_recipe(tiny_content(tmp_path / "data")), tmp_path / "runs", tmp_path / "results")
    run_plan(plan)
    figures = end_to_end.measure(Experiment(plan.recipe, 0, plan.runs), sample=2, tasks=100, images=5)
    assert figures["equal_pixels"] > 0.99
    once, each = figures["seconds_per_image_once"], figures["seconds_per_task"]
    ours = 100 * each["ours"] + 24 * (once["bank"] + once["head"])  # 24 val images
    assert figures["ratio"] == pytest.approx(100 * each["plain"] / ours)
    # the same models serve one more comparison
    row = importlib.import_module("diam_low_rank").measure(
        Experiment(plan.recipe, 0, plan.runs), "paired", shots=1, tasks=2, each=3
    )
    assert row["images"] == 6
    assert row["equal_pixels"] > 0.99
    assert set(row["harmonic"]) == {"full", "leading"}
