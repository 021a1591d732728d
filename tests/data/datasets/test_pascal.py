"""PASCAL-5^i from a VOCdevkit, with SBD, and in the plain form; the real data where it is at hand."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from tests.data.make import boxes, photo, plain, png

from gfss.common.errors import GfssError
from gfss.data import open_dataset, open_fold
from gfss.data.catalog import PASCAL_CLASSES
from gfss.data.datasets import pascal
from gfss.data.datasets.pascal import count_remark, prepare_pascal, read_pascal, read_sbd_mask, train_ids
from gfss.data.episodes import task
from gfss.data.images import read_mask

TRAIN, VAL, EXTRA, NOVAL = ["t1", "t2"], ["v1"], ["s1", "s2"], ["t1", "s1"]


@pytest.fixture
def voc(tmp_path: Path) -> Path:
    """A VOCdevkit with two train images, one val image and two without masks."""
    root = tmp_path / "VOCdevkit" / "VOC2012"
    for name in (*TRAIN, *VAL, *EXTRA):
        photo(root / "JPEGImages" / f"{name}.jpg")
    for name in (*TRAIN, *VAL):
        png(root / "SegmentationClass" / f"{name}.png", boxes(1, 255))
    lists = root / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("\n".join(TRAIN))
    (lists / "val.txt").write_text("\n".join(VAL))
    return tmp_path / "VOCdevkit"


@pytest.fixture
def sbd(tmp_path: Path) -> Path:
    """The SBD release: all images have masks of class 2; its own lists overlap with VOC val."""
    io = pytest.importorskip("scipy.io", reason="needs the extra gfss[sbd]")
    folder = tmp_path / "benchmark_RELEASE" / "dataset"
    (folder / "cls").mkdir(parents=True)
    for name in (*TRAIN, *VAL, *EXTRA):
        io.savemat(folder / "cls" / f"{name}.mat", {"GTcls": {"Segmentation": boxes(2), "Boundaries": 0}})
    (folder / "train.txt").write_text("\n".join([*NOVAL, *VAL]))
    (folder / "val.txt").write_text("\n".join(["t2", "s2"]))
    return tmp_path


def test_sbd_mask(sbd: Path) -> None:
    path = sbd / "benchmark_RELEASE" / "dataset" / "cls" / "s1.mat"
    np.testing.assert_array_equal(read_sbd_mask(path), boxes(2))
    path.write_bytes(b"MATLAB?")
    with pytest.raises(GfssError, match=r"s1\.mat is not a readable SBD file"):
        read_sbd_mask(path)


def test_prepare_merges_voc_and_sbd(voc: Path, sbd: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    remarks = prepare_pascal(voc, sbd, out)
    train, val = read_pascal(out, "train"), read_pascal(out, "val")
    assert train.ids == ("t1", "t2", "s1", "s2")
    assert val.ids == ("v1",)
    np.testing.assert_array_equal(train.mask(0), boxes(1, 255))  # VOC's own mask goes first: it marks void
    np.testing.assert_array_equal(train.mask(2), boxes(2))
    assert train.reference_side is None
    assert train.classes == PASCAL_CLASSES
    assert [remark[:30] for remark in remarks] == ["the train list has 4 images, t", "the val list has 1 images, the"]
    assert open_dataset(str(out), split="train").fingerprint == train.fingerprint


def test_train_noval_is_the_list_of_the_literature(voc: Path, sbd: Path, tmp_path: Path) -> None:
    (sbd / "benchmark_RELEASE" / "dataset" / "train_noval.txt").write_text("\n".join(NOVAL))
    prepare_pascal(voc, sbd, tmp_path / "out")
    assert read_pascal(tmp_path / "out", "train").ids == ("t1", "t2", "s1")


def test_list_given(voc: Path, sbd: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("JPEGImages/s2.jpg SegmentationClassAug/s2.png\n")
    prepare_pascal(voc, sbd, tmp_path / "out", tmp_path / "mine.txt")
    assert read_pascal(tmp_path / "out", "train").ids == ("s2",)
    (tmp_path / "mine.txt").write_text("v1\ns2\n")
    with pytest.raises(GfssError, match="1 train images are in VOC val, first 'v1'"):
        prepare_pascal(voc, sbd, tmp_path / "out2", tmp_path / "mine.txt")


def test_interrupted_run_continues(voc: Path, sbd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, written = tmp_path / "out", []
    real = pascal.write_index_png

    def stopping(path: Path, mask: np.ndarray) -> None:
        if path.stem == "s2":
            raise RuntimeError("the power is gone")
        written.append(path.stem)
        real(path, mask)

    monkeypatch.setattr(pascal, "write_index_png", stopping)
    with pytest.raises(RuntimeError):
        prepare_pascal(voc, sbd, out)
    assert not (out / "train.txt").exists()
    assert written == ["s1"]
    monkeypatch.setattr(pascal, "write_index_png", lambda path, mask: (written.append(path.stem), real(path, mask)))
    prepare_pascal(voc, sbd, out)
    prepare_pascal(voc, sbd, out)
    assert written == ["s1", "s2"]  # finished files are not made again
    assert read_pascal(out, "train").ids == ("t1", "t2", "s1", "s2")


def test_wrong_size_is_found_at_the_end(voc: Path, sbd: Path, tmp_path: Path) -> None:
    photo(voc / "VOC2012" / "JPEGImages" / "s1.jpg", (30, 30))
    with pytest.raises(
        GfssError, match=r"1 prepared file\(s\) are wrong.*s1\.png is 32 x 24 but its image s1\.jpg is 30"
    ):
        prepare_pascal(voc, sbd, tmp_path / "out")


def test_devkit_with_segmentation_class_aug(voc: Path) -> None:
    with pytest.raises(
        GfssError, match="has no SegmentationClassAug; make a data folder with: gfss data prepare pascal"
    ):
        read_pascal(voc, "val")
    for name in (*TRAIN, *VAL, "s1"):
        png(voc / "VOC2012" / "SegmentationClassAug" / f"{name}.png", boxes(3))
    for root in (voc, voc / "VOC2012", voc.parent):
        assert read_pascal(root, "train").ids == ("t1", "t2", "s1")
    assert read_pascal(voc, "val").reference_side is None
    np.testing.assert_array_equal(read_pascal(voc, "train").mask(2), boxes(3))
    (voc / "VOC2012" / "ImageSets" / "Segmentation" / "trainaug.txt").write_text("s1\n")
    assert train_ids(voc / "VOC2012", None, None) == ["s1"]


def test_prepare_without_sbd_uses_segmentation_class_aug(voc: Path, tmp_path: Path) -> None:
    png(voc / "VOC2012" / "SegmentationClassAug" / "s1.png", boxes(3))
    prepare_pascal(voc, None, tmp_path / "out")
    assert read_pascal(tmp_path / "out", "train").ids == ("t1", "t2", "s1")
    np.testing.assert_array_equal(read_mask(tmp_path / "out" / "masks" / "s1.png"), boxes(3))


def test_missing_parts_are_named(voc: Path, sbd: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(GfssError, match="is not a PASCAL data set: expected VOCdevkit/VOC2012/JPEGImages"):
        read_pascal(tmp_path / "empty", "val")
    with pytest.raises(GfssError, match="is not the SBD release"):
        prepare_pascal(voc, voc, tmp_path / "out")
    (tmp_path / "mine.txt").write_text("s1\n")
    with pytest.raises(GfssError, match=r"there is no mask for s1 in .*; give the SBD release with --sbd"):
        prepare_pascal(voc, None, tmp_path / "out", tmp_path / "mine.txt")
    (voc / "VOC2012" / "JPEGImages" / "s1.jpg").unlink()
    with pytest.raises(GfssError, match=r"there is no image s1\.jpg"):
        prepare_pascal(voc, sbd, tmp_path / "out", tmp_path / "mine.txt")


def test_counts_are_explained() -> None:
    assert count_remark("train", 5953) is None
    assert count_remark("val", 1449) is None
    assert "train_noval.txt" in (count_remark("train", 10582) or "")
    assert "not be comparable" in (count_remark("val", 10) or "")


def test_plain_form_takes_names_from_the_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = plain(tmp_path, {"a": boxes(1), "b": boxes(20)}, ["x"], val=["b"])
    (root / "classes.txt").unlink()
    monkeypatch.setenv("GFSS_PASCAL", str(root))
    dataset = open_dataset("pascal", split="val")
    assert (dataset.name, dataset.classes) == ("pascal val", PASCAL_CLASSES)
    assert dataset.reference_side == 500


def test_real_index_and_tasks_are_fast(pascal_root: Path) -> None:
    train, val = (read_pascal(pascal_root, split) for split in ("train", "val"))
    assert (len(train), len(val)) == (5953, 1449)
    start = time.process_time()  # of all threads; wall time depends on what else the machine does
    assert val.members.any(axis=0)[1:].all()
    assert train.members.any(axis=0)[1:].all()
    assert time.process_time() - start < 90
    fold = open_fold("pascal", 20, 0)
    start = time.process_time()
    tasks = [task(val, fold, 0, i) for i in range(1000)]
    assert time.process_time() - start < 2
    assert {t.novel for t in tasks} == {(c,) for c in fold.novel}
    assert all(not set(t.supports[0]) & set(t.queries) and len(t.queries) == 30 for t in tasks)
