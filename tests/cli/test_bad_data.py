"""Bad input through the command line: one sentence each, never a traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.data.make import boxes, header_only_png, labelme, photo, plain, png, write

from gfss.cli import main
from gfss.common.errors import GfssError
from gfss.data import open_dataset, open_fold
from gfss.data.episodes import task


def missing_file(root: Path) -> None:
    (good(root) / "images" / "a.jpg").unlink()


def truncated_jpeg(root: Path) -> None:
    path = photo(good(root) / "images" / "a.jpg", (24, 32))
    path.write_bytes(path.read_bytes()[:-300])


def mask_of_another_size(root: Path) -> None:
    png(good(root) / "masks" / "a.png", boxes(1, size=(48, 64)))


def value_without_class(root: Path) -> None:
    png(good(root) / "masks" / "a.png", boxes(1, 2))


def rgb_mask(root: Path) -> None:
    photo(good(root) / "masks" / "a.png")


def empty_folder(root: Path) -> None:
    root.mkdir()


def coco_without_annotations(root: Path) -> None:
    write(root / "labels.json", {"images": [], "annotations": [], "categories": []})


def polygon_outside(root: Path) -> None:
    photo(root / "a.jpg")
    labelme(root / "a.json", [("cat", "polygon", [[0, 0], [900, 0], [900, 900]])])


def huge_image(root: Path) -> None:
    good(root)
    (root / "images" / "a.jpg").unlink()
    header_only_png(root / "images" / "a.png", 20_000, 20_000)


def good(root: Path) -> Path:
    return plain(root, {"a": boxes(1), "b": boxes(1)}, ["cat"], val=["b"])


CASES: list[tuple[Callable[[Path], None], str]] = [
    (missing_file, "has no image for 1 of 1 ids in train.txt, first 'a'"),
    (truncated_jpeg, "a.jpg is damaged or cut off"),
    (mask_of_another_size, "a.png is 64 x 48 but its image a.jpg is 32 x 24; they must have the same size"),
    (value_without_class, "a.png has the value 2 but 1 class(es) are named"),
    (rgb_mask, "a.png has colours (RGB), so it is not an index mask"),
    (empty_folder, "holds no labels; expected images with masks"),
    (coco_without_annotations, "labels.json has no annotations"),
    (polygon_outside, "a 'cat' polygon with the point (900, 0) outside the image of 32 x 24"),
    (huge_image, "a.png has 20000 x 20000 pixels; at most 150 million are read"),
]


@pytest.mark.parametrize(("spoil", "sentence"), CASES, ids=[spoil.__name__ for spoil, _ in CASES])
def test_check_explains_and_ends_with_1(
    tmp_path: Path, spoil: Callable[[Path], None], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(tmp_path / "mine")
    assert main(["data", "check", str(tmp_path / "mine")]) == 1
    out = capsys.readouterr().out
    assert sentence in out
    assert "1 problem(s) found." in out
    assert "Traceback" not in out


def test_missing_path_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", str(tmp_path / "nowhere")]) == 2
    err = capsys.readouterr().err
    assert "nowhere" in err
    assert "there is no such file or folder" in err
    assert len(err.strip().splitlines()) == 1


def test_class_with_fewer_images_than_shots(tmp_path: Path) -> None:
    masks = {f"i{i}": boxes(*range(1, 5), size=(24, 48)) for i in range(3)} | {"t": boxes(1)}
    root = plain(tmp_path / "mine", masks, ["a", "b", "c", "d"], val=["i0", "i1", "i2"])
    val = open_dataset(str(root), split="val")
    fold = open_fold(str(root), 4, 0)
    assert len(task(val, fold, 0, 0, shots=2).supports[0]) == 2
    with pytest.raises(
        GfssError, match=r"class 'a' has 3 usable image\(s\) to learn from, 5 asked for; use fewer shots"
    ):
        task(val, fold, 0, 0, shots=5)


def test_fold_out_of_range(tmp_path: Path) -> None:
    with pytest.raises(GfssError, match="fold 4 is out of range: this data set has folds 0 to 3"):
        open_fold("pascal", 20, 4)
