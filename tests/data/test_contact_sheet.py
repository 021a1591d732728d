"""Contact sheets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.data.make import boxes, plain

from gfss.common.errors import GfssError
from gfss.data.contact_sheet import choose, contact_sheet
from gfss.data.datasets.folder import read_folder
from gfss.data.images import class_colours, overlay


def test_colours_are_distinct() -> None:
    table = class_colours(80)
    assert len({tuple(row) for row in table[:81].tolist()}) == 81
    assert table[0].tolist() == [0, 0, 0]
    assert table[255].tolist() == [255, 255, 255]


def test_overlay_leaves_the_background_alone() -> None:
    image = np.full((24, 32, 3), 100, np.uint8)
    out = overlay(image, boxes(1), class_colours(1))
    changed = (out != image).any(axis=2)
    np.testing.assert_array_equal(changed, boxes(1) == 1)


def test_classes_take_turns(tmp_path: Path) -> None:
    masks = {f"cat{i}": boxes(1) for i in range(9)} | {"dog": boxes(2)}
    dataset = read_folder(plain(tmp_path, masks, ["cat", "dog", "cow"]), "train")
    chosen = choose(dataset, 4)
    assert dataset.ids.index("dog") in chosen[:2]
    assert len(set(chosen)) == 4
    assert choose(dataset, 4) == chosen
    assert len(choose(dataset, 100)) == 10


def test_nothing_to_show_is_said(tmp_path: Path) -> None:
    dataset = read_folder(plain(tmp_path / "d", {"a": boxes(255)}, ["cat"]), "train")
    with pytest.raises(GfssError, match="no image of d train shows a class"):
        contact_sheet(dataset, tmp_path / "sheet.png")


def test_sheet_is_a_picture_with_all_tiles(tmp_path: Path) -> None:
    dataset = read_folder(plain(tmp_path / "d", {f"c{i}": boxes(1) for i in range(5)}, ["cat"]), "train")
    contact_sheet(dataset, tmp_path / "sheet.png", count=5, columns=2)
    with Image.open(tmp_path / "sheet.png") as picture:
        assert picture.size == (2 * (2 * 192 + 6), 3 * (192 + 28 + 6))
        assert len(picture.getcolors(1 << 20) or []) > 100
