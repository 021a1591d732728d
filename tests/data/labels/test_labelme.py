"""labelme files."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.data.make import labelme, photo, write

from gfss.common.errors import GfssError
from gfss.data.labels import read_labels

BOX = [[8, 8], [15, 8], [15, 15], [8, 15]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    photo(tmp_path / "a.jpg")
    return tmp_path


def test_polygons_with_small_ones_on_top(folder: Path) -> None:
    everything = [[0, 0], [31, 0], [31, 23], [0, 23]]
    labelme(folder / "a.json", [("dog", "polygon", BOX), ("sofa", "polygon", everything)])
    labels = read_labels(folder)
    assert (labels.format, labels.classes) == ("labelme JSON", ("dog", "sofa"))
    expected = np.full((24, 32), 2, np.uint8)
    expected[8:16, 8:16] = 1
    np.testing.assert_array_equal(labels.mask(0), expected)


def test_other_shapes(folder: Path) -> None:
    shapes = [
        ("rect", "rectangle", [[15, 15], [8, 8]]),
        ("disc", "circle", [[24, 12], [24, 16]]),
        ("dot", "point", [[1, 1]]),
        ("way", "linestrip", [[1, 1], [5, 5]]),
    ]
    labelme(folder / "a.json", shapes)
    labels = read_labels(folder)
    assert labels.classes == ("disc", "rect")  # points and lines have no area
    mask = labels.mask(0)
    assert (mask[8:16, 8:16] == 2).all()
    assert abs((mask == 1).sum() - np.pi * 16) < 16
    assert mask[12, 24] == 1


def test_painted_mask(folder: Path) -> None:
    stamp = np.zeros((4, 6), np.uint8)
    stamp[1:3, 1:5] = 255
    buffer = io.BytesIO()
    Image.fromarray(stamp).save(buffer, format="PNG")
    shape = {
        "label": "dog",
        "shape_type": "mask",
        "points": [[10, 5], [15, 8]],
        "mask": base64.b64encode(buffer.getvalue()).decode(),
    }
    write(folder / "a.json", {"shapes": [shape], "imagePath": "a.jpg"})
    expected = np.zeros((24, 32), np.uint8)
    expected[6:8, 11:15] = 1
    np.testing.assert_array_equal(read_labels(folder).mask(0), expected)
    shape["mask"] = "no png"
    write(folder / "a.json", {"shapes": [shape], "imagePath": "a.jpg"})
    with pytest.raises(GfssError, match="has a 'dog' mask that cannot be read"):
        read_labels(folder).mask(0)


def test_void_and_background_labels(folder: Path) -> None:
    labelme(folder / "a.json", [("cat", "polygon", BOX), ("__ignore__", "rectangle", [[20, 0], [23, 3]])])
    labels = read_labels(folder)
    assert labels.classes == ("cat",)
    assert (labels.mask(0) == 255).sum() == 16


def test_pictures_by_image_path_as_windows_writes_it(tmp_path: Path) -> None:
    photo(tmp_path / "imgs" / "IMG_7.jpg")
    photo(tmp_path / "imgs" / "IMG_8.jpg")
    for number in (7, 8):
        labelme(
            tmp_path / "ann" / f"label{number}.json", [("cat", "polygon", BOX)], imagePath=f"..\\imgs\\IMG_{number}.jpg"
        )
    labels = read_labels(tmp_path / "ann")
    assert [path.name for path in labels.images] == ["IMG_7.jpg", "IMG_8.jpg"]


def test_one_file_for_a_support_set(folder: Path) -> None:
    path = labelme(folder / "a.json", [("cat", "polygon", BOX), ("dog", "rectangle", [[20, 2], [22, 4]])])
    ((image, mask),) = read_labels(path).supports("dog")
    assert image == folder / "a.jpg"
    assert (mask == 1).sum() == 9


def test_class_order_of_classes_txt(folder: Path) -> None:
    labelme(folder / "a.json", [("cat", "polygon", BOX)])
    (folder / "classes.txt").write_text("zebra\ncat")
    assert read_labels(folder).mask(0).max() == 2
    (folder / "classes.txt").write_text("zebra")
    with pytest.raises(GfssError, match=r"has the label 'cat' that classes\.txt does not name"):
        read_labels(folder).mask(0)


@pytest.mark.parametrize("point", [[40, 8], [8, 30], [-5, 8], [8, -5]])
def test_point_outside_the_image(folder: Path, point: list[float]) -> None:
    labelme(folder / "a.json", [("cat", "polygon", [*BOX, point])])
    with pytest.raises(GfssError, match=r"a\.json has a 'cat' polygon with the point .* outside the image of 32 x 24"):
        read_labels(folder).mask(0)


def test_a_hand_over_the_edge_is_no_error(folder: Path) -> None:
    labelme(folder / "a.json", [("cat", "rectangle", [[-1.5, -1], [33, 25]])])
    assert (read_labels(folder).mask(0) == 1).all()


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([("cat", "polygon", [[1, 1], [2, 2]])], "polygon with 2 point"),
        ([("cat", "polygon", ["ab", "cd", "ef"])], "points that are not numbers"),
        ([("cat", "circle", [[1, 1]])], "circle with 1 point"),
    ],
)
def test_malformed_shapes(folder: Path, shapes: list, message: str) -> None:
    labelme(folder / "a.json", shapes)
    with pytest.raises(GfssError, match=message):
        read_labels(folder).mask(0)


def test_drawn_on_a_picture_of_another_size(folder: Path) -> None:
    labelme(folder / "a.json", [("cat", "polygon", BOX)], imageHeight=48, imageWidth=64)
    with pytest.raises(GfssError, match=r"was drawn on an image of 64 x 48 but a\.jpg is 32 x 24"):
        read_labels(folder).mask(0)


def test_no_labelme_file(folder: Path) -> None:
    write(folder / "a.json", {"shapes": [{"name": 1}]})
    with pytest.raises(GfssError, match="is not a labelme file"):
        read_labels(folder)
    (folder / "a.json").write_text("{")
    with pytest.raises(GfssError, match="is not valid JSON"):
        read_labels(folder)


def test_rectangles_of_four_points_and_turned_ones(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shapes = [
        ("rect", "rectangle", BOX),
        ("turned", "rotation", [[20, 4], [24, 8], [20, 12], [16, 8]]),
        ("line", "linestrip", [[0, 0], [4, 4]]),
    ]
    labelme(folder / "a.json", shapes)
    labels = read_labels(folder)
    assert labels.classes == ("rect", "turned")
    assert (labels.mask(0)[8:16, 8:16] == 1).all()
    assert labels.mask(0)[8, 20] == 2
    assert "1 shape(s) of kind 'linestrip'" in " ".join(capsys.readouterr().err.split())


def test_background_in_classes_txt_is_no_class(folder: Path) -> None:
    labelme(folder / "a.json", [("dog", "polygon", BOX)])
    (folder / "classes.txt").write_text("__ignore__\n_background_\ncat\ndog\n")
    labels = read_labels(folder)
    assert labels.classes == ("cat", "dog")
    assert labels.mask(0)[10, 10] == 2


def test_a_painted_mask_larger_than_the_picture_is_refused(folder: Path) -> None:
    buffer = io.BytesIO()
    Image.new("1", (400, 400), 1).save(buffer, format="PNG")
    shape = {"label": "dog", "shape_type": "mask", "points": [[0, 0], [9, 9]]}
    shape["mask"] = base64.b64encode(buffer.getvalue()).decode()
    write(folder / "a.json", {"imagePath": "a.jpg", "shapes": [shape]})
    with pytest.raises(GfssError, match="larger than the image"):
        read_labels(folder).mask(0)
