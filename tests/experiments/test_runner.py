"""Steps and runs: what is done is seen from the folders, a run stopped anywhere continues, two runs are equal."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tests.conftest import REPOSITORY
from tests.experiments.tiny_recipe import SMALL, tiny_content, tiny_recipe
from tests.training.tiny import CLASSES, FOLD, write_data

from gfss.common.errors import GfssError
from gfss.evaluation.costs import read_costs
from gfss.evaluation.records import Record, find_records, read_record, same_result
from gfss.experiments import artifacts, runner, storage
from gfss.experiments.artifacts import Evaluation, Part, method_artifact
from gfss.experiments.experiment import Experiment
from gfss.experiments.recipes import make_recipe
from gfss.experiments.runner import run_plan
from gfss.experiments.spec import Recipe
from gfss.experiments.steps import Plan
from gfss.experiments.storage import stored_artifacts
from gfss.features.episodes import Support
from gfss.methods.diam import Diam
from gfss.methods.pcn import Calibrated, NormalisedScoreFusion
from gfss.training import base, loop

GOLDEN_IOU = 39.08
GOLDEN = {"nsf": (16.25, 20.27), "pcn-support": (34.09, 22.74)}
LARGER: dict[str, Any] = {
    "base": {
        "levels": ["layer3", "layer4"],
        "pyramid": 4,
        "width": 16,
        "separable": False,
        "epochs": 20,
        "batch": 8,
        "rate": 5e-3,
        "label_stride": 2,
    },
    "novel": {"hidden": 8, "steps": 10},
    "training": {"iterations": 5, "batch": 4, "episodes": 6, "pairs": 2},
    "levels": ["layer2", "layer3", "layer4"],
    "methods": ["base", "nsf", "pcn-support"],
    "protocols": {"paired": 4},
    "seeds": [2],
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan") / "squares"
    tiny_content(folder)
    return folder


def plan_in(folder: Path, recipe: Recipe, **options: Any) -> Plan:
    return Plan(recipe, folder / "runs", folder / "results", **options)


def todo(plan: Plan) -> list[tuple[str, str, object]]:
    return [(step.kind, step.method or ",".join(step.left), step.part and step.part.number) for step in plan.todo]


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the tiny recipe has been run."""
    folder = tmp_path_factory.mktemp("finished")
    run_plan(plan_in(folder, tiny_recipe(data)))
    return folder


def test_a_new_plan_has_every_step_in_order(data: Path, tmp_path: Path) -> None:
    recipe = tiny_recipe(data, methods=["acastle+T", "pcn-support", "nsf"], shots=[1, 2])
    plan = plan_in(tmp_path, recipe)
    names = "acastle+T,pcn-support,nsf"
    assert todo(plan) == [
        ("base", "", None),
        *(("base", "", part) for part in (1, 2, 3)),
        ("method", "acastle", None),  # it serves both numbers of shots, and the calibrator on it
        ("method", "acastle+T", None),
        ("method", "pcn-support", None),
        ("method", "acastle+T", None),
        ("method", "pcn-support", None),
        ("evaluation", "base", None),
        ("evaluation", names, None),
        ("evaluation", names, None),
    ]
    assert all(step.state == "todo" and step.seconds > 0 for step in plan.steps)


def test_what_is_done_is_not_done_again(data: Path, finished: Path) -> None:
    plan = plan_in(finished, tiny_recipe(data))
    assert {step.state for step in plan.steps} == {"done"}
    assert run_plan(plan) == []
    records = [read_record(path) for path in find_records([finished / "results"])]
    assert {record.method for record in records} == {"base", "nsf", "pcn-support"}
    (cost,) = read_costs(next((finished / "results").rglob("costs.csv")))
    assert (cost.method, cost.resumed) == ("pcn-support", False)
    assert cost.seconds > 0
    assert cost.artifact in next(record for record in records if record.method == "pcn-support").artifacts


def test_every_artefact_is_marked_and_nothing_unfinished_is_left(finished: Path) -> None:
    found = stored_artifacts(finished / "runs")
    assert [one.kind for one in found] == ["base"] * 4 + ["method"]
    assert all(one.is_complete for one in found)
    assert not list(finished.rglob("train*.json"))
    assert set(found[-1].parents) == {one.identity for one in found[:-1]}


def test_two_processes_write_the_record_of_one(data: Path, finished: Path, tmp_path: Path) -> None:
    content = tiny_content(data, methods={"nsf": None, "pcn-support": SMALL, "npf": None}, protocols={"paired": 5})
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


