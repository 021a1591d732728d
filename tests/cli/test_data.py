"""``gfss data`` on good input."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image
from tests.data.make import boxes, photo, plain, png

from gfss.cli import main


@pytest.fixture
def root(tmp_path: Path) -> Path:
    masks = {f"i{i}": boxes(1, 2) for i in range(8)}
    return plain(tmp_path / "mine", masks, ["cat", "[bold]dog"], val=["i6", "i7"])


def test_check(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", str(root)]) == 0
    out = capsys.readouterr().out
    assert "mine train" in out
    assert "6 images with index masks, 2 classes." in out
    assert "[bold]dog" in out  # names are not markup
    assert "No problems found." in out


def test_sheet(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "sheets" / "s.png"
    assert main(["data", "sheet", str(root), "--split", "train", "-o", str(out)]) == 0
    with Image.open(out) as picture:
        assert picture.format == "PNG"


def test_prepare_pascal(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    voc = tmp_path / "VOC2012"
    for split, name in (("train", "t"), ("val", "v")):
        photo(voc / "JPEGImages" / f"{name}.jpg")
        png(voc / "SegmentationClassAug" / f"{name}.png", boxes(1))
        (voc / "ImageSets" / "Segmentation").mkdir(parents=True, exist_ok=True)
        (voc / "ImageSets" / "Segmentation" / f"{split}.txt").write_text(name)
    out = tmp_path / "out"
    assert main(["data", "prepare", "pascal", "--voc", str(voc), "-o", str(out)]) == 0
    printed = capsys.readouterr()
    assert "note: the train list has 1 images, the usual one has 5,953" in printed.err
    assert f"set GFSS_PASCAL={out} to use it" in printed.out
    monkeypatch.setenv("GFSS_PASCAL", str(out))
    assert main(["data", "check", "pascal"]) == 0


def test_prepare_coco_without_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["data", "prepare", "coco", "--annotations", str(tmp_path), "--images", str(tmp_path), "-o", str(tmp_path)]
    assert main(words) == 2
    assert "instances_train2014.json does not exist" in capsys.readouterr().err
