"""Saving: all or nothing, and damage is named."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gfss.errors import GfssError
from gfss.tool import model_folder
from gfss.tool.model_folder import read_model, write_model

PARTS = {"head": {"weight": torch.arange(6.0).view(2, 3)}, "support of class 1": {"0.labels": torch.ones(3)}}
ABOUT = {"seed": 3, "taught": [{"name": "Gabelstapler ü"}]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_model(tmp_path / "model", PARTS, ABOUT, "# card\n")
    return tmp_path / "model"


def test_what_is_written_comes_back(folder: Path) -> None:
    parts, about = read_model(folder)
    assert parts.keys() == PARTS.keys()
    assert torch.equal(parts["head"]["weight"], PARTS["head"]["weight"])
    assert about["taught"] == ABOUT["taught"]
    assert sorted(path.name for path in folder.parent.iterdir()) == ["model"]
    assert sorted(path.name for path in folder.iterdir()) == ["card.md", "model.json", "model.safetensors"]


@pytest.mark.parametrize("name", ["model.safetensors", "card.md", "model.json"])
def test_a_truncated_file_is_refused_by_name(folder: Path, name: str) -> None:
    path = folder / name
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(GfssError, match=name):
        read_model(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "card.md", "model.json"])
def test_a_missing_file_is_refused_by_name(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(GfssError, match=name):
        read_model(folder)


def test_an_altered_tensor_is_refused_with_its_part(folder: Path) -> None:
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1  # tensors lie in the order of their names: the last one is the support's
    path.write_bytes(content)
    with pytest.raises(GfssError, match=r"model\.safetensors .*the part 'support of class 1'"):
        read_model(folder)


def test_an_altered_word_is_refused(folder: Path) -> None:
    about = json.loads((folder / "model.json").read_text())
    about["seed"] = 4
    (folder / "model.json").write_text(json.dumps(about))
    with pytest.raises(GfssError, match=r"model\.json is damaged or was altered"):
        read_model(folder)


def test_another_version_is_refused(folder: Path) -> None:
    (folder / "model.json").write_text('{"format": "gfss model 99"}')
    with pytest.raises(GfssError, match="'gfss model 1' expected, 'gfss model 99' came"):
        read_model(folder)


@pytest.mark.parametrize("step", ["write", "first rename", "second rename"])
def test_a_crash_while_saving_leaves_the_old_model(folder: Path, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Crash(BaseException):
        """Nothing catches this, as nothing catches a power cut."""

    calls: list[str] = []

    def crash(*_: object) -> None:
        raise Crash

    rename = os.rename

    def crash_later(source: object, target: object) -> None:
        calls.append(str(target))
        if len(calls) == (1 if step == "first rename" else 2):
            raise Crash
        rename(source, target)  # type: ignore[arg-type]

    if step == "write":
        monkeypatch.setattr(model_folder, "write_atomically", crash)
    else:
        monkeypatch.setattr(model_folder.os, "rename", crash_later)
    with pytest.raises(Crash):
        write_model(folder, {"head": {"weight": torch.zeros(1)}}, {"seed": 9}, "new")
    monkeypatch.undo()
    assert read_model(folder)[1]["seed"] == 3
    write_model(folder, PARTS, {**ABOUT, "seed": 4}, "new")
    assert read_model(folder)[1]["seed"] == 4
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_a_full_disk_and_a_forbidden_folder_are_one_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("gfss.files.os.fsync", full)
        with pytest.raises(GfssError, match="the disk is full"):
            write_model(folder, PARTS, {"seed": 9}, "new")

    def forbidden(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patch:
        patch.setattr(model_folder.tempfile, "mkdtemp", forbidden)
        with pytest.raises(GfssError, match=r"cannot write .*model: Permission denied"):
            write_model(folder, PARTS, {"seed": 9}, "new")
    assert read_model(folder)[1]["seed"] == 3


@pytest.mark.parametrize(("name", "text"), [("photo.jpg", "x"), ("model.json", '{"format": "layers-model"}')])
def test_a_folder_with_other_things_is_not_replaced(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(GfssError, match="something else than a model"):
        write_model(tmp_path, PARTS, ABOUT, "card")
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("damage", ["", '{"format": "gfss model 99"}'])
def test_a_damaged_or_older_model_can_be_replaced(folder: Path, damage: str) -> None:
    (folder / "model.json").write_text(damage)
    write_model(folder, PARTS, ABOUT, "card")
    assert read_model(folder)[1]["seed"] == 3


def test_what_lies_beside_the_model_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "report.html").write_text("mine")
    (folder / "out").mkdir()
    (folder / "out" / "a.png").write_text("mine too")
    write_model(folder, PARTS, {**ABOUT, "seed": 4}, "new")
    with monkeypatch.context() as patch:  # the power goes before they are moved over
        patch.setattr(model_folder.os, "rename", _rename_twice())
        with pytest.raises(KeyboardInterrupt):
            write_model(folder, PARTS, {**ABOUT, "seed": 5}, "newer")
    assert read_model(folder)[1]["seed"] == 5
    assert (folder / "report.html").read_text() == "mine"
    assert (folder / "out" / "a.png").read_text() == "mine too"
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def _rename_twice() -> Callable[[Path, Path], None]:
    """A rename that works for the two folders and then no more."""
    rename, calls = os.rename, []

    def limited(source: Path, target: Path) -> None:
        calls.append(target)
        if len(calls) > 2:
            raise KeyboardInterrupt
        rename(source, target)

    return limited


def test_a_link_stays_a_link(folder: Path) -> None:
    link = folder.with_name("link")
    link.symlink_to(folder.name)
    write_model(link, PARTS, {**ABOUT, "seed": 4}, "new")
    assert link.is_symlink()
    assert read_model(folder)[1]["seed"] == read_model(link)[1]["seed"] == 4
    assert sorted(path.name for path in folder.parent.iterdir()) == ["link", "model"]
