"""Records: written, read, found and compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gfss.common.errors import GfssError
from gfss.common.files import versions
from gfss.evaluation.metrics import summarise
from gfss.evaluation.records import (
    Record,
    Run,
    find_records,
    peak_memory_mb,
    read_record,
    same_result,
    write_record,
    write_records,
)


def make_record(**changes: Any) -> Record:
    figures = summarise({"bus": 100 / 3, "café": 50.0}, {"cat": None}, background=90.0)
    content: dict[str, Any] = {
        "data": "pascal",
        "fold": 0,
        "shots": 1,
        "encoder": "lite0",
        "method": "pcn",
        "protocol": "paired",
        "tasks": 2,
        "seed": 7,
        "spec": {"width": 256, "levels": ["layer3", "layer4"]},
        "base_classes": ["bus", "café"],
        "novel_classes": ["cat"],
        "supports": [["2007_000033"], ["a b"]],
        "figures": {"per-image": figures, "accumulated": figures},
        "run": Run(seconds={"learn": 1.5}, peak_memory_mb=100.0, versions=versions()),
    }
    return Record(**(content | changes))


def test_a_record_survives_the_file(tmp_path: Path) -> None:
    record = make_record()
    write_record(tmp_path / "deep" / "record.json", record)
    assert read_record(tmp_path / "deep" / "record.json") == record


def test_a_record_is_compact_and_plain_json(tmp_path: Path) -> None:
    write_record(tmp_path / "record.json", make_record(supports=[["x"]] * 500))
    text = (tmp_path / "record.json").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 80
    assert json.loads(text)["figures"]["per-image"]["novel"] is None
    assert "NaN" not in text


def test_only_the_run_may_differ(tmp_path: Path) -> None:
    first, second = make_record(), make_record(run=Run(seconds={"learn": 9.0}))
    assert same_result(first, second)
    assert not same_result(first, make_record(seed=8))
    for name, record in (("a", first), ("b", second)):
        write_record(tmp_path / name, record)
    halves = [(tmp_path / name).read_text(encoding="utf-8").split('"run"') for name in ("a", "b")]
    assert halves[0][0] == halves[1][0]
    assert halves[0][1] != halves[1][1]


def test_records_are_found_once_in_files_and_folders(tmp_path: Path) -> None:
    for name in ("b/2.json", "a.json", "b/1.json"):
        write_record(tmp_path / name, make_record())
    (tmp_path / "notes.txt").write_text("no record")
    found = find_records([tmp_path / "b" / "2.json", tmp_path])
    assert found == [tmp_path / "b" / "2.json", tmp_path / "a.json", tmp_path / "b" / "1.json"]


def test_nothing_to_find_is_said(tmp_path: Path) -> None:
    with pytest.raises(GfssError, match="there is no record"):
        find_records([tmp_path])
    with pytest.raises(GfssError, match="does not exist"):
        find_records([tmp_path / "missing"])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"colour": 1}, "'colour' is not known"),
        ({"tasks": "many"}, "'tasks' is 'many'; expected a whole number"),
        ({"protocol": "triple"}, "'protocol' is 'triple'; expected"),
        ({"figures": {}}, "'figures' is"),
        ({"novel_classes": ["dog"]}, "classes of 'per-image' should be"),
        ({"run": {"hours": 3}}, r"'run\.hours' is not known"),
        ({"colour": 1, "shape": 2}, r"\(and 1 more\)"),
    ],
)
def test_bad_content_is_named_in_one_sentence(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(make_record().model_dump() | change))
    with pytest.raises(GfssError, match=sentence) as caught:
        read_record(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("{", "not valid JSON"), ("[1]", "holds a JSON list"), ("{}", "'data' is missing"), ("", "is empty")],
)
def test_files_that_are_no_records(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(GfssError, match=sentence):
        read_record(path)


def test_a_figure_that_is_no_number_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(make_record().model_dump_json().replace("90.0", "NaN"))
    with pytest.raises(GfssError, match="background' is nan; expected a finite number"):
        read_record(path)


@pytest.mark.parametrize("figure", [1e15, 200, -50, 100.1, -0.01])
@pytest.mark.parametrize("place", ["novel", "classes"])
def test_impossible_figures_are_refused(tmp_path: Path, figure: float, place: str) -> None:
    content = json.loads(make_record().model_dump_json())
    figures = content["figures"]["per-image"]
    (figures["classes"] if place == "classes" else figures)["bus" if place == "classes" else place] = figure
    (tmp_path / "x.json").write_text(json.dumps(content))
    with pytest.raises(GfssError, match=r"expected at (least|most)"):
        read_record(tmp_path / "x.json")


def test_memory_of_this_process() -> None:
    if peak_memory_mb() is None:
        pytest.skip("this system does not tell the memory of a process")
    block = b"x" * (200 * 2**20)
    assert 200 < (peak_memory_mb() or 0) < 100_000
    del block


def test_versions_are_all_known() -> None:
    assert set(versions()) == {"python", "torch", "gfss", "cpu"}
    assert all(versions().values())


def test_of_several_records_all_are_written_or_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(GfssError, match="cannot create the folder"):
        write_records({tmp_path / "one.json": make_record(), tmp_path / "file" / "two.json": make_record()})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    write_records({tmp_path / f"{name}.json": make_record() for name in ("one", "two")})
    assert read_record(tmp_path / "one.json") == read_record(tmp_path / "two.json") == make_record()
