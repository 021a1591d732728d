"""The data sets of the benchmark on own data, made from a tiny git repository."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from benchmarks import own_data_sets as maker
from benchmarks.own_data_sets import Part, Source
from PIL import Image

from gfss.common.errors import GfssError
from gfss.data.datasets.base import read_class_names

REPOSITORY = "owner/cells"


@pytest.fixture
def clones(tmp_path: Path) -> Path:
    """A folder with one clone: three images with index masks, colour masks, outlines and masks of single objects."""
    root = tmp_path / "clones" / REPOSITORY.replace("/", "+")
    for number in range(3):
        left = np.zeros((4, 6), dtype=np.uint8)
        left[:, :2] = 1
        left[0, 5] = 9
        colours = np.zeros((8, 12, 3), dtype=np.uint8)
        colours[:, 6:] = (250, 5, 0)
        _save(root / f"images/{number}.png", np.full((4, 6, 3), 50 * number, dtype=np.uint8))
        _save(root / f"masks/{number}.png", left)
        _save(root / f"colours/{number}.png", colours)
        _save(root / f"objects/{number}/a.png", (left == 1) * np.uint8(255))
        _save(root / f"objects/{number}/b.png", (left == 9) * np.uint8(255))
    (root / "outlines.txt").write_text("3 0 0 0.5 0 0.5 1 0 1\n4 0 0 1 0 1 1\n")
    coco = {
        "images": [{"id": 7, "file_name": "1.png", "width": 6, "height": 4}],
        "categories": [{"id": 2, "name": "cell"}],
        "annotations": [{"image_id": 7, "category_id": 2, "segmentation": [[0, 0, 1, 0, 1, 3, 0, 3]]}],
    }
    (root / "coco.json").write_text(json.dumps(coco))
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "data"]):
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *identity, *command], cwd=root, check=True, capture_output=True)
    return root.parent


def _save(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path)


def _source(clones: Path, *parts: Part) -> Source:
    folder = clones / REPOSITORY.replace("/", "+")
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True)
    classes = tuple(dict.fromkeys(name for part in parts for name in part.classes))
    return Source("cells", REPOSITORY, classes, parts, commit.stdout.strip())


def _mask(root: Path, name: str) -> np.ndarray:
    return np.asarray(Image.open(root / "cells" / "masks" / f"{name}.png"))


def test_values_become_classes_and_void(clones: Path, tmp_path: Path) -> None:
    part = Part(r"images/(\d)\.png", r"masks/\1.png", {"cell": 1}, void=9)
    assert maker.make_set(_source(clones, part), clones, tmp_path) == 3
    expected = np.zeros((4, 6), dtype=np.uint8)
    expected[:, :2] = 1
    expected[0, 5] = 255
    np.testing.assert_array_equal(_mask(tmp_path, "2"), expected)
    assert read_class_names(tmp_path / "cells") == ("cell",)
    assert Image.open(tmp_path / "cells/images/2.jpg").size == (6, 4)


def test_a_bare_clone_gives_the_same(clones: Path, tmp_path: Path) -> None:
    source = _source(clones, Part(r"images/(\d)\.png", r"masks/\1.png", {"cell": ">=1"}))
    bare = tmp_path / "bare" / "owner+cells"
    subprocess.run(["git", "clone", "-q", "--bare", str(clones / "owner+cells"), str(bare)], check=True)
    maker.make_set(source, bare.parent, tmp_path)
    assert (_mask(tmp_path, "0") == 1).sum() == 9


def test_colours_of_a_larger_mask_and_images_without_the_class(clones: Path, tmp_path: Path) -> None:
    parts = (
        Part(r"images/(0)\.png", r"colours/\1.png", {"right": "#ff0000"}),
        Part(r"images/(1)\.png"),
    )
    maker.make_set(_source(clones, *parts), clones, tmp_path)
    np.testing.assert_array_equal(_mask(tmp_path, "0")[0], [0, 0, 0, 1, 1, 1])
    assert not _mask(tmp_path, "1").any()


def test_masks_of_single_objects_and_of_single_classes_are_joined(clones: Path, tmp_path: Path) -> None:
    joined = Part(r"images/(0)\.png", r"objects/\1/*.png", {"cell": 255})
    apart = Part(
        r"images/(1)\.png", {"cell": r"objects/\1/a.png", "dot": r"objects/\1/b.png"}, {"cell": 255, "dot": 255}
    )
    maker.make_set(_source(clones, joined, apart), clones, tmp_path)
    np.testing.assert_array_equal(_mask(tmp_path, "0")[0], [1, 1, 0, 0, 0, 1])
    np.testing.assert_array_equal(_mask(tmp_path, "1")[0], [1, 1, 0, 0, 0, 2])


def test_outlines_are_filled(clones: Path, tmp_path: Path) -> None:
    parts = (
        Part(r"images/(0)\.png", "outlines.txt", {"cell": 3}),
        Part(r"images/(1)\.png", "coco.json", {"cell": "cell"}),
    )
    maker.make_set(_source(clones, *parts), clones, tmp_path)
    assert _mask(tmp_path, "0")[1, 1] == 1
    assert _mask(tmp_path, "0")[1, 5] == 0
    np.testing.assert_array_equal(_mask(tmp_path, "1")[0], [1, 1, 0, 0, 0, 0])


def test_images_are_turned_where_masks_were_drawn_upright(tmp_path: Path) -> None:
    folder = tmp_path / "cells"
    _save(folder / "masks/0.png", np.ones((6, 4), dtype=np.uint8))
    turned = Image.Exif()
    turned[0x0112] = 6  # the camera was held sideways
    Image.new("RGB", (6, 4)).save(folder / "0.jpg", exif=turned)
    part = Part(r"(0)\.jpg", r"masks/\1.png", {"cell": 1}, upright=True)
    maker.make_set(Source("cells", "cells", ("cell",), (part,)), tmp_path, tmp_path / "sets")
    assert Image.open(tmp_path / "sets/cells/images/0.jpg").size == (4, 6)


def test_a_sample_is_the_same_every_time() -> None:
    paths = [f"images/{i}.png" for i in range(20)]
    first, second = (list(maker.chosen_images(paths, Part(r"images/(\d+)\.png", sample=5))) for _ in range(2))
    assert first == second
    assert len(first) == 5


def test_large_images_are_reduced() -> None:
    assert maker.reduced_size(4000, 1000) == (1000, 250)
    assert maker.reduced_size(30, 20) == (30, 20)
    values = np.repeat(np.arange(4, dtype=np.uint8), 10)[None]
    np.testing.assert_array_equal(maker.sampled(values, (4, 2)), [[0, 1, 2, 3]] * 2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"repository": "owner/other"}, r"has no owner\+other; clone https://github.com/owner/other there"),
        ({"commit": "0" * 40}, "lacks the commit"),
        ({"parts": (Part("nothing"),)}, "match no file of https://github.com/owner/cells"),
        ({"parts": (Part("images/0.png", "coco.json"), Part("images/0.png"))}, "two images of 'cells' have the name"),
    ],
)
def test_what_is_missing_is_said(clones: Path, tmp_path: Path, change: dict[str, object], said: str) -> None:
    source = _source(clones, Part("images/.*"))
    with pytest.raises(GfssError, match=said):
        maker.make_set(Source(**{**vars(source), **change}), clones, tmp_path)


def test_a_mask_of_another_shape_is_refused(clones: Path, tmp_path: Path) -> None:
    folder = clones / "owner+cells"
    _save(folder / "wide/0.png", np.zeros((4, 60), dtype=np.uint8))
    source = Source("cells", "owner+cells", ("cell",), (Part(r"images/(0)\.png", r"wide/\1.png", {"cell": 1}),))
    with pytest.raises(GfssError, match=r"of 60 x 4 pixels has another shape than its image \(6 x 4\)"):
        maker.make_set(source, clones, tmp_path)


def test_every_source_of_the_table_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    sources = maker.read_table()
    for source in sources.values():
        assert source.classes
        assert ("/" in source.repository) == (len(source.commit) == 40)
    assert maker.main(["--sources"]) == 0
    assert "https://github.com/cwfid/dataset" in capsys.readouterr().out


def test_the_command_says_which_clone_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert maker.main([str(tmp_path), "plants-cwfid", "unknown", "--repositories", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "clone https://github.com/cwfid/dataset there" in said
    assert "there is no set 'unknown'" in said
