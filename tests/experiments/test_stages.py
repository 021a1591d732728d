from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.training.tiny import CLASSES, SIZE, write_data

from gfss.common.errors import GfssError
from gfss.evaluation.protocols import ProtocolName
from gfss.evaluation.records import Record, read_record, same_result, write_record
from gfss.experiments.evaluator import base_record, evaluate_stage, record_path
from gfss.experiments.experiment import Experiment
from gfss.experiments.stages import BASE_RECIPES, train_base_stage, train_method_stage
from gfss.features.support import Support
from gfss.methods.score_fusion import NormalisedScoreFusion
from gfss.models.novel.classifier import NovelOptions
from gfss.training.base import BaseOptions
from gfss.training.checkpoints import has_checkpoint, load_checkpoint
from gfss.training.episodic_options import EpisodicOptions

BASE = BaseOptions(
    levels=("layer3", "layer4"), pyramid=4, width=16, separable=False, epochs=20, batch=8, rate=5e-3, label_stride=2
)  # fmt: skip
EPISODIC = EpisodicOptions(iterations=5, batch=4, episodes=6, pairs=2)
NOVEL = NovelOptions(hidden=8, steps=10)
GOLDEN_IOU = 39.08
GOLDEN = {"nsf": (16.25, 20.27), "pcn-support": (34.09, 22.74)}
METHODS = ("oracle", "background", "base", "nsf", "pcn-support")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("colours"))


def opened(data: Path, runs: Path) -> Experiment:
    return Experiment(str(data), encoder="tiny", size=SIZE, novel_options=NOVEL, runs=runs)


def run_all(data: Path, runs: Path) -> tuple[dict[str, float], list[Record]]:
    """All stages, each in an experiment of its own, as separate commands would."""
    iou = train_base_stage(opened(data, runs), options=BASE)
    train_method_stage(opened(data, runs), "pcn-support", 1, options=EPISODIC)
    return iou, evaluate_stage(opened(data, runs), METHODS, 1, "paired", tasks=4, seed=2)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def finished(data: Path, runs: Path) -> tuple[dict[str, float], list[Record]]:
    return run_all(data, runs)


def test_the_base_stage_gives_iou_of_every_base_class(finished: tuple[dict[str, float], list[Record]]) -> None:
    iou, _ = finished
    assert list(iou) == ["base", "background", *CLASSES[2:]]
    assert 25 < iou["base"] <= 100  # six colours on grey: far above chance after some iterations


def test_stages_leave_finished_parts_only(data: Path, runs: Path, finished: object) -> None:
    experiment = opened(data, runs)
    assert has_checkpoint(experiment.base_folder, "base")
    assert has_checkpoint(experiment.method_folder("pcn-support", 1), "method")
    assert not list(runs.rglob("train*.json"))
    _, about = load_checkpoint(experiment.method_folder("pcn-support", 1), "method")
    assert about["training"].items() >= vars(EPISODIC).items()


def test_records_say_all_of_a_run(data: Path, finished: tuple[dict[str, float], list[Record]], tmp_path: Path) -> None:
    _, records = finished
    assert [record.method for record in records] == list(METHODS)
    for record in records:
        assert (record.data, record.fold, record.shots, record.encoder) == (data.name, 0, 1, "tiny")
        assert (record.protocol, record.tasks, record.seed) == ("paired", 4, 2)
        assert record.novel_classes == list(CLASSES[:2])
        assert [len(names) for names in record.supports] == [1] * 4
        assert record.recipe["base"]["rate"] == BASE.rate
        assert {"learn", "segment", "count", "prepare", "all methods"} == set(record.run.seconds)
        path = record_path(tmp_path, opened(data, tmp_path), record.method, 1, "paired", 2)
        write_record(path, record)
        assert read_record(path) == record
    assert len(list(tmp_path.rglob("*.json"))) == len(METHODS)
    oracle, background, base = (record.figures["per-image"] for record in records[:3])
    assert oracle.harmonic == 100
    assert background.harmonic == 0
    assert base.novel == 0
    assert base.base is not None
    assert base.base > 5


