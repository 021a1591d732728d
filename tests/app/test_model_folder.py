"""Saving: all or nothing, and damage is named."""

from __future__ import annotations

import errno
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from gfss.app import model_folder
from gfss.app.model_folder import read_model, write_model
from gfss.common.errors import GfssError

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
    assert names(folder) == ["card.md", tensor_file(folder).name, "model.json"]


def names(folder: Path) -> list[str]:
    """What lies in a model folder, but for the lock."""
    return sorted(path.name for path in folder.iterdir() if path.name != model_folder.LOCK)


def tensor_file(folder: Path) -> Path:
    (path,) = folder.glob("model-*.safetensors")
    return path


@pytest.mark.parametrize("name", ["model-*.safetensors", "model.json"])
def test_a_truncated_file_is_refused_by_name(folder: Path, name: str) -> None:
    (path,) = folder.glob(name)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(GfssError, match=path.name):
        read_model(folder)


@pytest.mark.parametrize("name", ["model-*.safetensors", "model.json"])
def test_a_missing_file_is_refused_by_name(folder: Path, name: str) -> None:
    (path,) = folder.glob(name)
    path.unlink()
    with pytest.raises(GfssError, match=path.name):
        read_model(folder)


def test_the_card_is_for_people(folder: Path) -> None:
    (folder / "card.md").write_text("# edited\r\n")
    assert read_model(folder)[1]["seed"] == 3
    (folder / "card.md").unlink()
    assert read_model(folder)[1]["seed"] == 3


def test_a_folder_with_the_plain_name_of_the_tensors_is_read_and_replaced(folder: Path) -> None:
    """As the embedded models are."""
    about = json.loads((folder / "model.json").read_text())
    tensor_file(folder).rename(folder / "model.safetensors")
    del about["tensors"]
    about["sha256"]["model.json"] = model_folder._about_digest(about)
    (folder / "model.json").write_text(json.dumps(about))
    assert read_model(folder)[1]["seed"] == 3
    write_model(folder, PARTS, {**ABOUT, "seed": 4}, "new")
    assert not (folder / "model.safetensors").exists()
    assert read_model(folder)[1]["seed"] == 4


def test_tensors_are_looked_for_in_the_folder_only(folder: Path) -> None:
    about = json.loads((folder / "model.json").read_text())
    outside = folder.parent / "outside.safetensors"
    tensor_file(folder).rename(outside)
    about["tensors"] = "../outside.safetensors"
    about["sha256"]["model.json"] = model_folder._about_digest(about)
    (folder / "model.json").write_text(json.dumps(about))
    with pytest.raises(GfssError, match=r"model/outside\.safetensors .*cannot be read"):
        read_model(folder)


def test_an_altered_tensor_is_refused_with_its_part(folder: Path) -> None:
    path = tensor_file(folder)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1  # tensors lie in the order of their names: the last one is the support's
    path.write_bytes(content)
    with pytest.raises(GfssError, match=r"model-.*\.safetensors .*the part 'support of class 1'"):
        read_model(folder)


def test_an_altered_word_is_refused(folder: Path) -> None:
    about = json.loads((folder / "model.json").read_text())
    about["seed"] = 4
    (folder / "model.json").write_text(json.dumps(about))
    with pytest.raises(GfssError, match=r"model\.json is damaged or was modified"):
        read_model(folder)


def test_another_version_is_refused(folder: Path) -> None:
    (folder / "model.json").write_text('{"format": "gfss model 99"}')
    with pytest.raises(GfssError, match="expected 'gfss model 1', got 'gfss model 99'"):
        read_model(folder)


