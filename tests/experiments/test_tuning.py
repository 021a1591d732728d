"""Settings are compared on base classes that are new to base model and episodes, and on no novel class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tests.experiments.tiny_recipe import tiny_content

from gfss.cli import main
from gfss.common.errors import GfssError
from gfss.evaluation.records import Record, find_records, read_record
from gfss.experiments import runner
from gfss.experiments.experiment import Experiment
from gfss.experiments.recipes import make_recipe
from gfss.experiments.runner import run_plan
from gfss.experiments.steps import Plan
from gfss.features.episodes import HeldOutSamplers

PARTS = 3
TRAINING = {"iterations": 30, "rate": 0.02, "batch": 2, "episodes": 4, "pairs": 2, "several": 2}
CALIBRATOR = {"preset": "pcn-support", "compared": ["layer4"]}
METHODS = {
    "nsf": None,
    "pcn-support": {"calibrator": CALIBRATOR},
    "plain": {"calibrator": CALIBRATOR, "training": {"overlap": 0}},
}


def content(data: Path, **changes: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {"methods": METHODS, "training": TRAINING, "protocols": {"paired": 3}}
    return tiny_content(data, **usual | changes)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuning") / "squares"
    tiny_content(folder)
    return folder


@pytest.fixture(scope="module")
def seen() -> list[HeldOutSamplers]:
    """Episodes that calibrators were trained on."""
    return []


@pytest.fixture(scope="module")
def finished(
    data: Path, seen: list[HeldOutSamplers], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Plan, list[Record]]:
    folder = tmp_path_factory.mktemp("tuned")
    plan = Plan(make_recipe(content(data)), folder / "runs", folder / "tuning", tuning=True)
    train = runner.train_calibrator

    def spy(method: Any, source: HeldOutSamplers, *rest: Any, **options: Any) -> list[float]:
        seen.append(source)
        return train(method, source, *rest, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "train_calibrator", spy)
        return plan, run_plan(plan)


def test_the_plan_trains_every_part_and_no_base_model_of_all_classes(data: Path, tmp_path: Path) -> None:
    plan = Plan(make_recipe(content(data)), tmp_path / "runs", tmp_path, tuning=True)
    kinds = [
        (step.kind, step.method, step.part and step.part.number) for step in plan.todo if step.kind != "evaluation"
    ]
    assert kinds[:3] == [("base", "", part) for part in (1, 2, 3)]
    assert sorted(kinds[3:]) == sorted(("method", n, p) for n in ("pcn-support", "plain") for p in (1, 2, 3))
    assert len(plan.todo) == 12


def test_tasks_show_images_and_classes_of_the_part_left_out(data: Path, finished: tuple[Plan, list[Record]]) -> None:
    plan, records = finished
    experiment = Experiment(plan.recipe, 0, plan.runs)
    train, fold = experiment.train_set, experiment.classes
    novel = {train.classes[c - 1] for c in fold.novel}
    assert len(records) == 9
    for number, record in enumerate(records):
        part = number // 3
        expected = [train.classes[c - 1] for c in np.array_split(np.array(fold.base), PARTS)[part]]
        assert record.novel_classes == expected
        assert not novel & {*record.novel_classes, *record.base_classes}
        assert set(record.base_classes) == {train.classes[c - 1] for c in fold.base} - set(expected)
        assert {train.ids.index(name) % PARTS for names in record.supports for name in names} == {part}
        assert (record.data, record.fold) == (f"{data.name}, base classes held out", f"0, part {part + 1} of {PARTS}")


def test_episodes_show_no_image_of_the_part_left_out_and_none_of_its_classes_as_new(
    finished: tuple[Plan, list[Record]], seen: list[HeldOutSamplers]
) -> None:
    plan, _ = finished
    base = np.array(Experiment(plan.recipe, 0, plan.runs).classes.base)
    assert len(seen) == 6  # two calibrators for each part
    for number, source in enumerate(seen):
        left_out = number // 2
        part = set(np.array_split(base, PARTS)[left_out].tolist())
        assert len(source.sources) == PARTS - 1
        drawn = [source.for_episode(i).draw(0, i) for i in range(0, 200, 7)]
        drawn += [source.for_episode(i).draw_several(0, i, 1, 2, 4) for i in range(0, 200, 7)]
        assert not part & {c for task in drawn for c in task.novel}
        images = {i for task in drawn for i in (*sum(task.supports, ()), *task.queries)}
        assert left_out not in {i % PARTS for i in images}


def test_settings_differ_in_what_they_say_and_do(finished: tuple[Plan, list[Record]]) -> None:
    nsf, pcn, plain = finished[1][:3]
    assert "training" not in nsf.spec
    assert (pcn.spec["training"]["overlap"], plain.spec["training"]["overlap"]) == (0.5, 0)
    assert pcn.figures != plain.figures != nsf.figures


def test_what_is_trained_is_not_trained_again_and_other_settings_are(
    data: Path, finished: tuple[Plan, list[Record]]
) -> None:
    plan, _ = finished
    assert not Plan(plan.recipe, plan.runs, plan.out, tuning=True).todo
    other = METHODS | {"plain": {"calibrator": CALIBRATOR, "training": {"overlap": 0.25}}}
    again = Plan(make_recipe(content(data, methods=other)), plan.runs, plan.out, tuning=True)
    assert {(step.kind, step.method or step.left) for step in again.todo} == {
        ("method", "plain"), ("evaluation", ("plain",)),
    }  # fmt: skip


def test_what_cannot_be_compared_is_refused(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("capl", "capl+T"):
        with pytest.raises(GfssError, match="method 'capl' is trained on the features of one base model"):
            Plan(make_recipe(content(data, methods=[name])), tuning=True)
    with pytest.raises(GfssError, match="nothing is left to train on"):
        Plan(make_recipe(content(data, training=TRAINING | {"held_out": 1})), tuning=True)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(GfssError, match="start gfss tune without torchrun"):
        run_plan(Plan(make_recipe(content(data)), tmp_path, tmp_path, tuning=True))


def test_the_command_prints_tables_of_records_that_are_there(
    data: Path, finished: tuple[Plan, list[Record]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, _ = finished
    file = tmp_path / "choices.yaml"
    file.write_text(yaml.safe_dump(content(data)))
    assert main(["tune", str(file), "--runs", str(plan.runs), "--out", str(plan.out)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "squares, base classes held out, 1 shot, paired protocol, per-image IoU in percent" in shown
    assert "0, part 2 of 3" in shown
    found = find_records([plan.out])
    assert {path.parent.name for path in found} == {f"fold0-part{part}of3" for part in (1, 2, 3)}
    assert {read_record(path).method for path in found} == {"nsf", "pcn-support", "plain"}
