"""Colour masks with labelmap.txt, as folder and as CVAT zip."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.data.make import boxes, photo, png

from gfss.common.errors import GfssError
from gfss.data.labels import read_labels
from gfss.data.labels.colours import read_labelmap

LABELMAP = "# label:color_rgb:parts:actions\nbackground:0,0,0::\ncat:250,50,83::\ndog:36,179,83::\nignored:9,9,9::\n"
COLOURS = np.zeros((256, 3), np.uint8)
COLOURS[[1, 2, 255]] = [(250, 50, 83), (36, 179, 83), (9, 9, 9)]


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """An unpacked CVAT export without images."""
    root = tmp_path / "export"
    png(root / "SegmentationClass" / "a.png", COLOURS[boxes(1, 2, 255)])
    png(root / "SegmentationClass" / "b.png", COLOURS[boxes(2)])
    png(root / "SegmentationObject" / "a.png", COLOURS[boxes(2)])
    (root / "ImageSets" / "Segmentation").mkdir(parents=True)
    (root / "ImageSets" / "Segmentation" / "default.txt").write_text("a\nb\n")
    (root / "labelmap.txt").write_text(LABELMAP)
    return root


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for name in "abc":
        photo(tmp_path / "photos" / f"{name}.jpg")
    return tmp_path / "photos"


def pack(root: Path, target: Path, inside: str = "") -> Path:
    with zipfile.ZipFile(target, "w") as archive:
        for path in sorted(root.rglob("*")):
            archive.write(path, f"{inside}{path.relative_to(root)}")
    return target


def test_colours_become_class_ids(export: Path, photos: Path) -> None:
    labels = read_labels(export, [photos])
    assert labels.classes == ("cat", "dog")
    np.testing.assert_array_equal(labels.mask(0), boxes(1, 2, 255))
    assert [path.stem for path, _ in labels.supports("dog")] == ["a", "b"]


@pytest.mark.parametrize("inside", ["", "my task/"])
def test_zip_with_images_elsewhere(export: Path, photos: Path, tmp_path: Path, inside: str) -> None:
    labels = read_labels(pack(export, tmp_path / "cats.zip", inside), [photos])
    np.testing.assert_array_equal(labels.mask(0), boxes(1, 2, 255))


def test_zip_with_its_own_images(export: Path, tmp_path: Path) -> None:
    for name in "ab":
        photo(export / "JPEGImages" / f"{name}.jpg")
    labels = read_labels(pack(export, tmp_path / "cats.zip"))
    np.testing.assert_array_equal(labels.mask(1), boxes(2))


def test_changed_zip_is_unpacked_again(export: Path, photos: Path, tmp_path: Path) -> None:
    path = pack(export, tmp_path / "cats.zip")
    assert read_labels(path, [photos]).classes == ("cat", "dog")
    (export / "labelmap.txt").write_text(LABELMAP.replace("cat", "cheetah"))
    assert read_labels(pack(export, path), [photos]).classes == ("cheetah", "dog")


def test_palette_and_one_channel_masks(export: Path, photos: Path) -> None:
    palette = Image.fromarray(boxes(5, 6)).convert("P")
    palette.putpalette([0] * 15 + [250, 50, 83, 36, 179, 83])
    palette.save(export / "SegmentationClass" / "a.png")
    png(export / "SegmentationClass" / "b.png", boxes(1, 2, 3))  # numbers of the lines: cat, dog, ignored
    labels = read_labels(export, [photos])
    np.testing.assert_array_equal(labels.mask(0), boxes(1, 2))
    np.testing.assert_array_equal(labels.mask(1), boxes(1, 2, 255))


def test_colour_that_is_not_named(export: Path, photos: Path) -> None:
    mask = COLOURS[boxes(1)]
    mask[0, 0] = (1, 2, 3)
    png(export / "SegmentationClass" / "a.png", mask)
    with pytest.raises(GfssError, match=r"a\.png has the colour 1,2,3 that labelmap\.txt does not name"):
        read_labels(export, [photos]).mask(0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cat=1,2,3", "has the line 'cat=1,2,3'; expected 'name:r,g,b::'"),
        ("cat:1,2:", "expected 'name:r,g,b::'"),
        ("cat:1,2,300::", "each part is 0 to 255"),
        ("cat:1,2,3::\ndog:1,2,3::", "gives 'dog' a colour that another line has"),
        ("cat:1,2,3::\ncat:1,2,4::", "names a class twice"),
        ("background:0,0,0::", "names no class"),
    ],
)
def test_bad_labelmap(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "labelmap.txt").write_text(text)
    with pytest.raises(GfssError, match=message):
        read_labelmap(tmp_path / "labelmap.txt")


def test_damaged_zip(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(b"PK\x03\x04 not a zip")
    with pytest.raises(GfssError, match=r"x\.zip is not a whole zip file"):
        read_labels(tmp_path / "x.zip")
