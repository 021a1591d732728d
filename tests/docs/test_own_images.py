"""The page "Your own images" and the examples do what they say."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

import gfss
from gfss.cli import main
from gfss.data.datasets.scenes import SCENE_CLASSES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "own-images.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)


COMMANDS = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("gfss ")]


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