@pytest.mark.parametrize("name", ["model-", "model.json", "card.md"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_crash_while_saving_leaves_one_of_both_models(
    folder: Path, name: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Crash(BaseException):
        """Nothing catches this, as nothing catches a power cut."""

    replace = os.replace

    def crash(source: Path, target: Path) -> None:
        if not Path(target).name.startswith(name):
            return replace(source, target)
        if moment == "after":
            replace(source, target)
        raise Crash

    monkeypatch.setattr("gfss.common.files.os.replace", crash)
    monkeypatch.setattr("gfss.common.files.Path.unlink", lambda *_, **__: None)
    with pytest.raises(Crash):
        write_model(folder, {"head": {"weight": torch.zeros(1)}}, {"seed": 9}, "new")
    monkeypatch.undo()
    written = name == "card.md" or (name, moment) == ("model.json", "after")
    assert read_model(folder)[1]["seed"] == (9 if written else 3)
    write_model(folder, PARTS, {**ABOUT, "seed": 4}, "new")
    assert read_model(folder)[1]["seed"] == 4
    assert names(folder) == ["card.md", tensor_file(folder).name, "model.json"]


def test_what_a_crash_left_in_a_new_folder_does_not_matter(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    folder.mkdir()
    (folder / "model-0123456789ab.safetensors").write_bytes(b"half")
    (folder / ".model-0123456789ab.safetensors.xyz.part").write_bytes(b"half")
    write_model(folder, PARTS, ABOUT, "card")
    assert read_model(folder)[1]["seed"] == 3
    assert len(names(folder)) == 3


def test_a_model_that_was_changed_meanwhile_is_not_replaced(folder: Path) -> None:
    loaded = model_folder.checksum(folder)
    assert write_model(folder, PARTS, {**ABOUT, "seed": 4}, "theirs") == model_folder.checksum(folder)
    with pytest.raises(GfssError, match="changed by another program in the meantime"):
        write_model(folder, PARTS, {**ABOUT, "seed": 5}, "ours", expected=loaded)
    assert read_model(folder)[1]["seed"] == 4


def test_two_programs_write_one_after_the_other(folder: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        with FileLock(folder / model_folder.LOCK):
            other = pool.submit(write_model, folder, PARTS, {**ABOUT, "seed": 5}, "theirs")
            with pytest.raises(TimeoutError):
                other.result(timeout=0.2)
            assert read_model(folder)[1]["seed"] == 3
        other.result(timeout=10)
    assert read_model(folder)[1]["seed"] == 5


def test_a_model_is_written_from_inside_its_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    write_model(Path(), PARTS, {**ABOUT, "seed": 4}, "new")
    assert read_model(Path())[1]["seed"] == 4
    assert Path.cwd() == folder


def test_only_the_folder_itself_must_be_writable(folder: Path) -> None:
    mode = folder.parent.stat().st_mode
    folder.parent.chmod(0o555)
    try:
        write_model(folder, PARTS, {**ABOUT, "seed": 4}, "new")
    finally:
        folder.parent.chmod(mode)
    assert read_model(folder)[1]["seed"] == 4


def test_a_full_disk_and_a_forbidden_folder_are_one_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("gfss.common.files.os.fsync", full)
        with pytest.raises(GfssError, match="the disk is full"):
            write_model(folder, PARTS, {"seed": 9}, "new")

    def forbidden(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patch:
        patch.setattr("gfss.common.files.tempfile.mkstemp", forbidden)
        with pytest.raises(GfssError, match=r"cannot write .*model-.*: Permission denied"):
            write_model(folder, PARTS, {"seed": 9}, "new")
    assert read_model(folder)[1]["seed"] == 3


@pytest.mark.parametrize(("name", "text"), [("photo.jpg", "x"), ("model.json", '{"format": "layers-model"}')])
def test_a_folder_with_other_things_is_not_replaced(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(GfssError, match="not a model folder"):
        write_model(tmp_path, PARTS, ABOUT, "card")
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("damage", ["", '{"format": "gfss model 99"}'])
def test_a_damaged_or_older_model_can_be_replaced(folder: Path, damage: str) -> None:
    (folder / "model.json").write_text(damage)
    write_model(folder, PARTS, ABOUT, "card")
    assert read_model(folder)[1]["seed"] == 3


def test_what_lies_beside_the_model_stays(folder: Path) -> None:
    (folder / "report.html").write_text("mine")
    (folder / "out").mkdir()
    (folder / "out" / "a.png").write_text("mine too")
    write_model(folder, PARTS, {**ABOUT, "seed": 4}, "new")
    assert read_model(folder)[1]["seed"] == 4
    assert (folder / "report.html").read_text() == "mine"
    assert (folder / "out" / "a.png").read_text() == "mine too"


def test_a_link_stays_a_link(folder: Path) -> None:
    link = folder.with_name("link")
    link.symlink_to(folder.name)
    write_model(link, PARTS, {**ABOUT, "seed": 4}, "new")
    assert link.is_symlink()
    assert read_model(folder)[1]["seed"] == read_model(link)[1]["seed"] == 4
    assert sorted(path.name for path in folder.parent.iterdir()) == ["link", "model"]
