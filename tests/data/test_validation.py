"""What ``check`` finds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.data.make import boxes, labelme, photo, plain, png

from gfss.common.errors import GfssError
from gfss.data.inspection import OTHER_SIZE, UNKNOWN_VALUE, UNREADABLE_IMAGE, UNREADABLE_LABEL
from gfss.data.validation import NOTHING_SHOWN, check


def test_figures_of_good_data(tmp_path: Path) -> None:
    masks = {f"i{i}": boxes(1, 255) for i in range(7)} | {"v": boxes(2)}
    train, val = check(str(plain(tmp_path / "mine", masks, ["cat", "dog"], val=["v"])))
    assert (train.title, train.images, train.problems) == ("mine train", 7, {})
    assert [(row.name, row.images, row.usable) for row in train.rows] == [("cat", 7, 7), ("dog", 0, 0)]
    assert train.rows[0].share == pytest.approx(64 / 768)
    assert train.void == pytest.approx(64 / 768)
    assert train.background == pytest.approx(640 / 768)
    assert train.remarks == ["no image shows dog"]
    assert val.rows[1].images == 1
    assert any("fewer than 6 images show dog large enough" in remark for remark in val.remarks)


def test_every_problem_is_collected(tmp_path: Path) -> None:
    names = ["good", "truncated", "size", "value", "colour", "missing"]
    root = plain(tmp_path / "mine", {name: boxes(1) for name in names} | {"v": boxes(1)}, ["cat"], val=["v"])
    photo(root / "images" / "truncated.jpg", (200, 200))
    jpeg = (root / "images" / "truncated.jpg").read_bytes()
    (root / "images" / "truncated.jpg").write_bytes(jpeg[: len(jpeg) // 2])
    png(root / "masks" / "size.png", boxes(1, size=(40, 40)))
    png(root / "masks" / "value.png", boxes(1, 9))
    photo(root / "masks" / "colour.png")
    (root / "masks" / "missing.png").unlink()
    train, val = check(str(root))
    assert {kind: len(texts) for kind, texts in train.problems.items()} == {
        UNREADABLE_IMAGE: 1,
        OTHER_SIZE: 1,
        UNKNOWN_VALUE: 1,
        UNREADABLE_LABEL: 2,
    }
    assert "size.png is 40 x 40 but its image size.jpg is 32 x 24" in train.problems[OTHER_SIZE][0]
    assert "value.png has the value 9" in train.problems[UNKNOWN_VALUE][0]
    assert not val.problems


def test_data_that_cannot_be_opened_is_a_problem(tmp_path: Path) -> None:
    root = plain(tmp_path / "mine", {"a": boxes(1), "v": boxes(1)}, ["cat"], val=["v"])
    (root / "train.txt").write_text("a\nb\n")
    train, val = check(str(root))
    assert "has no image for 1 of 2 ids" in next(iter(train.problems.values()))[0]
    assert not val.problems


def test_every_label_file_is_looked_at(tmp_path: Path) -> None:
    for i in range(3):
        photo(tmp_path / f"p{i}.jpg")
        labelme(tmp_path / f"p{i}.json", [("cow", "rectangle", [[2, 2], [9, 9 + 30 * i]])])
    (found,) = check(str(tmp_path))
    assert found.format == "labelme JSON"
    assert len(found.problems[UNREADABLE_LABEL]) == 2
    assert found.rows[0].images == 1


def test_binary_masks_taken_for_void_are_pointed_out(tmp_path: Path) -> None:
    root = plain(tmp_path / "mine", {"a": boxes(255), "v": boxes(1)}, ["cat"], val=["v"])
    train, _ = check(str(root))
    assert "masks/NAME/ID.png" in train.problems[NOTHING_SHOWN][0]


def test_empty_masks_must_be_fixed(tmp_path: Path) -> None:
    for name in "ab":
        photo(tmp_path / "images" / f"{name}.jpg")
        png(tmp_path / "masks" / f"{name}.png", boxes(0))
    (found,) = check(str(tmp_path))
    assert "all masks are empty" in found.problems[NOTHING_SHOWN][0]
    png(tmp_path / "masks" / "b.png", boxes(255))
    (found,) = check(str(tmp_path))
    assert not found.problems
    assert "1 image(s) show no class at all" in found.remarks


def test_images_without_a_label_are_named(tmp_path: Path) -> None:
    for name in "abc":
        photo(tmp_path / "photos" / f"{name}.jpg")
    png(tmp_path / "masks" / "a.png", boxes(255))
    (found,) = check(str(tmp_path))
    assert found.images == 1
    assert "2 image(s) have no label and are ignored: b.jpg, c.jpg" in found.remarks


def test_binary_masks_need_no_name_to_be_looked_at(tmp_path: Path) -> None:
    for name in "ab":
        photo(tmp_path / "images" / f"{name}.jpg")
        png(tmp_path / "masks" / f"{name}.png", boxes(255))
    (found,) = check(str(tmp_path))
    assert (found.format, found.images, found.problems) == ("binary masks", 2, {})
    assert found.rows[0].images == 2
    assert "gfss teach gives it a name" in found.remarks[0]


def test_scenes_are_good(scenes_root: Path) -> None:
    findings = check(str(scenes_root))
    assert [finding.problems for finding in findings] == [{}, {}]
    assert all(row.usable > 5 for finding in findings for row in finding.rows)
    assert np.isclose(findings[0].background, 0.5, atol=0.45)


def test_unknown_path_is_the_callers_mistake() -> None:
    with pytest.raises(GfssError, match="unknown data set 'nothing-here'"):
        check("nothing-here")
