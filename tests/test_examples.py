"""The notebook about your own network is run as it stands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gfss.evaluation.records import read_records

NOTEBOOK = Path(__file__).resolve().parents[1] / "examples" / "score_your_network.ipynb"


def test_the_notebook_scores_a_network_under_both_protocols(
    scenes_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pandas", reason="the notebook shows records with pandas")
    monkeypatch.chdir(tmp_path)
    cells = [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    names: dict[str, object] = {}
    for cell in cells:
        assert cell["outputs"] == []
        source = "".join(cell["source"]).replace('"scenes"', repr(str(scenes_root)))  # fewer images
        exec(compile(source, NOTEBOOK.name, "exec"), names)
    assert sum(bool(line.strip()) for cell in cells for line in cell["source"]) <= 45
    records = {record.protocol: record for record in read_records([Path("my-results")])}
    assert set(records) == {"paired", "joint"}
    assert all((one.figures["per-image"].novel or 0) > 0 for one in records.values())  # a toy, but it finds something