@pytest.mark.slow
def test_two_machines_train_as_two_processes_do(data: Path, tmp_path: Path) -> None:
    """Two agents of torchrun, each with a process, in place of one with two."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(tiny_content(data)))
    launcher = [sys.executable, "-m", "torch.distributed.run"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
    together = ["--rdzv-backend", "c10d", "--rdzv-endpoint", place, "--rdzv-id", "test", "--local-addr", "127.0.0.1"]
    starts = {
        "processes": [["--standalone", "--nproc-per-node", "2"]],
        "machines": [["--nnodes", "2", "--nproc-per-node", "1", *together]] * 2,
    }
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for name, options in starts.items():
        own = ["--runs", str(tmp_path / name / "runs"), "--out", str(tmp_path / name / "results")]
        agents = [
            subprocess.Popen([*launcher, *one, "-m", "gfss", "run", str(recipe), *own], cwd=REPOSITORY, env=environment)
            for one in options
        ]
        assert [agent.wait() for agent in agents] == [0] * len(agents)
    found = [find_records([tmp_path / name / "results"]) for name in starts]
    assert len(found[0]) == len(found[1]) == 3
    assert all(same_result(read_record(a), read_record(b)) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ({"methods": {"nsf": None, "pcn-support": SMALL, "npf": None}}, [("evaluation", "npf", None)]),
        ({"protocols": {"paired": 3}}, [("evaluation", "nsf,pcn-support", None)]),
        (
            {"novel": {"hidden": 5, "steps": 3}},
            [("method", "pcn-support", None), ("evaluation", "nsf,pcn-support", None)],
        ),
        (
            {"training": {"iterations": 3, "batch": 2, "episodes": 3, "pairs": 1}},
            [("method", "pcn-support", None), ("evaluation", "pcn-support", None)],
        ),
    ],
)
def test_other_options_leave_what_does_not_depend_on_them(
    data: Path, finished: Path, changes: dict[str, Any], left: list[tuple[str, str, object]]
) -> None:
    assert todo(plan_in(finished, tiny_recipe(data, **changes))) == left


def test_records_without_their_models_need_no_training(data: Path, finished: Path) -> None:
    plan = Plan(tiny_recipe(data), finished / "other runs", finished / "results")
    assert {step.state for step in plan.steps if step.kind != "evaluation"} == {"not needed"}
    assert not plan.todo
    kinds = [step.kind for step in Plan(plan.recipe, plan.runs, plan.out, only="methods").todo]
    assert kinds == ["base"] * 4 + ["method"]
    assert [step.part for step in Plan(plan.recipe, plan.runs, plan.out, only="base").todo] == [None]


def test_other_files_are_other_artefacts(data: Path, finished: Path, tmp_path: Path) -> None:
    other = tmp_path / data.name
    shutil.copytree(data, other)
    recipe = tiny_recipe(other)
    assert not plan_in(finished, recipe).todo  # a copy is the same data
    artifacts.data_fingerprint.cache_clear()
    shutil.copy(other / "masks" / "val_000.png", other / "masks" / "val_001.png")
    assert {step.kind for step in plan_in(finished, recipe).todo} == {"evaluation"}
    artifacts.data_fingerprint.cache_clear()
    shutil.copy(other / "masks" / "train_000.png", other / "masks" / "train_001.png")
    assert len(plan_in(finished, recipe).todo) == 7
    artifacts.data_fingerprint.cache_clear()


def test_an_interrupted_run_continues_and_equals_another(
    data: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_in(tmp_path, tiny_recipe(data))

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(runner, "train_calibrator", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_plan(plan)
    plan = plan_in(tmp_path, plan.recipe)
    assert [step.kind for step in plan.todo] == ["method", "evaluation", "evaluation"]
    run_plan(plan)
    for path in find_records([tmp_path / "results"]):
        other = finished / "results" / path.relative_to(tmp_path / "results")
        assert same_result(read_record(path), read_record(other))


def test_an_unfinished_training_is_resumed(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SAVE_EVERY", 3)
    augmentations = base.augmentations

    def stopping(seed: int, number: int, *rest: Any) -> object:
        if number == 4:
            raise KeyboardInterrupt
        return augmentations(seed, number, *rest)

    recipe = tiny_recipe(data, base={**LARGER["base"], "epochs": 2})
    with monkeypatch.context() as patched:
        patched.setattr(base, "augmentations", stopping)
        with pytest.raises(KeyboardInterrupt):
            run_plan(plan_in(tmp_path / "a", recipe, only="base"))
    (left,) = stored_artifacts(tmp_path / "a" / "runs")
    assert not left.is_complete
    for folder in ("a", "b"):
        run_plan(plan_in(tmp_path / folder, recipe, only="base"))
    first, second = (Experiment(recipe, 0, tmp_path / name / "runs").model.state_dict() for name in ("a", "b"))
    assert all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.fixture(scope="module")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another data set, with more images of val."""
    return write_data(tmp_path_factory.mktemp("colours"))


