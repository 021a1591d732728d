"""The benchmarks of bank and episodes run and write what they found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.conftest import REPOSITORY


def run(name: str, folder: Path) -> dict:
    out = folder / "figures.json"
    script = REPOSITORY / "benchmarks" / f"{name}.py"
    subprocess.run([sys.executable, str(script), "--small", "--threads", "1", "--json", str(out)], check=True)
    return json.loads(out.read_text())


def test_bank_reading(tmp_path: Path) -> None:
    figures = run("bank_reading", tmp_path)
    assert figures["ratio"] == figures["reading_ms"] / figures["computing_ms"]
    assert 0 < figures["ratio"] < 1
    assert [images for images, _ in figures["memory_mb"]][::10] == [0, 200]


def test_episode(tmp_path: Path) -> None:
    rows = run("episode", tmp_path)["rows"]
    assert set(rows) == {"played", "fresh", "default"}
    for row in rows.values():
        assert row["ratio"] == row["anew_ms"] / row["bank_ms"] > 0