def test_golden_run(finished: tuple[dict[str, float], list[Record]]) -> None:
    """Figures of one small run; they may move a little between processors, not more."""
    iou, records = finished
    found = {record.method: record.figures["accumulated"] for record in records}
    assert iou["base"] == pytest.approx(GOLDEN_IOU, abs=0.5)
    for method, (base, novel) in GOLDEN.items():
        assert (found[method].base, found[method].novel) == pytest.approx((base, novel), abs=0.5)


def test_two_runs_give_the_same_records(
    data: Path, finished: tuple[dict[str, float], list[Record]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GFSS_CACHE", str(tmp_path / "cache"))  # nothing is left of the first run
    iou, records = run_all(data, tmp_path / "runs")
    assert iou == finished[0]
    assert all(same_result(first, second) for first, second in zip(records, finished[1], strict=True))


@pytest.mark.parametrize("protocol", ["paired", "joint"])
def test_trivial_methods_need_no_model(data: Path, tmp_path: Path, protocol: ProtocolName) -> None:
    records = evaluate_stage(opened(data, tmp_path), ["oracle", "background"], 1, protocol, tasks=2)
    for record, expected in zip(records, (100.0, 0.0), strict=True):
        for figures in record.figures.values():
            assert [figures.base, figures.novel, figures.miou, figures.harmonic] == [expected] * 4
    assert not any(tmp_path.iterdir())


def test_the_base_model_alone_has_a_record(
    data: Path, runs: Path, finished: tuple[dict[str, float], list[Record]]
) -> None:
    record = base_record(opened(data, runs), finished[0])
    assert (record.method, record.shots, record.novel_classes) == ("base", 0, list(CLASSES[:2]))
    figures = record.figures["accumulated"]
    assert figures.base == pytest.approx(finished[0]["base"])
    assert {"background": figures.background, **figures.classes, "base": figures.base} == pytest.approx(
        {**finished[0], **dict.fromkeys(CLASSES[:2])}
    )


def test_joint_protocol(data: Path, runs: Path, finished: object) -> None:
    oracle, nsf = evaluate_stage(opened(data, runs), ["oracle", "nsf"], 2, "joint", tasks=2)
    assert oracle.figures["accumulated"].miou == 100
    assert [len(names) for names in nsf.supports] == [4, 4]
    assert nsf.supports == oracle.supports


def test_methods_trained_on_fresh_episodes(data: Path, runs: Path, finished: object) -> None:
    options = replace(EPISODIC, iterations=2, batch=2)
    loss = train_method_stage(opened(data, runs), "capl", 1, options=options)
    assert loss > 0
    (record,) = evaluate_stage(opened(data, runs), ["capl"], 1, tasks=2)
    assert record.figures["accumulated"].base is not None


def test_a_calibrator_on_a_trained_method(data: Path, runs: Path, finished: object) -> None:
    options = replace(EPISODIC, iterations=2, batch=2, episodes=2)
    train_method_stage(opened(data, runs), "capl", 2, options=replace(options, episodes=None))
    train_method_stage(opened(data, runs), "capl+T", 2, options=options)
    (record,) = evaluate_stage(opened(data, runs), ["capl+T"], 2, tasks=2)
    assert record.method == "capl+T"


def test_an_unfinished_base_run_is_resumed(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gfss.training import base, loop

    monkeypatch.setattr(loop, "SAVE_EVERY", 3)
    augmentations = base.augmentations

    def stopping(seed: int, number: int, *rest: object) -> object:
        if number == 4:
            raise KeyboardInterrupt
        return augmentations(seed, number, *rest)  # type: ignore[arg-type]

    options = replace(BASE, epochs=2)
    with monkeypatch.context() as patched:
        patched.setattr(base, "augmentations", stopping)
        with pytest.raises(KeyboardInterrupt):
            train_base_stage(opened(data, tmp_path / "a"), options=options)
    resumed = train_base_stage(opened(data, tmp_path / "a"), options=options, resume=True)
    assert resumed == train_base_stage(opened(data, tmp_path / "b"), options=options)


def test_recipes_are_known_by_name(data: Path, tmp_path: Path) -> None:
    experiment = opened(data, tmp_path)
    with pytest.raises(GfssError, match="unknown recipe 'papr'; did you mean 'paper'"):
        train_base_stage(experiment, "papr")
    with pytest.raises(GfssError, match="unknown recipe 'papr'; did you mean 'paper'"):
        train_method_stage(experiment, "pcn-support", 1, "papr")
    assert BASE_RECIPES["paper"].rate == 2.5e-3


def test_methods_that_need_no_training_say_so(data: Path, runs: Path, finished: object) -> None:
    with pytest.raises(GfssError, match="method 'nsf' needs no training; evaluate it right away"):
        train_method_stage(opened(data, runs), "nsf", 1)


def test_a_missing_base_model_is_said_in_one_sentence(data: Path, tmp_path: Path) -> None:
    for stage in (
        lambda: train_method_stage(opened(data, tmp_path), "pcn-support", 1),
        lambda: evaluate_stage(opened(data, tmp_path), ["nsf"], 1),
    ):
        with pytest.raises(GfssError, match="there is no base model in"):
            stage()


def test_results_are_kept_until_the_records_are_written(
    data: Path, runs: Path, finished: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk at the end costs nothing but a second call."""
    learned: list[Support] = []
    learn = NormalisedScoreFusion.learn

    def noted(method: NormalisedScoreFusion, support: Support) -> None:
        learned.append(support)
        learn(method, support)

    monkeypatch.setattr(NormalisedScoreFusion, "learn", noted)

    def fail(records: Sequence[Record]) -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        evaluate_stage(opened(data, runs), ["nsf"], 1, tasks=3, seed=9, write=fail)
    assert len(learned) == 3
    written: list[Record] = []
    records = evaluate_stage(opened(data, runs), ["nsf"], 1, tasks=3, seed=9, write=written.extend)
    assert (len(learned), written) == (3, records)
    evaluate_stage(opened(data, runs), ["nsf"], 1, tasks=3, seed=9)
    assert len(learned) == 6


def test_records_of_other_supports_and_encoders_have_places_of_their_own(data: Path, tmp_path: Path) -> None:
    experiment = Experiment(str(data), encoder="hf:some/vit", runs=tmp_path)
    usual = record_path(tmp_path, experiment, "nsf", 1, "joint", 0)
    assert usual == tmp_path / f"{data.name}-hf-some-vit" / "fold0" / "nsf-1shot-joint-seed0.json"
    other = record_path(tmp_path, experiment, "nsf", 1, "joint", 0, "train")
    assert other == usual.with_name("nsf-1shot-joint-train-supports-seed0.json")


def test_commands_that_messages_propose_are_about_the_same_experiment(data: Path, tmp_path: Path) -> None:
    experiment = Experiment(str(data), fold=1, encoder="tiny", size=65, runs=tmp_path)
    with pytest.raises(GfssError, match=rf"--data {data} --fold 1 --encoder tiny --runs {tmp_path} --size 65$"):
        experiment.method("nsf", 1)


def test_a_resnet_without_weights_is_refused(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GFSS_WEIGHTS", raising=False)
    with pytest.raises(GfssError, match="there are no ImageNet weights for resnet18"):
        train_base_stage(Experiment(str(data), encoder="resnet18", size=33, runs=tmp_path))
    folder = tmp_path / "weights"
    folder.mkdir()
    for name in ("resnet50-msra.pth", "resnet50.pth"):
        (folder / name).touch()
    monkeypatch.setenv("GFSS_WEIGHTS", str(folder))
    assert Experiment(str(data), encoder="resnet50").weights == folder / "resnet50.pth"
