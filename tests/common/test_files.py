"""Where the cache is."""

from __future__ import annotations

from pathlib import Path

import pytest

from gfss.common.files import cache_folder, default_cache


def test_the_environment_names_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GFSS_CACHE", str(tmp_path / "own"))
    assert cache_folder("banks") == tmp_path / "own" / "banks"
    assert (tmp_path / "own" / "banks").is_dir()


def test_without_it_the_system_does_and_an_early_cache_keeps_working(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("gfss.common.files.user_cache_path", lambda *_, **__: tmp_path / "Library" / "gfss")
    assert default_cache() == tmp_path / "Library" / "gfss"
    (tmp_path / ".cache" / "gfss").mkdir(parents=True)
    assert default_cache() == tmp_path / ".cache" / "gfss"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    assert default_cache() == tmp_path / "Library" / "gfss"
