"""The embedded scenes: same seed same bytes, every class in every split, folders complete or absent."""

from __future__ import annotations

import errno
import hashlib
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gfss.common.errors import GfssError
from gfss.data.catalog import FOLDS, VOID
from gfss.data.datasets import scenes
from gfss.data.datasets.base import Dataset
from gfss.data.datasets.folder import read_folder
from gfss.data.datasets.scenes import SCENE_CLASSES, make_scenes
from gfss.data.datasets.scenes.painter import MIN_VISIBLE, SIDE, paint_scene
from gfss.data.episodes import make_fold, task

TRAIN, VAL = 24, 40


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_scenes(tmp_path_factory.mktemp("made") / "scenes", seed=3, train=TRAIN, val=VAL, workers=2)


@pytest.fixture
def val(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    monkeypatch.setenv("GFSS_CACHE", str(tmp_path))
    return read_folder(root, "val")


def digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_same_seed_gives_same_bytes_in_one_process_or_two(root: Path, tmp_path: Path) -> None:
    alone = make_scenes(tmp_path / "alone", seed=3, train=TRAIN, val=VAL, workers=1)
    assert digests(alone) == digests(root)


def test_other_seed_gives_other_images(root: Path, tmp_path: Path) -> None:
    other = digests(make_scenes(tmp_path / "other", seed=4, train=2, val=1, workers=1))
    assert not set(other.values()) & {d for name, d in digests(root).items() if name.startswith("images")}


def test_splits_differ(root: Path) -> None:
    first = [(root / "images" / f"{split}_00000.png").read_bytes() for split in ("train", "val")]
    assert first[0] != first[1]


def test_folder_has_the_plain_form(root: Path, val: Dataset) -> None:
    train = read_folder(root, "train")
    assert (len(train), len(val)) == (TRAIN, VAL)
    assert train.classes == SCENE_CLASSES
    assert len(set(SCENE_CLASSES)) == 12
    assert val.image(0).shape == (SIDE, SIDE, 3)
    with Image.open(val.masks[0]) as mask:
        assert mask.mode == "P"
        assert mask.getpalette()[:9] == [0, 0, 0, 128, 0, 0, 0, 128, 0]


def test_masks_hold_two_to_four_classes_with_void_borders_only(val: Dataset) -> None:
    for i in range(len(val)):
        mask = val.mask(i)
        values = set(np.unique(mask).tolist())
        assert values <= {*range(13), VOID}
        assert 2 <= len(values - {0, VOID}) <= 4
        assert 0.005 < (mask == VOID).mean() < 0.1


def test_every_class_is_in_a_quarter_of_the_images(val: Dataset) -> None:
    assert val.members[:, 1:].mean(axis=0).min() >= 0.25
    visible = val.areas[:, 1:13]
    assert visible[visible > 0].min() >= MIN_VISIBLE  # nothing is hidden below the membership area


def test_classes_are_dealt_evenly() -> None:
    hands = list(islice(scenes._deal_classes(np.random.default_rng(0)), scenes.VAL_IMAGES))
    counts = np.bincount([c for hand in hands for c in set(hand)], minlength=13)[1:]
    assert counts.max() - counts.min() <= 1
    assert {len(hand) for hand in hands} == {2, 3, 4}


@pytest.mark.parametrize("fold", range(FOLDS))
def test_tasks_can_be_drawn_in_every_fold(val: Dataset, fold: int) -> None:
    split = make_fold(12, fold)
    drawn = task(val, split, seed=0, i=1)
    assert drawn.novel == (3 * fold + 2,)
    assert val.members[drawn.supports[0][0], drawn.novel[0]]
    assert len(drawn.queries) == 2 * 9


def test_later_objects_hide_earlier_ones_but_never_wholly() -> None:
    for seed in range(10):
        _, mask = paint_scene((5, 11, 11, 2), np.random.default_rng(seed))
        assert [(mask == c).sum() >= MIN_VISIBLE * n for c, n in ((5, 1), (11, 2), (2, 1))] == [True] * 3


def test_complete_set_is_reused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenes, "_fill", lambda *_: pytest.fail("painted again"))
    assert make_scenes(root, seed=3, train=TRAIN, val=VAL) == root


def test_cache_is_the_default_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GFSS_CACHE", str(tmp_path))
    folder = make_scenes(seed=1, train=1, val=1, workers=1)
    assert folder.parent == tmp_path / "scenes"
    assert folder != make_scenes(seed=2, train=1, val=1, workers=1)


def test_interrupted_run_leaves_nothing_and_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(scenes, "paint_scene", interrupt)
        with pytest.raises(KeyboardInterrupt):
            make_scenes(tmp_path / "new", train=1, val=1, workers=1)
    assert list(tmp_path.iterdir()) == []
    assert (make_scenes(tmp_path / "new", train=1, val=1, workers=1) / "val.txt").exists()


def test_full_disk_is_answered_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(scenes, "paint_scene", full)
    with pytest.raises(GfssError, match=r"cannot write the scenes to .*: No space left"):
        make_scenes(tmp_path / "new", train=1, val=1, workers=1)
    assert list(tmp_path.iterdir()) == []


def test_another_process_that_was_faster_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill = scenes._fill

    def slow_fill(*arguments: object) -> None:
        monkeypatch.setattr(scenes, "_fill", fill)
        make_scenes(tmp_path / "set", train=1, val=1, workers=1)
        fill(*arguments)

    monkeypatch.setattr(scenes, "_fill", slow_fill)
    assert (make_scenes(tmp_path / "set", train=1, val=1, workers=1) / "scenes.json").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_folder_with_other_content_is_refused(root: Path, tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").touch()
    for folder in (root, tmp_path, tmp_path / "photo.jpg"):
        with pytest.raises(GfssError, match="already holds something else"):
            make_scenes(folder, seed=9)


@pytest.mark.parametrize("wrong", [{"seed": -1}, {"train": 0}, {"val": 0}])
def test_wrong_numbers_are_answered_in_a_sentence(tmp_path: Path, wrong: dict[str, int]) -> None:
    with pytest.raises(GfssError, match="at least one image"):
        make_scenes(tmp_path / "x", **wrong)