@pytest.fixture(scope="module")
def larger(colours: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, dict[str, Record]]:
    plan = plan_in(tmp_path_factory.mktemp("larger"), tiny_recipe(colours, **LARGER))
    return plan, {f"{record.method}-{record.shots}": record for record in run_plan(plan)}


def test_records_say_all_of_a_run(colours: Path, larger: tuple[Plan, dict[str, Record]]) -> None:
    plan, records = larger
    assert set(records) == {"base-0", "base-1", "nsf-1", "pcn-support-1"}
    for name in ("base-1", "nsf-1", "pcn-support-1"):
        record = records[name]
        assert (record.data, record.fold, record.shots, record.encoder) == (colours.name, 0, 1, "tiny")
        assert (record.protocol, record.tasks, record.seed) == ("paired", 4, 2)
        assert record.novel_classes == list(CLASSES[:2])
        assert [len(names) for names in record.supports] == [1] * 4
        assert record.spec["base"]["rate"] == 5e-3
        assert record.spec["size"] == 33
        assert {"learn", "segment", "count", "prepare", "all methods"} == set(record.run.seconds)
    assert records["pcn-support-1"].spec["training"]["iterations"] == 5
    assert records["nsf-1"].spec["novel"]["hidden"] == 8
    assert records["base-1"].figures["per-image"].novel == 0
    assert {read_record(path).method for path in find_records([plan.out])} == {"base", "nsf", "pcn-support"}


def test_golden_run(larger: tuple[Plan, dict[str, Record]]) -> None:
    """Figures of one small run; they may move a little between processors, not more."""
    _, records = larger
    assert records["base-0"].figures["accumulated"].base == pytest.approx(GOLDEN_IOU, abs=0.5)
    for name, (known, new) in GOLDEN.items():
        figures = records[f"{name}-1"].figures["accumulated"]
        assert (figures.base, figures.novel) == pytest.approx((known, new), abs=0.5)


