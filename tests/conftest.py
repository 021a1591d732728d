"""What all tests share: a cache of their own, one thread per process, and data."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


def pytest_configure(config: pytest.Config) -> None:
    """Keep the user's cache out of the tests; workers of pytest-xdist inherit the cache of their starter."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        # set before torch is imported anywhere, so that workers do not fight for the cores
        os.environ["OMP_NUM_THREADS"] = "1"
        return
    os.environ["GFSS_CACHE"] = tempfile.mkdtemp(prefix="gfss-test-cache-")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the cache once every worker is done."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        shutil.rmtree(os.environ["GFSS_CACHE"], ignore_errors=True)


@pytest.fixture(scope="session")
def scenes_root() -> Path:
    """A small set of embedded scenes, made once for all tests."""
    from gfss.data.datasets.scenes import make_scenes

    return make_scenes(train=120, val=60, workers=1)


@pytest.fixture(scope="session")
def pascal_root() -> Path:
    """The real PASCAL data: ``images/``, ``masks/``, ``train.txt`` and ``val.txt``."""
    root = Path(os.environ.get("GFSS_PASCAL") or REPOSITORY.parent / "shared" / "data" / "voc2012_416")
    if not (root / "val.txt").exists():
        pytest.skip("the PASCAL data is not here; set GFSS_PASCAL to a folder with images/, masks/, train.txt, val.txt")
    return root
