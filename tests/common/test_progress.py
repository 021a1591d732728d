"""Progress in a log file: a line now and then, and none for what is done at once."""

from __future__ import annotations

import re

import pytest

from gfss.common import progress
from gfss.common.progress import Bar, track


def test_a_log_file_gets_lines_with_place_time_and_figures(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0)
    with Bar("training", total=2000, start=1000) as bar:
        bar.advance(loss=0.51234)
    line = capsys.readouterr().err
    assert re.fullmatch(r"training: 1,001 of 2,000, \d+ min left  loss 0\.5123\n", line)


def test_quick_work_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(track([1, 2], "counting", total=2)) == [1, 2]
    assert capsys.readouterr().err == ""


def test_lines_are_a_minute_apart(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with Bar("tasks", total=4) as bar:
        for seconds in (30, 61, 100, 122):
            now[0] = seconds
            bar.advance()
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["tasks: 2 of 4, 1 min left", "tasks: 4 of 4, 0 min left"]