def test_two_runs_give_the_same_records(
    larger: tuple[Plan, dict[str, Record]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GFSS_CACHE", str(tmp_path / "cache"))  # nothing is left of the first run
    again = run_plan(plan_in(tmp_path, larger[0].recipe))
    assert all(same_result(record, larger[1][f"{record.method}-{record.shots}"]) for record in again)


def test_the_base_model_alone_has_a_record(larger: tuple[Plan, dict[str, Record]]) -> None:
    record = larger[1]["base-0"]
    assert (record.shots, record.novel_classes, record.protocol) == (0, list(CLASSES[:2]), "joint")
    figures = record.figures["accumulated"]
    assert [name for name, value in figures.classes.items() if value is None] == list(CLASSES[:2])
    assert set(record.base_classes) == set(CLASSES[2:])


def test_joint_protocol_and_supports_of_another_split(larger: tuple[Plan, dict[str, Record]], colours: Path) -> None:
    plan, _ = larger
    for split in ("val", "train"):
        changes = {"protocols": {"joint": 2}, "supports": split, "shots": [2], "methods": ["nsf"]}
        recipe = tiny_recipe(colours, **(LARGER | changes))
        record = run_plan(Plan(recipe, plan.runs, plan.out))[-1]
        assert [len(names) for names in record.supports] == [4, 4]
        assert {name.partition("_")[0] for names in record.supports for name in names} == {split}


def test_trained_methods_and_calibrators_on_them(larger: tuple[Plan, dict[str, Record]], colours: Path) -> None:
    plan, _ = larger
    small = {"training": {"iterations": 2, "batch": 2, "episodes": 2, "pairs": 1}, "shots": [2]}
    recipe = tiny_recipe(colours, **(LARGER | small | {"methods": ["capl", "capl+T"], "protocols": {"paired": 2}}))
    records = run_plan(Plan(recipe, plan.runs, plan.out))
    assert [record.method for record in records] == ["capl", "capl+T"]
    assert records[1].spec["on"]["method"] == "capl"


def test_options_of_a_diam_reach_the_method_and_its_record(
    larger: tuple[Plan, dict[str, Record]], colours: Path
) -> None:
    plan, _ = larger
    own = {"tight": {"diam": {"iterations": 2, "distillation_weight": 50.0}}, "diam": {"published": True}}
    recipe = tiny_recipe(colours, **(LARGER | {"methods": own, "protocols": {"paired": 1}}))
    records = {record.method: record for record in run_plan(Plan(recipe, plan.runs, plan.out))}
    assert records["tight"].spec["diam"]["distillation_weight"] == 50.0
    assert records["diam"].spec["diam"]["distillation_weight"] == 100.0
    calibrated = tiny_recipe(colours, **(LARGER | {"methods": {**own, "tight+T": None}}))
    method = Experiment(calibrated, 0, plan.runs).method("tight+T", 1, trained=False)
    assert isinstance(method, Calibrated)
    assert isinstance(method.inner, Diam)
    assert (method.inner.name, method.inner.options.iterations) == ("tight", 2)


def test_results_are_kept_until_the_records_are_written(
    larger: tuple[Plan, dict[str, Record]], colours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk at the end costs nothing but a second call."""
    learned: list[Support] = []
    learn = NormalisedScoreFusion.learn

    def noted(method: NormalisedScoreFusion, support: Support) -> None:
        learned.append(support)
        learn(method, support)

    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(NormalisedScoreFusion, "learn", noted)
    recipe = tiny_recipe(colours, **(LARGER | {"methods": ["nsf"], "protocols": {"paired": 3}, "seeds": [9]}))
    shutil.copytree(larger[0].out, tmp_path / "results")
    with monkeypatch.context() as patch:
        patch.setattr(runner, "write_records", fail)
        with pytest.raises(OSError, match="no space left"):
            run_plan(Plan(recipe, larger[0].runs, tmp_path / "results"))
    assert len(learned) == 3
    assert len(run_plan(Plan(recipe, larger[0].runs, tmp_path / "results"))) == 1
    assert len(learned) == 3


def test_a_missing_model_is_said_with_the_command(data: Path, tmp_path: Path) -> None:
    experiment = Experiment(tiny_recipe(data), 0, tmp_path)
    with pytest.raises(GfssError, match=r"squares-fold0-tiny-\w+ is not complete; .* gfss run RECIPE --only base"):
        experiment.method("nsf", 1)


def test_classes_are_those_of_the_fold_or_named(data: Path) -> None:
    assert Experiment(tiny_recipe(data)).classes == FOLD
    named = Experiment(tiny_recipe(data, novel_classes=["cyan", "red"]))
    assert (named.classes.novel, len(named.classes.base), named.fold_name) == ((6, 1), 6, "cyan,red")
    with pytest.raises(GfssError, match="unknown class 'gren'; did you mean 'green'"):
        _ = Experiment(tiny_recipe(data, novel_classes=["gren"])).classes
    assert not Experiment(tiny_recipe(data, folds="all"), "all").classes.novel


def test_parts_of_images_are_disjoint_and_complete(data: Path) -> None:
    experiment = Experiment(tiny_recipe(data))
    for count in (1, 2, 3):
        parts = [experiment.images_of(part).tolist() for part in artifacts.parts(count)]
        assert sorted(image for part in parts for image in part) == list(range(40))
        others = experiment.images_of(Part(1, count), others=True)
        assert sorted([*parts[0], *others]) == list(range(40))
    sentence = "6 base classes cannot be held out in 4 parts; set training.held_out to 2 to 3, or to 0"
    with pytest.raises(GfssError, match=sentence):
        experiment.classes_without(Part(1, 4))


def test_held_out_models_never_saw_what_their_episodes_show(data: Path, finished: Path) -> None:
    experiment = Experiment(tiny_recipe(data), 0, finished / "runs")
    sources = experiment.held_out_sources(3)
    assert sorted(c for source in sources.sources for c in source.fakes or ()) == sorted(FOLD.base)
    for part, source in zip(artifacts.parts(3), sources.sources, strict=True):
        card = source.store.model.card
        assert card.classes == tuple(CLASSES[c - 1] for c in source.fold.base)
        assert card.training["epochs"] == 1
        drawn = [source.draw(0, i, queries=2) for i in range(10)]
        images = {i for task in drawn for i in (*sum(task.supports, ()), *task.queries)}
        assert images <= set(experiment.images_of(part).tolist())
        assert not {task.novel[0] for task in drawn} & set(source.fold.base)


def test_held_out_models_are_trained_without_the_images_of_their_part(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[tuple[object, list[int]]] = []
    train = runner.train_base

    def watched(*arguments: Any, **options: Any) -> Any:
        trained.append((arguments[0].fold.base, [int(i) for i in arguments[0].avoid]))
        return train(*arguments, **options)

    monkeypatch.setattr(runner, "train_base", watched)
    recipe = tiny_recipe(data, training={"iterations": 1, "batch": 1, "episodes": 1, "pairs": 1, "held_out": 2})
    run_plan(plan_in(tmp_path, recipe, only="methods"))
    assert [len(avoid) for _, avoid in trained] == [0, 20, 20]
    assert [len(known) for known, _ in trained] == [6, 3, 3]


def test_records_have_places_of_their_own(data: Path, tmp_path: Path) -> None:
    recipe = tiny_recipe(data, encoder="hf:some/vit")
    path = Evaluation(recipe, 0, 1, "joint", 5, 0).record_path(tmp_path, "nsf")
    assert path.parent == tmp_path / "squares-hf-some-vit" / "fold0"
    assert path.name.startswith("nsf-1shot-joint-seed0-")
    other = recipe.only(supports="train")
    assert (
        Evaluation(other, 0, 1, "joint", 5, 0)
        .record_path(tmp_path, "nsf")
        .name.startswith("nsf-1shot-joint-train-supports-seed0-")
    )


def test_a_resnet_without_weights_is_refused(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GFSS_WEIGHTS", raising=False)
    recipe = tiny_recipe(data, encoder="resnet18")
    with pytest.raises(GfssError, match="there are no ImageNet weights for resnet18"):
        run_plan(plan_in(tmp_path, recipe))
    (tmp_path / "resnet18.pth").write_bytes(b"weights")
    monkeypatch.setenv("GFSS_WEIGHTS", str(tmp_path))
    first = artifacts.base_artifact(recipe, 0).identity
    (tmp_path / "other.pth").write_bytes(b"others")
    assert artifacts.base_artifact(recipe.only(weights=tmp_path / "other.pth"), 0).identity != first


def test_what_recipes_and_records_name_is_needed(
    data: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "recipes").mkdir()
    monkeypatch.setattr(storage, "recipe_names", lambda: [])
    records = {one.identity for one in stored_artifacts(finished / "runs")}
    assert storage.needed_artifacts([tmp_path]) == set()
    named = storage.needed_artifacts([finished / "results"])
    assert named & records  # the method and its base model; held-out models are their parents
    file = tmp_path / "recipes" / "mine.yaml"
    file.write_text(yaml.safe_dump(tiny_content(data)))
    monkeypatch.setattr(storage, "recipe_names", lambda: [str(file)])
    assert storage.needed_artifacts([tmp_path]) == records


def test_a_calibrator_of_other_data_can_be_borrowed(tmp_path: Path) -> None:
    """Trained on one data set, used on another with other numbers of classes, without any training there."""
    first = tiny_recipe(tmp_path / "data", methods={"pcn-support": SMALL})
    run_plan(Plan(first, tmp_path / "runs", tmp_path / "results", only="methods"))
    folder = method_artifact(first, 0, "pcn-support", 1).folder(tmp_path / "runs")
    shutil.copytree(tmp_path / "data", tmp_path / "own")
    changes = {"methods": {"pcn-support": {"borrowed": str(folder)}, "nsf": None}, "novel_classes": ["pink"]}
    own = tiny_recipe(tmp_path / "own", **changes)
    plan = Plan(own, tmp_path / "own runs", tmp_path / "own results")
    assert [step.kind for step in plan.steps if step.state == "todo"].count("method") == 0
    assert len([step for step in plan.steps if step.kind == "base"]) == 1  # no held-out base models either
    records = {record.method: record for record in run_plan(plan) if record.shots}
    assert records["pcn-support"].spec["borrowed"] in folder.joinpath("method.json").read_text()
    assert records["pcn-support"].figures != records["nsf"].figures
    assert not plan.runs.joinpath("method").exists()


def test_what_cannot_be_borrowed_is_answered_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(GfssError, match="only for calibrators"):
        tiny_recipe(tmp_path / "data", methods={"acastle": {"borrowed": "x"}})
    wrong = tiny_recipe(tmp_path / "data", methods={"pcn-support": {"borrowed": str(tmp_path)}})
    with pytest.raises(GfssError, match="is not the folder of a trained method"):
        method_artifact(wrong, 0, "pcn-support", 1)
