"""Index, palette and binary masks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.data.make import SIZE, boxes, photo, plain, png

from gfss.common.errors import GfssError
from gfss.data.images import ORIENTATION, read_mask
from gfss.data.labels import read_labels
from gfss.data.labels.png import UNNAMED, read_grey


def test_index_masks_with_names(tmp_path: Path) -> None:
    for name, mask in {"a": boxes(1, 2), "b": boxes(2, 255)}.items():
        photo(tmp_path / "images" / f"{name}.jpg")
        png(tmp_path / "masks" / f"{name}.png", mask)
    photo(tmp_path / "images" / "unlabelled.jpg")
    (tmp_path / "classes.txt").write_text("cat\ndog")
    labels = read_labels(tmp_path)
    assert (labels.format, labels.classes, len(labels)) == ("index masks", ("cat", "dog"), 2)
    assert [path.name for path in labels.unlabelled] == ["unlabelled.jpg"]
    np.testing.assert_array_equal(labels.mask(1), boxes(2, 255))


def test_support_set_of_one_class(tmp_path: Path) -> None:
    for name, mask in {"a": boxes(1, 2), "b": boxes(2, 255), "c": boxes(1)}.items():
        photo(tmp_path / "images" / f"{name}.jpg")
        png(tmp_path / "masks" / f"{name}.png", mask)
    (tmp_path / "classes.txt").write_text("cat\ndog")
    supports = read_labels(tmp_path).supports("dog")
    assert [path.stem for path, _ in supports] == ["a", "b"]
    np.testing.assert_array_equal(supports[0][1], boxes(0, 1))
    np.testing.assert_array_equal(supports[1][1], boxes(1, 255))
    with pytest.raises(GfssError, match="unknown class 'dug'; did you mean 'dog'"):
        read_labels(tmp_path).supports("dug")


def test_class_without_pixels_has_no_supports(tmp_path: Path) -> None:
    photo(tmp_path / "images" / "a.jpg")
    png(tmp_path / "masks" / "a.png", boxes(1))
    (tmp_path / "classes.txt").write_text("cat\ndog")
    with pytest.raises(GfssError, match="none of the 1 labelled images shows a 'dog'"):
        read_labels(tmp_path).supports("dog")


@pytest.mark.parametrize("value", [1, 128, 255])
def test_binary_masks_of_a_named_class(tmp_path: Path, value: int) -> None:
    images = [photo(tmp_path / "photos" / f"{name}.jpg") for name in "ab"]
    for name in "ab":
        png(tmp_path / "drawn" / f"{name}.png", boxes(value))
    labels = read_labels(tmp_path / "drawn", images, "cat")
    assert labels.classes == ("cat",)
    np.testing.assert_array_equal(labels.mask(0), boxes(1))


def test_255_is_void_beside_another_value_in_any_mask_of_the_set(tmp_path: Path) -> None:
    photo(tmp_path / "images" / "a.jpg")
    photo(tmp_path / "images" / "b.jpg")
    png(tmp_path / "masks" / "a.png", boxes(1, 255))
    png(tmp_path / "masks" / "b.png", boxes(255))
    labels = read_labels(tmp_path, class_name="cat")
    np.testing.assert_array_equal(labels.mask(0), boxes(1, 255))
    np.testing.assert_array_equal(labels.mask(1), boxes(255))


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA"])
def test_black_and_white_in_any_mode(tmp_path: Path, mode: str) -> None:
    image = photo(tmp_path / "photo.jpg")
    picture = Image.fromarray(boxes(255)).convert(mode)
    if mode == "P":  # some programs put white first
        picture = Image.fromarray(np.where(boxes(1), 0, 1).astype(np.uint8)).convert("P")
        picture.putpalette([255, 255, 255, 0, 0, 0])
    picture.save(tmp_path / "m.png")
    np.testing.assert_array_equal(read_labels(tmp_path / "m.png", [image], "cat").mask(0), boxes(1))


def test_coloured_palette_counts_by_index(tmp_path: Path) -> None:
    image = photo(tmp_path / "photo.jpg")
    picture = Image.fromarray(boxes(1)).convert("P")
    picture.putpalette([0, 0, 0, 128, 0, 0])
    picture.save(tmp_path / "m.png")
    np.testing.assert_array_equal(read_labels(tmp_path / "m.png", [image], "cat").mask(0), boxes(1))


def test_one_mask_and_one_image_of_different_names(tmp_path: Path) -> None:
    image = photo(tmp_path / "IMG_1.jpg")
    mask = png(tmp_path / "outline.png", boxes(255))
    ((path, found),) = read_labels(mask, [image], "cat").supports("cat")
    assert path == image
    np.testing.assert_array_equal(found, boxes(1))


def test_a_folder_of_binary_masks_per_class_small_on_top(tmp_path: Path) -> None:
    large, small = np.full(SIZE, 255, np.uint8), boxes(255)
    photo(tmp_path / "images" / "a.jpg")
    photo(tmp_path / "images" / "b.jpg")
    png(tmp_path / "masks" / "dog" / "a.png", small)
    png(tmp_path / "masks" / "sofa" / "a.png", large)
    png(tmp_path / "masks" / "sofa" / "b.png", small)
    labels = read_labels(tmp_path)
    assert labels.classes == ("dog", "sofa")
    np.testing.assert_array_equal(labels.mask(0), np.where(small, 1, 2))
    np.testing.assert_array_equal(labels.mask(1), boxes(2))


def test_class_folders_with_masks_of_two_sizes(tmp_path: Path) -> None:
    photo(tmp_path / "images" / "a.jpg")
    png(tmp_path / "masks" / "dog" / "a.png", boxes(255))
    png(tmp_path / "masks" / "sofa" / "a.png", boxes(255, size=(30, 30)))
    with pytest.raises(GfssError, match=r"the masks called a\.png under .* differ in size"):
        read_labels(tmp_path).mask(0)


def test_smoothed_edges_are_no_binary_mask(tmp_path: Path) -> None:
    image = photo(tmp_path / "photo.jpg")
    mask = png(tmp_path / "m.png", boxes(255, 130, 77))
    with pytest.raises(GfssError, match=r"m\.png is not a mask of one class: values 77 and 130 occur beside 0"):
        read_labels(mask, [image], "cat")


def test_few_greys_may_be_smoothed_edges(tmp_path: Path) -> None:
    image, advice = photo(tmp_path / "photo.jpg"), "greys of smoothed edges, --label 255 takes the white alone"
    smoothed = png(tmp_path / "m.png", boxes(64, 255, 191))
    (remark,) = read_labels(smoothed, [image], UNNAMED).remarks
    assert advice in remark
    np.testing.assert_array_equal(read_labels(smoothed, [image], "255").mask(0), boxes(0, 1))
    (remark,) = read_labels(png(tmp_path / "m.png", boxes(1, 255, 3)), [image], UNNAMED).remarks
    assert advice not in remark


def test_masks_with_two_values_for_the_class(tmp_path: Path) -> None:
    for name, value in (("a", 1), ("b", 255)):
        photo(tmp_path / "images" / f"{name}.jpg")
        png(tmp_path / "masks" / f"{name}.png", boxes(value))
    with pytest.raises(GfssError, match=r"a\.png has the values 0 and 1 but .*b\.png has 0 and 255"):
        read_labels(tmp_path, class_name="cat")
    png(tmp_path / "masks" / "a.png", boxes(1, 255))  # void beside the class: b is void
    assert len(read_labels(tmp_path, class_name="cat").supports("cat")) == 1


def test_a_trimap_shows_the_object_as_255_and_void_as_128(tmp_path: Path) -> None:
    image, rim = photo(tmp_path / "photo.jpg"), boxes(255)
    rows, columns = np.nonzero(rim)
    rim[rows.min(), columns] = 128
    labels = read_labels(png(tmp_path / "m.png", rim), [image], "cat")
    assert labels.format == "trimaps"
    assert ((labels.mask(0) == 1) == (rim == 255)).all()
    assert ((labels.mask(0) == 255) == (rim == 128)).all()
    other = read_labels(tmp_path / "m.png", [image], "cat", void=255)
    assert ((other.mask(0) == 1) == (rim == 128)).all()
    rim[rim == 128] = 200  # neither a usual trimap nor a usual void
    with pytest.raises(GfssError, match="say which is the class with --label 200 or --label 255"):
        read_labels(png(tmp_path / "m.png", rim), [image], "cat")


@pytest.mark.parametrize(("dtype", "mode"), [(np.uint16, "png"), (np.int32, "tif"), (np.float32, "tif")])
def test_wide_masks_are_read_exactly_or_not_at_all(tmp_path: Path, dtype: type, mode: str) -> None:
    photo(tmp_path / "images" / "a.jpg")
    wide = boxes(1, 2, 3).astype(dtype)
    table = np.array([0, 1000, 2000, 65535], dtype=dtype)
    file = tmp_path / "masks" / f"a.{mode}"
    png(file, table[boxes(1, 2, 3)])
    with pytest.raises(GfssError, match="values 1000 and 2000 occur beside 0; --label VALUE"):
        read_labels(tmp_path, class_name="cat")
    labels = read_labels(tmp_path, class_name="1000", void=65535)
    assert (labels.mask(0) == np.array([0, 1, 0, 255])[boxes(1, 2, 3)]).all()
    (tmp_path / "classes.txt").write_text("cat\ndog\nhen\n")
    with pytest.raises(GfssError, match="values from 0 to 65535"):
        read_labels(tmp_path).mask(0)
    png(file, wide)
    assert (read_labels(tmp_path).mask(0) == boxes(1, 2, 3)).all()
    (tmp_path / "classes.txt").unlink()
    png(file, boxes(1).astype(dtype) * dtype(65535))
    assert (read_labels(tmp_path, class_name="cat").mask(0) == boxes(1)).all()


def test_a_value_of_an_index_mask_is_a_class_zero_too(tmp_path: Path) -> None:
    photo(tmp_path / "images" / "a.jpg")
    mask = png(tmp_path / "masks" / "a.png", boxes(1, 11, 5))
    assert ((read_labels(tmp_path, class_name="0", void=11).mask(0) == 1) == (boxes(1, 11, 5) == 0)).all()
    assert ((read_labels(tmp_path, class_name="0", void=11).mask(0) == 255) == (boxes(1, 11, 5) == 11)).all()
    assert ((read_labels(mask, [tmp_path / "images" / "a.jpg"], "5").mask(0) == 1) == (boxes(1, 11, 5) == 5)).all()


def test_pictures_of_one_name_in_two_folders(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("cam1", "cam2")]
    for folder in folders:
        photo(folder / "0001.jpg")
        png(folder / "masks" / "0001.png", boxes(255))
    with pytest.raises(GfssError, match=r"cam1/0001\.jpg and .*cam2/0001\.jpg have the same name"):
        read_labels(folders[0] / "masks", folders, "cat")
    assert len(read_labels(folders[0] / "masks", [folders[0], folders[0] / "0001.jpg"], "cat")) == 1


def test_colour_mask_is_no_binary_mask(tmp_path: Path) -> None:
    image, mask = photo(tmp_path / "photo.jpg"), photo(tmp_path / "m.png")
    with pytest.raises(GfssError, match=r"m\.png is a colour \(RGB\) mask"):
        read_labels(mask, [image], "cat")


def test_masks_without_names(tmp_path: Path) -> None:
    photo(tmp_path / "images" / "a.jpg")
    png(tmp_path / "masks" / "a.png", boxes(1, 2))
    with pytest.raises(GfssError, match=r"have no names; name the one class with --name NAME, write classes\.txt"):
        read_labels(tmp_path)


def test_label_without_image(tmp_path: Path) -> None:
    for name in "ab":
        photo(tmp_path / "images" / f"{name}.jpg")
        png(tmp_path / "masks" / f"{name}2.png", boxes(1))
    (tmp_path / "classes.txt").write_text("cat")
    with pytest.raises(GfssError, match=r"2 of 2 labels in .* have no image of the same name, first 'a2'"):
        read_labels(tmp_path)


def test_labels_without_any_image_say_where_images_are_looked_for(tmp_path: Path) -> None:
    for name in "ab":
        png(tmp_path / "masks" / f"{name}.png", boxes(1))
    with pytest.raises(GfssError, match="no images were found, they are looked for in a folder images/"):
        read_labels(tmp_path, class_name="cat")


def test_single_pictures_choose_their_masks(tmp_path: Path) -> None:
    images = [photo(tmp_path / "images" / f"{name}.jpg") for name in "abc"]
    for name in "abc":
        png(tmp_path / "masks" / f"{name}.png", boxes(1))
    labels = read_labels(tmp_path / "masks", images[1:], "cat")
    assert labels.images == (*images[1:],)
    with pytest.raises(GfssError, match="3 of 3 labels"):
        read_labels(tmp_path / "masks", [photo(tmp_path / "other.jpg"), photo(tmp_path / "another.jpg")], "cat")


def test_black_and_white_masks_with_the_name_of_their_one_class(tmp_path: Path) -> None:
    for name, mask in {"a": boxes(255), "b": boxes(0)}.items():
        photo(tmp_path / "images" / f"{name}.jpg")
        png(tmp_path / "masks" / f"{name}.png", mask)
    (tmp_path / "classes.txt").write_text("cat")
    labels = read_labels(tmp_path)
    assert (labels.format, labels.classes) == ("binary masks", ("cat",))
    np.testing.assert_array_equal(labels.mask(0), boxes(1))
    png(tmp_path / "masks" / "b.png", boxes(0, 1))  # so white is void
    assert read_labels(tmp_path).format == "index masks"
    np.testing.assert_array_equal(read_labels(tmp_path).mask(0), boxes(255))


def test_a_jpg_is_no_mask(tmp_path: Path) -> None:
    image = photo(tmp_path / "photo.jpg")
    Image.fromarray(np.roll(boxes(255), 3, axis=1)).save(tmp_path / "m.jpg", quality=40)
    with pytest.raises(GfssError, match="a JPG cannot hold a mask"):
        read_labels(tmp_path / "m.jpg", [image], "cat")


def test_void_in_a_folder_per_class_stays_void(tmp_path: Path) -> None:
    photo(tmp_path / "images" / "a.jpg")
    cat, dog = boxes(1), boxes(0)
    cat[-4:], dog[:4] = 255, 1
    cat[:4] = 255  # uncertain for the cat, but a dog for sure
    png(tmp_path / "masks" / "cat" / "a.png", cat)
    png(tmp_path / "masks" / "dog" / "a.png", dog)
    mask = read_labels(tmp_path).mask(0)
    assert (mask[-4:] == 255).all()
    assert (mask[:4] == 2).all()


def test_a_background_line_in_classes_txt_is_refused(tmp_path: Path) -> None:
    plain(tmp_path, {"a": boxes(1), "b": boxes(2)}, ["background", "cat", "dog"])
    with pytest.raises(GfssError, match="names the background, but line i names mask value i"):
        read_labels(tmp_path)


def test_a_mask_is_turned_like_its_image(tmp_path: Path) -> None:
    mask = boxes(1)
    mask[:] = 0
    mask[:4, :4] = 1
    exif = Image.Exif()
    exif[ORIENTATION] = 3
    path = png(tmp_path / "mask.png", mask)
    Image.open(path).save(path, exif=exif)
    for read in (read_mask, read_grey):
        assert (read(path)[-4:, -4:] == 1).all()
        assert read(path)[0, 0] == 0
