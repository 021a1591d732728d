"""Files that are not what they should be, and what killed programs leave."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from gfss.common.errors import GfssError, printable
from gfss.common.files import ABANDONED, cache_folder, default_cache, read_json, write_json


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ("[" + "7" * 5000 + "]", "thousands of digits"),
        ('{"name": "\\ud800"}', "half a character"),
        ('{"name": "\\udc00 x"}', "half a character"),
        ('{"name": }', "not valid JSON"),
        ("", "is empty"),
    ],
)
def test_json_that_breaks_parsers_gets_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(GfssError, match=sentence):
        read_json(tmp_path / "x.json")


def test_whole_characters_are_read(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('["\\ud83d\\ude00", "\\\\ud800"]')
    assert read_json(tmp_path / "x.json") == ["😀", "\\ud800"]


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.json")
    with pytest.raises(GfssError, match="is a pipe or a device, not a file"):
        read_json(tmp_path / "x.json")


def test_what_a_killed_program_left_is_removed_and_what_another_is_writing_stays(tmp_path: Path) -> None:
    old, new, other = (tmp_path / name for name in (".x.json.abc.part", ".x.json.def.part", ".y.json.abc.part"))
    for part in (old, new, other):
        part.write_text("half")
    past = time.time() - ABANDONED - 60
    os.utime(old, (past, past))
    os.utime(other, (past, past))
    write_json(tmp_path / "x.json", 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".x.json.def.part", ".y.json.abc.part", "x.json"]


def test_an_account_without_home_is_asked_for_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("GFSS_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(GfssError, match="GFSS_CACHE=FOLDER"):
        cache_folder("x")
    monkeypatch.setenv("GFSS_CACHE", str(tmp_path))
    assert cache_folder("x") == tmp_path / "x"


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert printable("a\x1b]0;title\x07b\u202e") == "a?]0;title?b?"
    assert printable("größe → 4\n") == "größe → 4\n"


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
