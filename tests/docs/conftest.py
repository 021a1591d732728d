"""What the pages of the docs speak of: a folder with photographs, and small stand-ins for the embedded models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.app import make
from tests.data import make as files

from gfss.app import model_folder as sources
from gfss.app.segmenter import Segmenter
from gfss.data.datasets.scenes import SCENE_CLASSES

FOLDERS = {
    "yard/photos": "ab",
    "photos": "ab",
    "more-photos": "cd",
    "new-photos": ["yard", "gate"],
    "aerial": "m",
}


@pytest.fixture(scope="session")
def assets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small stand-ins for the embedded models."""
    folder = tmp_path_factory.mktemp("assets")
    make.model().save(folder / "voc20-lite0")
    Segmenter(make.network(classes=SCENE_CLASSES[3:])).save(folder / "scenes-tiny")
    return folder


@pytest.fixture
def yard(tmp_path: Path, assets: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the photographs that the pages speak of."""
    for folder, names in FOLDERS.items():
        for name in names:
            image, mask = make.labelled(sum(map(ord, name)))
            files.png(tmp_path / folder / f"{name}.png", image).rename(tmp_path / folder / f"{name}.jpg")
            if "photos" in folder:
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
