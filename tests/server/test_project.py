"""Labels on disk: nothing is lost, nothing leaves the folder, gfss teach reads them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.server import make

from gfss.common.errors import GfssError
from gfss.data.images import read_mask
from gfss.data.labels import read_labels
from gfss.server import project as module
from gfss.server.errors import Conflict, NotFound
from gfss.server.project import KEEP, Project


@pytest.fixture
def project(folder: Path) -> Project:
    made = Project(folder)
    made.add_class("star")
    made.add_class("ring")
    return made


def first(project: Project) -> str:
    return next(iter(project.images))


def test_a_stroke_is_on_disk_when_the_call_returns_and_survives_a_restart(project: Project, folder: Path) -> None:
    patch = np.full((10, 20), 1, dtype=np.uint8)
    patch[0, 0] = KEEP
    assert project.paint(first(project), 5, 7, patch) == 1
    on_disk = read_mask(make.labels_of(folder) / "masks" / f"{first(project)}.png")
    assert (on_disk == project.label(first(project))).all()
    assert (on_disk == 1).sum() == 199
    assert on_disk[7, 5] == 0
    again = Project(folder)
    assert again.classes == ["star", "ring"]
    assert again.areas(first(again)) == {"star": 199}
    assert again.changed == {"star"}


def test_a_crash_while_writing_leaves_the_old_label(
    project: Project, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.paint(first(project), 0, 0, np.full((4, 4), 1, dtype=np.uint8))
    before = (make.labels_of(folder) / "masks" / f"{first(project)}.png").read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(GfssError, match="disk is full"):
        project.paint(first(project), 0, 0, np.full((9, 9), 1, dtype=np.uint8))
    assert (make.labels_of(folder) / "masks" / f"{first(project)}.png").read_bytes() == before
    assert (project.label(first(project)) == 1).sum() == 16


def test_gfss_teach_reads_the_labels(project: Project, folder: Path) -> None:
    a, b, c = list(project.images)[:3]
    project.paint(a, 0, 0, np.full((9, 9), 1, dtype=np.uint8))
    project.paint(b, 3, 3, np.full((9, 9), 2, dtype=np.uint8))
    project.paint(b, 20, 20, np.full((2, 2), 255, dtype=np.uint8))
    project.set_without(c, "star", True)
    labels = read_labels(make.labels_of(folder), [folder], "star")
    assert labels.classes == ("star", "ring")
    assert sorted(path.stem for path in labels.images) == [a, b, c]
    found = dict(labels.supports("ring"))
    assert [path.stem for path in found] == [b]
    assert (found[folder / f"{b}.png"] == 255).sum() == 4
    paths, masks, without = project.start_lesson("star")
    assert [path.stem for path in paths] == [a]
    assert (masks[0] == 1).sum() == 81
    assert [path.stem for path in without] == [c]


def test_an_empty_label_leaves_no_file_behind(project: Project) -> None:
    name = first(project)
    project.paint(name, 0, 0, np.ones((4, 4), dtype=np.uint8))
    assert project.mask_file(name).exists()
    project.paint(name, 0, 0, np.zeros((4, 4), dtype=np.uint8))
    assert not project.mask_file(name).exists()
    project.set_without(name, "star", True)
    assert project.mask_file(name).exists()  # gfss teach then knows that the image shows none
    project.set_without(name, "star", False)
    assert not project.mask_file(name).exists()


def test_removing_a_class_keeps_the_others_values(project: Project) -> None:
    name = first(project)
    project.paint(name, 0, 0, np.full((4, 4), 1, dtype=np.uint8))
    project.paint(name, 10, 10, np.full((4, 4), 2, dtype=np.uint8))
    project.remove_class("star")
    assert project.classes == ["ring"]
    assert project.value("ring") == 2
    assert project.areas(name) == {"ring": 16}
    assert project.add_class("fish") == 1  # the free value is used again
    project.rename_class("ring", "hoop")
    assert project.areas(name) == {"hoop": 16}
    assert Project(project.folder).classes == ["fish", "hoop"]


@pytest.mark.parametrize("name", ["", " star", "a\nb", "background", "void", "unused-3", "x" * 61, "star"])
def test_class_names_that_would_break_something_are_refused(project: Project, name: str) -> None:
    with pytest.raises(GfssError):
        project.add_class(name)
    assert project.classes == ["star", "ring"]


def test_what_does_not_fit_is_refused(project: Project) -> None:
    name = first(project)
    with pytest.raises(GfssError, match="leaves the image"):
        project.paint(name, 110, 0, np.ones((4, 4), dtype=np.uint8))
    with pytest.raises(GfssError, match="names no class"):
        project.paint(name, 0, 0, np.full((4, 4), 9, dtype=np.uint8))
    with pytest.raises(GfssError, match="the same size"):
        project.set_label(name, np.zeros((3, 3), dtype=np.uint8))
    with pytest.raises(NotFound):
        project.label("../../etc/passwd")
    project.paint(name, 0, 0, np.ones((4, 4), dtype=np.uint8))
    with pytest.raises(Conflict, match="erase it"):
        project.set_without(name, "star", True)
    assert not (project.label(name) == 9).any()


def test_images_outside_the_folder_and_broken_ones_are_left_out(folder: Path, tmp_path: Path) -> None:
    Image.new("RGB", (9, 9)).save(tmp_path / "secret.png")
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    (folder / "broken.jpg").write_bytes(b"not a picture")
    project = Project(folder)
    assert set(project.left_out) == {"link.png", "broken.jpg"}
    assert not {"link", "broken"} & set(project.images)


def test_new_files_are_seen_and_uploads_never_overwrite(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_AGAIN", 0)
    content = project.image(first(project)).path.read_bytes()
    (project.folder / "late.png").write_bytes(content)
    project.refresh()
    assert "late" in project.images
    assert project.add_image("../up/new.PNG", content).path == project.folder / "new.PNG"
    with pytest.raises(Conflict):
        project.add_image("new.png", content)
    for name in ("x.txt", ".hidden.png", "a\0b.png", "y" * 200 + ".png", ""):
        with pytest.raises(GfssError, match="not a name"):
            project.add_image(name, content)
    with pytest.raises(GfssError, match=r"'bad\.png' is not an image of a known kind"):
        project.add_image("bad.png", b"GIF89a nothing")
    assert not (project.folder / "bad.png").exists()


def test_folders_that_cannot_be_used(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(GfssError, match="does not exist"):
        Project(tmp_path / "nowhere")
    for place in (folder, folder / "labels"):
        with pytest.raises(GfssError, match="into the image folder"):
            Project(folder, place)
    make.scene_folder(tmp_path / "twice", 3)
    one = next((tmp_path / "twice").glob("*.png"))
    one.with_suffix(".jpg").write_bytes(one.read_bytes())
    with pytest.raises(GfssError, match="rename one"):
        Project(tmp_path / "twice")
    make.labels_of(folder).mkdir(exist_ok=True)
    (make.labels_of(folder) / "project.json").write_text('{"format": "other"}')
    with pytest.raises(GfssError, match="this version"):
        Project(folder)
