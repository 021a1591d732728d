from __future__ import annotations

from pathlib import Path

import pytest
from tests.training.tiny import CLASSES, FOLD, SIZE, make_dataset, make_model, write_images

from gfss.common.errors import GfssError
from gfss.experiments.experiment import Experiment
from gfss.methods.pcn import Calibrated
from gfss.training.base_checkpoints import save_base
from gfss.training.method_checkpoints import save_method


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("colours")
    for seed, split in enumerate(("train", "val")):
        write_images(folder, split, 24, seed)
    return folder


@pytest.fixture
def experiment(data: Path, tmp_path: Path) -> Experiment:
    return Experiment(str(data), encoder="tiny", size=SIZE, runs=tmp_path)


@pytest.fixture
def with_model(experiment: Experiment) -> Experiment:
    save_base(experiment.base_folder, make_model(experiment.train_set))
    return experiment


def test_defaults_depend_on_the_data() -> None:
    scenes, photographs = Experiment(), Experiment("pascal", fold=2)
    assert (scenes.encoder, scenes.size, scenes.folder) == ("tiny", 113, Path("runs/scenes-tiny/fold0"))
    assert (photographs.encoder, photographs.size) == ("lite0", 417)
    assert photographs.base_folder == Path("runs/pascal-lite0/fold2/base")
    assert photographs.method_folder("pcn-support", 5) == Path("runs/pascal-lite0/fold2/pcn-support-5shot")


def test_names_are_safe_in_paths() -> None:
    own = Experiment("some/where/birds", encoder="hf:facebook/dinov2", novel=("owl", "crow"), runs=Path("r"))
    assert own.name == "birds"
    assert own.folder == Path("r/birds-hf-facebook-dinov2/owl-crow")


def test_classes_are_those_of_the_fold_or_named(experiment: Experiment) -> None:
    assert experiment.classes == FOLD
    named = Experiment(experiment.data, novel=("cyan", "red"))
    assert named.classes.novel == (6, 1)
    assert len(named.classes.base) == 6


def test_unknown_novel_class(experiment: Experiment) -> None:
    with pytest.raises(GfssError, match="unknown class 'gren'; did you mean 'green'"):
        _ = Experiment(experiment.data, novel=("gren",)).classes


def test_some_class_must_be_known(experiment: Experiment) -> None:
    everything = tuple(experiment.val_set.classes)
    with pytest.raises(GfssError, match="all 8 classes are novel"):
        _ = Experiment(experiment.data, novel=everything).classes


def test_the_command_names_the_novel_classes(experiment: Experiment) -> None:
    named = Experiment(experiment.data, novel=("cyan", "red"), runs=experiment.runs)
    with pytest.raises(GfssError, match=r"--novel cyan,red --encoder \w+ --runs "):
        named.method("nsf", 1)


def test_a_missing_base_model_is_answered_with_the_command(experiment: Experiment) -> None:
    with pytest.raises(GfssError, match=r"there is no base model in .* train it first: gfss train base --data"):
        experiment.method("nsf", 1)


def test_a_fold_out_of_range_is_said_before_anything_else(experiment: Experiment) -> None:
    experiment.fold = 7
    with pytest.raises(GfssError, match="fold 7 is out of range"):
        experiment.method("nsf", 1)


def test_a_model_of_other_classes_is_refused(with_model: Experiment, tmp_path: Path) -> None:
    other = Experiment(with_model.data, fold=1, encoder="tiny", size=SIZE, runs=tmp_path / "other")
    save_base(other.base_folder, make_model(with_model.train_set))
    with pytest.raises(GfssError, match="knows other classes than fold 1; train it anew"):
        _ = other.model


def test_unknown_method(with_model: Experiment) -> None:
    with pytest.raises(GfssError, match="unknown method 'pcm'; did you mean 'pcn'"):
        with_model.method("pcm", 1)


def test_an_untrained_method_is_answered_with_the_command(with_model: Experiment) -> None:
    with pytest.raises(
        GfssError, match=r"'pcn-support' is not trained for 5 shot.* gfss train method --method pcn-support --shots 5"
    ):
        with_model.method("pcn-support", 5)
    assert not with_model.method("pcn-support", 5, trained=False).trained


def test_methods_are_built_the_same_for_the_same_seed(with_model: Experiment) -> None:
    _ = with_model.context  # opening the base model draws random numbers too
    modules = [with_model.method("pcn-support", 1, seed, trained=False).module for seed in (0, 0, 1)]
    states = [[float(value.double().sum()) for value in module.state_dict().values()] for module in modules if module]
    assert states[0] == states[1] != states[2]


def test_what_a_calibrator_stands_on_comes_trained(with_model: Experiment) -> None:
    with pytest.raises(GfssError, match="method 'capl' is not trained for 1 shot"):
        with_model.method("capl+T", 1, trained=False)
    inner = with_model.method("capl", 1, trained=False)
    save_method(with_model.method_folder("capl", 1), inner, with_model.model.card, {})
    calibrated = with_model.method("capl+T", 1, trained=False)
    assert isinstance(calibrated, Calibrated)
    assert calibrated.inner.trained
    assert not calibrated.trained
    save_method(with_model.method_folder("capl+T", 1), calibrated, with_model.model.card, {})
    ready = with_model.method("capl+T", 1)
    assert isinstance(ready, Calibrated)
    assert ready.trained
    assert ready.inner.trained


def test_sources_read_the_banks_of_the_splits(with_model: Experiment) -> None:
    assert with_model.train_source.store.bank.count == len(with_model.train_set) == 24
    assert with_model.val_source.dataset.ids[0] == "val_000"
    assert with_model.train_source.store.bank.folder != with_model.val_source.store.bank.folder
    assert with_model.context.map_size == (9, 9)
    assert with_model.model.card.classes == CLASSES[2:]
    assert make_dataset(Path(with_model.data), 24).ids == with_model.train_set.ids
