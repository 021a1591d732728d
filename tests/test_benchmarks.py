"""Benchmarks in their small form: they run, their forms agree, and the figures are written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


def run_small(name: str, folder: Path, *options: str) -> dict[str, Any]:
    """Run a benchmark in a process of its own; what it wrote."""
    figures = folder / "figures.json"
    command = [sys.executable, str(BENCHMARKS / name), "--small", "--threads", "1", "--json", str(figures), *options]
    path = os.pathsep.join([str(BENCHMARKS.parent / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(figures.read_text())


def test_calibrator_forms(tmp_path: Path) -> None:
    rows = run_small("calibrator_forms.py", tmp_path, "--batch", "2", "--rounds", "1")["rows"]
    assert [row.get("form") for row in rows] == ["plain", "fast", None]
    assert rows[-1]["difference"] < 1e-4
    assert all(row["seconds"] > 0 for row in rows[:2])


def test_novel_fitting(tmp_path: Path) -> None:
    rows = run_small("novel_fitting.py", tmp_path, "--hidden", "8", "--rounds", "1")["rows"]
    assert [(row["supports"], row["chosen"]) for row in rows] == [(1, "dual"), (5, "plain")]
    assert all(row["difference"] < 1e-4 for row in rows)
    assert set(rows[0]["times"]) == {"torch", "plain", "dual"}


def test_methods(tmp_path: Path) -> None:
    names = ["nsf", "pcn-support", "bcm", "acastle"]
    rows = run_small("methods.py", tmp_path, "--rounds", "1", "--shots", "1", "--methods", *names)["rows"]
    assert [row["method"] for row in rows] == names
    assert all(row["learn_seconds"] > 0 and row["segment_seconds_per_image"] > 0 for row in rows)


def test_the_page_about_own_data_shows_the_records() -> None:
    from benchmarks.own_data import table

    page = (Path(__file__).parents[1] / "docs/experiments/017-own-data.md").read_text()
    assert page.partition("<!-- own data -->\n")[2].partition("\n<!-- end -->")[0] == table([1, 3, 5, 10])
