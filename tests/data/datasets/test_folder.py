"""The plain form: lists, names, what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.data.make import boxes, photo, plain, write

from gfss.common.errors import GfssError
from gfss.common.files import files_by_name
from gfss.data.datasets.base import read_class_names
from gfss.data.datasets.folder import data_root, read_folder, read_list
from gfss.data.images import IMAGE_SUFFIXES


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return plain(tmp_path / "mine", {"a": boxes(1), "b": boxes(2), "c": boxes(1)}, ["cat", "dog"], val=["b"])


def test_splits_names_and_files(root: Path) -> None:
    train, val = read_folder(root, "train"), read_folder(root, "val")
    assert (train.name, train.ids, val.ids) == ("mine train", ("a", "c"), ("b",))
    assert train.classes == ("cat", "dog")
    assert val.images == (root / "images" / "b.jpg",)
    assert val.masks == (root / "masks" / "b.png",)
    assert val.reference_side == 500


def test_names_and_classes_can_come_from_outside(root: Path) -> None:
    (root / "classes.txt").unlink()
    assert read_folder(root, "val", "pascal", ["x", "y"]).classes == ("x", "y")
    assert read_folder(root, "val", "pascal", ["x", "y"]).name == "pascal val"


def test_about_says_that_images_have_their_original_size(root: Path) -> None:
    write(root / "about.json", {"original_size": True})
    assert read_folder(root, "val").reference_side is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("2007_000032", "2007_000032"),
        ("JPEGImages/2007_000032.jpg SegmentationClassAug/2007_000032.png", "2007_000032"),
        ("my photo 1", "my photo 1"),
        ("my photo 1.jpg", "my photo 1"),
        ("v1.2", "v1.2"),
    ],
)
def test_lists_name_ids_or_paths(tmp_path: Path, line: str, expected: str) -> None:
    (tmp_path / "list.txt").write_text(f"\n{line}\n\n")
    assert read_list(tmp_path / "list.txt", {"2007_000032", "my photo 1", "v1.2"}) == [expected]


def test_missing_folder_list_and_images(root: Path, tmp_path: Path) -> None:
    with pytest.raises(GfssError, match="nowhere does not exist"):
        read_folder(tmp_path / "nowhere", "val")
    (root / "images" / "b.jpg").unlink()
    with pytest.raises(GfssError, match=r"has no image for 1 of 1 ids in val\.txt, first 'b'"):
        read_folder(root, "val")
    (root / "val.txt").unlink()
    with pytest.raises(GfssError, match=r"has no val\.txt; a data folder holds"):
        read_folder(root, "val")


def test_bad_lists(root: Path) -> None:
    (root / "val.txt").write_text("\n")
    with pytest.raises(GfssError, match=r"val\.txt is empty"):
        read_folder(root, "val")
    (root / "val.txt").write_text("b\na\nb\n")
    with pytest.raises(GfssError, match="lists 'b' twice"):
        read_folder(root, "val")
    (root / "val.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(GfssError, match="not UTF-8 text"):
        read_folder(root, "val")


def test_class_names(root: Path) -> None:
    (root / "classes.txt").write_text("cat\n\ndog\ncat\n")
    with pytest.raises(GfssError, match="names a class twice"):
        read_class_names(root)
    (root / "classes.txt").write_text("")
    with pytest.raises(GfssError, match="names no class"):
        read_class_names(root)
    (root / "classes.txt").write_text("\n".join(f"c{i}" for i in range(255)))
    with pytest.raises(GfssError, match="an 8-bit mask holds at most 254"):
        read_class_names(root)
    (root / "classes.txt").unlink()
    with pytest.raises(GfssError, match=r"has no classes\.txt; write one class name per line"):
        read_class_names(root)


def test_pictures_of_one_name_are_refused(tmp_path: Path) -> None:
    photo(tmp_path / "a.jpg")
    photo(tmp_path / "a.png")
    with pytest.raises(GfssError, match=r"holds a\.jpg and a\.png"):
        files_by_name(tmp_path, IMAGE_SUFFIXES)


def test_root_from_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GFSS_COCO", raising=False)
    with pytest.raises(GfssError, match="set GFSS_COCO=DIR, or in a recipe root: DIR"):
        data_root("coco", None)
    monkeypatch.setenv("GFSS_COCO", str(tmp_path))
    assert data_root("coco", None) == tmp_path
    assert data_root("coco", tmp_path.parent) == tmp_path.parent
    with pytest.raises(GfssError, match=r"the folder .*x for 'coco' does not exist"):
        data_root("coco", tmp_path / "x")
