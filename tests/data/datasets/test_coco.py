"""COCO-20^i: from annotations to index masks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.make import box_polygon, coco_json, photo

from gfss.common.errors import GfssError
from gfss.data import open_dataset
from gfss.data.catalog import COCO_CLASSES
from gfss.data.datasets import coco
from gfss.data.datasets.coco import prepare_coco, read_coco

pytest.importorskip("pycocotools", reason="needs the extra gfss[coco]")

IDS = [i for i in range(1, 91) if i not in (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)]  # COCO leaves some ids out
CATEGORIES = dict(zip(IDS, COCO_CLASSES, strict=True))


def release(root: Path, counts: dict[str, int]) -> Path:
    """A COCO 2014 release with one umbrella (id 28, class 26) on a person in every picture but the last."""
    for split, count in counts.items():
        names = [f"COCO_{split}2014_{i:012d}.jpg" for i in range(count)]
        for name in names:
            photo(root / f"{split}2014" / name)
        objects: list[dict[str, Any]] = [
            {"category_id": 28, "segmentation": [box_polygon(4, 4, 8, 8)]},
            {"category_id": 1, "segmentation": [box_polygon(0, 0, 16, 16)]},
        ]
        annotations = {name: objects for name in names[:-1]} | {names[-1]: []}
        coco_json(root / "annotations" / f"instances_{split}2014.json", annotations, CATEGORIES)
    return root


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return release(tmp_path / "coco", {"train": 4, "val": 3})


def test_there_are_80_ids() -> None:
    assert len(IDS) == 80


def test_prepare_draws_masks_and_lists_images_with_annotations(small: Path, tmp_path: Path) -> None:
    remarks = prepare_coco(small / "annotations", small, tmp_path / "out")
    train, val = (open_dataset("coco", tmp_path / "out", split) for split in ("train", "val"))
    assert (len(train), len(val)) == (3, 2)
    assert train.classes == COCO_CLASSES
    assert train.reference_side is None
    expected = np.zeros((24, 32), np.uint8)
    expected[:16, :16] = COCO_CLASSES.index("person") + 1
    expected[4:8, 4:8] = COCO_CLASSES.index("umbrella") + 1
    np.testing.assert_array_equal(val.mask(0), expected)
    assert remarks == [
        "train has 3 images with annotations, COCO 2014 has 82,081",
        "val has 2 images with annotations, COCO 2014 has 40,137",
    ]


def test_several_processes_draw_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = release(tmp_path / "coco", {"train": 6, "val": 2})
    monkeypatch.setattr(coco, "CHUNK", 2)
    for processes in (1, 2):
        prepare_coco(root / "annotations", root, tmp_path / str(processes), processes)
    masks = [sorted((tmp_path / str(n) / "masks").iterdir()) for n in (1, 2)]
    assert [path.name for path in masks[0]] == [path.name for path in masks[1]]
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(*masks, strict=True))


def test_finished_masks_are_not_drawn_again(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    prepare_coco(small / "annotations", small, out)
    (out / "masks" / "COCO_val2014_000000000001.png").unlink()
    drawn: list[str] = []
    real = coco.draw_instances

    def noted(picture: Any, source: Path) -> np.ndarray:
        drawn.append(picture.file_name)
        return real(picture, source)

    monkeypatch.setattr(coco, "draw_instances", noted)
    prepare_coco(small / "annotations", small, out)
    assert drawn == ["COCO_val2014_000000000001.jpg"]


def test_wrong_inputs(small: Path, tmp_path: Path) -> None:
    with pytest.raises(GfssError, match=r"instances_train2014\.json does not exist"):
        prepare_coco(tmp_path, small, tmp_path / "out")
    with pytest.raises(GfssError, match=r"COCO_train2014_000000000000\.jpg is neither in .*train2014 nor in"):
        prepare_coco(small / "annotations", tmp_path / "nowhere", tmp_path / "out")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "instances_train2014.json").write_text("{}")
    with pytest.raises(GfssError, match=r"instances_val2014\.json does not exist"):  # before the train masks are drawn
        prepare_coco(tmp_path / "half", small, tmp_path / "out")
    with pytest.raises(GfssError, match="holds no index masks; make a data folder with: gfss data prepare coco"):
        read_coco(small, "val")
    coco_json(
        small / "annotations" / "instances_train2014.json",
        {"x.jpg": [{"segmentation": [[0] * 6], "category_id": 1}]},
        {1: "cat"},
    )
    with pytest.raises(GfssError, match="has other categories than COCO 2014"):
        prepare_coco(small / "annotations", small, tmp_path / "out")
