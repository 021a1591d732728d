"""Whatever users give as images and masks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.data import make as files

from gfss.app.inputs import as_image, find_images, labelled_images, output_names
from gfss.common.errors import GfssError

GREY = np.arange(12, dtype=np.uint8).reshape(3, 4)
COLOUR = np.arange(36, dtype=np.uint8).reshape(3, 4, 3)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (COLOUR, COLOUR),
        (GREY, np.repeat(GREY[..., None], 3, axis=2)),
        (GREY[..., None], np.repeat(GREY[..., None], 3, axis=2)),
        (GREY.astype(np.uint16) * 257, None),
        (COLOUR / 255, COLOUR),
        (Image.fromarray(COLOUR), COLOUR),
        (Image.fromarray(COLOUR).convert("CMYK").convert("RGB"), COLOUR),
        (Image.fromarray(GREY), np.repeat(GREY[..., None], 3, axis=2)),
        (np.dstack([COLOUR, np.full((3, 4), 255, dtype=np.uint8)]), COLOUR),
        (np.dstack([COLOUR, np.zeros((3, 4), dtype=np.uint8)]), np.full_like(COLOUR, 255)),
    ],
)
def test_every_kind_of_picture_becomes_rgb_bytes(source: object, expected: np.ndarray | None) -> None:
    image = as_image(source)  # type: ignore[arg-type]
    assert image.dtype == np.uint8
    assert image.shape == (3, 4, 3)
    if expected is not None:
        assert (image == expected).all()


def test_sixteen_bit_values_are_scaled_to_bytes() -> None:
    wide = np.array([[0, 65535], [32768, 257]], dtype=np.uint16)
    assert as_image(wide)[..., 0].tolist() == [[0, 255], [128, 1]]


def test_pil_orientation_is_applied() -> None:
    picture = Image.fromarray(COLOUR)
    picture.getexif()[0x0112] = 6
    assert as_image(picture).shape == (4, 3, 3)


@pytest.mark.parametrize("bad", [np.zeros((3, 4, 2)), np.zeros(5), np.full((3, 4), np.nan), np.full((3, 4), -1.0)])
def test_arrays_that_are_no_pictures_are_refused(bad: np.ndarray) -> None:
    with pytest.raises(GfssError, match="photo 1 has"):
        as_image(bad, "photo 1")


def test_masks_of_one_value_in_all_usual_forms_agree() -> None:
    inside = np.zeros((3, 4), dtype=bool)
    inside[1:, 2:] = True
    void = np.where(inside, 7, 0).astype(np.uint8)
    void[0, 0] = 255
    for mask in (inside, inside.astype(np.uint8), inside * np.uint8(255), np.where(inside, 7, 0)):
        (one,) = labelled_images(COLOUR, mask, "box")
        assert ((one.mask == 1) == inside).all()
        assert set(np.unique(one.mask)) == {0, 1}
    (one,) = labelled_images([COLOUR], [void], "box")
    assert one.mask[0, 0] == 255
    assert ((one.mask == 1) == inside).all()


@pytest.mark.parametrize(
    ("images", "masks", "sentence"),
    [
        ([COLOUR, COLOUR], [GREY * 0], "2 image.s. and 1 mask.s. were given"),
        ([], [], "no image was given"),
        ([COLOUR], [np.zeros((9, 4), dtype=np.uint8)], "is 4 x 9 but the image is 4 x 3"),
        ([COLOUR], [GREY], "the mask of image 1 is not a mask of one class: values 1 and 2"),
        ([COLOUR], [np.zeros((3, 4, 3))], r"has shape \(3, 4, 3\) and type float64"),
        ([COLOUR], "masks", "give paths instead of arrays"),
        (["nowhere.jpg"], [GREY], "nowhere.jpg does not exist"),
    ],
)
def test_wrong_images_and_masks_get_one_sentence(images: list, masks: object, sentence: str) -> None:
    with pytest.raises(GfssError, match=sentence):
        labelled_images(images, masks, "box")  # type: ignore[arg-type]


def test_label_sources_are_read_by_class_name(tmp_path: Path) -> None:
    files.plain(tmp_path, {"a": files.boxes(1, 2), "b": files.boxes(1)}, ("dog", "box"))
    found = labelled_images(tmp_path / "images", tmp_path / "masks", "box")
    assert [one.id for one in found] == ["a.jpg"]
    assert (found[0].mask == (files.boxes(1, 2) == 2)).all()


def test_images_without_a_label_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files.plain(tmp_path, {"a": files.boxes(1), "b": files.boxes(1)}, ("box",))
    files.photo(tmp_path / "images" / "c.jpg")
    assert len(labelled_images(tmp_path / "images", tmp_path / "masks", "box")) == 2
    assert "1 image(s) have no label and teach nothing: c.jpg" in capsys.readouterr().err


def test_labelme_means_the_files_beside_the_images(tmp_path: Path) -> None:
    files.photo(tmp_path / "a.jpg")
    files.labelme(tmp_path / "a.json", [("box", "rectangle", [[2, 2], [10, 12]])])
    (one,) = labelled_images(tmp_path, "labelme", "box")
    assert one.id == "a.jpg"
    assert (one.mask == 1).any()
    (single,) = labelled_images(tmp_path / "a.jpg", "labelme", "box")
    assert (single.mask == one.mask).all()
    with pytest.raises(GfssError, match=r"b\.jpg has no labelme file"):
        labelled_images([tmp_path / "a.jpg", files.photo(tmp_path / "b.jpg")], "labelme", "box")


def test_images_are_found_in_folders_and_by_pattern(tmp_path: Path) -> None:
    for name in ("b.jpg", "a.png", ".hidden.png", "sub/c.jpg"):
        files.photo(tmp_path / name)
    (tmp_path / "notes.txt").write_text("x")
    assert [p.name for p in find_images([tmp_path])] == ["a.png", "b.jpg"]
    assert [p.name for p in find_images([tmp_path / "*" / "*.jpg", tmp_path / "b.jpg"])] == ["c.jpg", "b.jpg"]
    assert find_images([tmp_path, tmp_path / "b.jpg"]) == find_images([tmp_path])
    with pytest.raises(GfssError, match="no images found in"):
        find_images([tmp_path / "none*.jpg"])


def test_masks_never_overwrite_each_other() -> None:
    assert output_names([Path("x/a.jpg"), Path("x/b.jpg")]) == ["a", "b"]
    assert output_names([Path("x/a.jpg"), Path("x/a.png")]) == ["a_jpg", "a_png"]
    with pytest.raises(GfssError, match="2 images are called 'a_jpg'"):
        output_names([Path("x/a.jpg"), Path("y/a.jpg")])


def test_images_without_the_class_come_along_when_they_are_wanted(tmp_path: Path) -> None:
    masks = {"a": files.boxes(1, 2), "b": files.boxes(1), "c": files.boxes(2), "d": files.boxes()}
    files.plain(tmp_path, masks, ("dog", "box"))
    folder = (tmp_path / "images", tmp_path / "masks", "box")
    assert [one.id for one in labelled_images(*folder)] == ["a.jpg", "c.jpg"]
    found = labelled_images(*folder, negatives=9)
    assert [(one.id, one.shows) for one in found] == [
        ("a.jpg", True),
        ("b.jpg", False),
        ("c.jpg", True),
        ("d.jpg", False),
    ]
    assert [one.id for one in labelled_images(*folder, negatives=1)] == ["a.jpg", "b.jpg", "c.jpg"]
    for one, mask in zip(found, masks.values(), strict=True):
        assert one.names == ("dog", "box")
        assert one.others is not None
        assert ((one.others == 1) == (mask == 1)).all()
        assert set(np.unique(one.others)) <= {0, 1}  # the class itself is in the mask alone


def test_empty_binary_masks_are_images_without_the_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, mask in {"a": files.boxes(255), "b": files.boxes()}.items():
        files.photo(tmp_path / "images" / f"{name}.jpg")
        files.png(tmp_path / "masks" / f"{name}.png", mask)
    with_empty = labelled_images(tmp_path / "images", tmp_path / "masks", "box", negatives=5)
    assert [(one.id, one.shows, one.others) for one in with_empty] == [("a.jpg", True, None), ("b.jpg", False, None)]
    note = "note: 1 of 2 masks are empty, 1 of them taken as images without the class: b.jpg"
    assert note in capsys.readouterr().err
    pair = labelled_images([COLOUR, COLOUR], [GREY > 5, GREY > 50], "box")
    assert [one.shows for one in pair] == [True, False]


def test_a_labelme_file_without_shapes_says_that_nothing_is_there(tmp_path: Path) -> None:
    for name, shapes in {"a": [("box", "rectangle", [[2, 2], [10, 12]])], "b": []}.items():
        files.photo(tmp_path / f"{name}.jpg")
        files.labelme(tmp_path / f"{name}.json", shapes)
    assert [(one.id, one.shows) for one in labelled_images(tmp_path, "labelme", "box", negatives=3)] == [
        ("a.jpg", True),
        ("b.jpg", False),
    ]
