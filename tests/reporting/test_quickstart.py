"""The quick start with hardly any training: every stage once, one report, and nothing done again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gfss.cli import main
from gfss.evaluation.records import find_records, read_record
from gfss.experiments.stages import BASE_RECIPES, SCRATCH
from gfss.reporting import quickstart as module
from gfss.reporting.quickstart import METHODS, SHOTS, quickstart
from gfss.training.episodic_options import EpisodicOptions


def test_everything_once_and_then_reused(tmp_path: Path, scenes_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gfss.data.datasets.scenes.make_scenes", lambda root=None: scenes_root)
    monkeypatch.setitem(BASE_RECIPES, "scratch", replace(SCRATCH, epochs=1))
    monkeypatch.setattr(module, "QUICK", EpisodicOptions(iterations=2, episodes=2, several=0, held_out=0))
    monkeypatch.setattr(module, "EXAMPLES", 1)
    (tmp_path / "records").mkdir()  # empty: an earlier attempt was stopped early
    page = quickstart(tmp_path, tasks=1).read_text()
    records = [read_record(path) for path in find_records([tmp_path / "records"])]
    assert sorted((r.method, r.shots) for r in records) == sorted((m, s) for m in METHODS for s in SHOTS)
    assert {r.recipe["training"]["shots"] for r in records if r.method == "pcn-support"} == {
        1
    }  # one calibrator for both
    for words in ("1 shot, per-image IoU", "5 shots, accumulated IoU", "Class by class", "data:image/png;base64"):
        assert words in page

    def not_again(*_: object, **__: object) -> None:
        raise AssertionError("what is there is used")

    for stage in ("train_base_stage", "train_method_stage", "evaluate_stage"):
        monkeypatch.setattr(module, stage, not_again)
    assert quickstart(tmp_path, tasks=1).read_text() == page


def test_no_tasks_are_refused_before_anything_is_trained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quickstart", "--tasks", "0"]) == 2
    assert "--tasks" in capsys.readouterr().err
