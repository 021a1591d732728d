"""Fixtures of the server's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from tests.server import make

from gfss.server.api import create_app
from gfss.server.security import Access
from gfss.server.studio import Studio


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Nine scenes of 112 x 112."""
    make.scene_folder(tmp_path / "photos", 9)
    return tmp_path / "photos"


@pytest.fixture
def studio(folder: Path) -> Iterator[Studio]:
    with make.studio(folder) as made:
        yield made


@pytest.fixture
def client(studio: Studio) -> Iterator[TestClient]:
    with TestClient(create_app(studio, Access()), base_url="http://127.0.0.1", raise_server_exceptions=False) as made:
        yield made


@pytest.fixture
def stars(folder: Path) -> dict[str, np.ndarray]:
    """Where the star is, by image id; largest first, only images that show one."""
    masks = make.scene_folder(folder, 9)
    return dict(sorted(((n, m) for n, m in masks.items() if m.any()), key=lambda pair: -int(pair[1].sum())))
