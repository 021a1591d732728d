"""The quick start with hardly any training: every stage once, one report, and nothing done again."""

from __future__ import annotations

from pathlib import Path

import pytest

from gfss.evaluation.records import find_records
from gfss.experiments.recipes import read_recipe
from gfss.reporting import quickstart as module
from gfss.reporting.quickstart import quickstart

SMALL = ["base.epochs=1", "training.iterations=2", "training.episodes=2"]


def test_everything_once_and_then_reused(tmp_path: Path, scenes_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gfss.data.datasets.scenes.make_scenes", lambda root=None: scenes_root)
    monkeypatch.setattr(module, "read_recipe", lambda name: read_recipe(name, SMALL))
    monkeypatch.setattr(module, "EXAMPLES", 1)
    (tmp_path / "records").mkdir()  # empty: an earlier attempt was stopped early
    page, records = quickstart(tmp_path, tasks=1)
    text = page.read_text()
    methods = ("score", "npf", "nsf", "pcn-support")
    assert sorted((r.method, r.shots) for r in records) == sorted((m, s) for m in methods for s in (1, 5))
    assert len(find_records([tmp_path / "records"])) == len(records) + 1  # and the base model alone
    assert {r.spec["training"]["shots"] for r in records if r.method == "pcn-support"} == {1}  # one for both
    for words in ("1 shot, per-image IoU", "5 shots, accumulated IoU", "Class by class", "data:image/png;base64"):
        assert words in text

    def not_again(*_: object, **__: object) -> None:
        raise AssertionError("what is there is used")

    for step in ("train_base_step", "train_method_step", "evaluate_together"):
        monkeypatch.setattr(f"gfss.experiments.runner.{step}", not_again)
    assert quickstart(tmp_path, tasks=1)[0].read_text() == text
