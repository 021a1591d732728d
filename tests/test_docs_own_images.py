"""The page "Your own images" and the examples do what they say."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.app import make
from tests.data import make as files

import gfss
from gfss.app import model_loading as sources
from gfss.app.segmenter import Segmenter
from gfss.cli import main
from gfss.data.datasets.scenes import SCENE_CLASSES

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "own-images.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)


COMMANDS = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("gfss ")]


@pytest.fixture(scope="module")
def assets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small stand-ins for the embedded models."""
    folder = tmp_path_factory.mktemp("assets")
    make.model().save(folder / "voc20-lite0")
    Segmenter(make.network(classes=SCENE_CLASSES[3:])).save(folder / "scenes-tiny")
    return folder


@pytest.fixture
def yard(tmp_path: Path, assets: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the photographs that the page speaks of."""
    for folder, names in {"yard/photos": "ab", "more-photos": "cd", "new-photos": ["yard", "gate"]}.items():
        for name in names:
            image, mask = make.labelled(sum(map(ord, name)))
            files.png(tmp_path / folder / f"{name}.png", image).rename(tmp_path / folder / f"{name}.jpg")
            files.png(tmp_path / folder.replace("photos", "masks") / f"{name}.png", mask * np.uint8(255))
    files.png(tmp_path / "empty-yard" / "monday.png", make.picture(60))
    for name in "vw":
        image, mask = make.labelled(ord(name))
        files.png(tmp_path / "validation" / "images" / f"{name}.png", image)
        files.png(tmp_path / "validation" / "masks" / f"{name}.png", mask * np.uint8(2))
    (tmp_path / "validation" / "classes.txt").write_text("dog\nforklift\n")
    for number in range(5):
        image, mask = make.labelled(number)
        files.png(tmp_path / "my-data" / "images" / f"{number}.png", image)
        files.png(tmp_path / "my-data" / "masks" / f"{number}.png", mask)
    (tmp_path / "my-data" / "classes.txt").write_text("pallet\n")
    monkeypatch.setattr(sources, "ASSETS", assets)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_commands_run_one_after_another(yard: Path) -> None:
    assert len(COMMANDS) >= 9
    for command in COMMANDS:
        assert main(shlex.split(command)[1:]) == 0, command
    assert {path.name for path in (yard / "out").iterdir()} >= {"a.png", "yard.png", "gate_overlay.jpg", "classes.txt"}
    assert (yard / "report.html").exists()
    assert gfss.load("my-model").classes == ("background", "pallet")
    assert (yard / "out-onnx" / "a.png").exists()


def test_the_python_block_runs(yard: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks("python")
    exec(compile(block, "own-images.md", "exec"), {})
    assert "After teaching forklift" in capsys.readouterr().out
    assert (yard / "yard_overlay.jpg").exists()
    assert (yard / "another-model" / "card.md").exists()


def test_the_example_runs(yard: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["teach_a_class.py", "--out", "example", "--shots", "2"])
    runpy.run_path(str(ROOT / "examples" / "teach_a_class.py"), run_name="__main__")
    assert "forgotten again: True" in capsys.readouterr().out
    assert {path.name for path in (yard / "example").iterdir()} == {
        "mask.png", "mask_overlay.jpg", "side-by-side.png", "report.html", f"knows-{SCENE_CLASSES[0]}",
    }  # fmt: skip


def test_the_notebook_runs(yard: Path) -> None:
    notebook = json.loads((ROOT / "examples" / "teach_a_class.ipynb").read_text(encoding="utf-8"))
    names: dict[str, object] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            exec("".join(cell["source"]), names)
    assert (yard / "my-model" / "model.json").exists()
