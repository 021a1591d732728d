"""The figures of PASCAL-5^i in README and docs are those of the records, computed here from plain JSON."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "docs/results.md",
    *(f"docs/experiments/{p.name}" for p in sorted((ROOT / "docs/experiments").glob("*.md"))),
)
NAMES = {"imprinting": "imprint", "score fusion": "score"}
FOLDS = ("fold 0", "fold 1", "fold 2", "fold 3")


def tables() -> Iterator[tuple[str, list[list[str]]]]:
    """Tables with their names, rows of cells without bold and footnote marks."""
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8").replace("**", "").replace(" †", "")
        for name, block in re.findall(r"<!-- table: (.+?) -->\n(.*?)<!-- end -->", text, flags=re.DOTALL):
            yield name, [[cell.strip() for cell in line.split("|")[1:-1]] for line in block.splitlines()]


def method(label: str) -> str:
    """The method of a row: the name in backticks, or the label itself."""
    name = re.search(r"`(.+?)`", label)
    plain = re.sub(r" \(.*| rule", "", label).lower()
    return name[1] if name else NAMES.get(plain, plain.replace(" ", "-"))


def meaning(table: str, column: str) -> tuple[int, tuple[int, ...], str] | None:
    """Shots, folds and part of the figures that a column of a table shows, None for other columns."""
    shots = re.search(r"(\d) shot", f"{table} {column}" if table == "short" else table)
    folds = (int(column[-1]),) if column in FOLDS else folds_of(table)
    if column in ("base", "novel"):
        part = column
    elif column in ("H", *FOLDS) or re.fullmatch(r"\d shots?", column):
        part = "H"
    else:
        return None
    return int(shots[1]) if shots else 1, folds, part


def folds_of(table: str) -> tuple[int, ...]:
    """Folds that the averages of a table are over: those with a column, or all of the short one."""
    return (0, 1, 2, 3) if table == "short" else tuple(int(c[-1]) for c in TABLES[table][0] if c in FOLDS) or (0,)


def records(table: str, name: str, shots: int, folds: tuple[int, ...]) -> list[dict[str, Any]]:
    encoder = next((name for name in ("resnet50", "lite4") if table.startswith(name)), "lite0")
    protocol = "joint" if table.startswith("joint") else "paired"
    folder = ROOT / "results" / f"pascal-{encoder}"
    return [read(folder / f"fold{f}", f"{name}-{shots}shot-{protocol}-seed0") for f in folds]


def read(folder: Path, name: str) -> dict[str, Any]:
    (path,) = folder.glob(f"{name}-*.json")
    return json.loads(path.read_text())


def figure(found: list[dict[str, Any]], metric: str, part: str) -> float:
    base, novel = (sum(r["figures"][metric][p] for r in found) / len(found) for p in ("base", "novel"))
    harmonic = 2 * base * novel / (base + novel) if base + novel else 0
    return {"base": base, "novel": novel, "H": harmonic}[part]


def cells(table: str) -> Iterator[tuple[str, str, str]]:
    """Label of the row, column and cell."""
    head, _, *rows = TABLES[table]
    for row in rows:
        for column, cell in zip(head[1:], row[1:], strict=True):
            yield row[0], column, cell


TABLES = dict(tables())
MEASURED = [name for name in TABLES if not name.startswith("tuning")]
TUNING = [name for name in TABLES if name.startswith("tuning")]


@pytest.mark.parametrize("table", MEASURED)
def test_figures_are_those_of_the_records(table: str) -> None:
    seen = 0
    for label, column, cell in cells(table):
        what = meaning(table, column)
        if what is None:
            continue
        shots, folds, part = what
        found = records(table, method(label), shots, folds)
        expected = " / ".join(f"{figure(found, m, part):.1f}" for m in ("per-image", "accumulated"))
        assert cell.removesuffix(" *") == expected, (label, column)
        if table == "short":
            assert cell.endswith("*") == any(record["tasks"] < 1000 for record in found), (label, column)
        seen += 1
    assert seen >= len(TABLES[table]) - 2  # at least one per row


@pytest.mark.parametrize(
    "table", [name for name in MEASURED if any(re.match("tasks|draws", c) for c in TABLES[name][0])]
)
def test_numbers_of_tasks_are_those_of_the_records(table: str) -> None:
    for label, column, cell in cells(table):
        if re.match("tasks|draws", column):
            found = records(table, method(label), 5 if "5 shots" in table else 1, folds_of(table))
            expected = [record["tasks"] for record in found]
            given = [int(number.replace(",", "")) for number in cell.split(", ")]
            assert given == (expected[:1] if len(set(expected)) == 1 else expected), label


@pytest.mark.parametrize("table", TUNING)
def test_tuning_figures_are_those_of_the_records(table: str) -> None:
    for label, column, cell in cells(table):
        fold, part, parts = re.findall(r"\d", column)
        rate = label.split()[0] if "rates" in table else None
        place = f"rate-{rate}/" if rate else "diam/" if "diam" in table else ""
        folder = ROOT / "tuning" / f"{place}pascal-lite0" / f"fold{fold}-part{part}of{parts}"
        name = "nsf" if rate else method(label)
        record = read(folder, f"{name}-1shot-seed0")
        assert record["fold"] == column.removeprefix("fold ")
        assert not rate or record["spec"]["novel"]["rate"] == float(rate)
        weight = re.search(r"DIaM, weight (\d+)", label)
        assert not weight or record["spec"]["diam"]["distillation_weight"] == float(weight[1])
        expected = " / ".join(f"{figure([record], m, 'H'):.1f}" for m in ("per-image", "accumulated"))
        assert cell == expected, (label, column)


def test_tables_are_found() -> None:
    assert sum(len(list(cells(table))) for table in TABLES) > 400
    expected = {"short", "paired 1 shot", "paired 5 shots", "joint 1 shot", "ablations", "tuning", "tuning rates"}
    assert TABLES.keys() >= expected


def test_pages_are_up_to_date() -> None:
    make = runpy.run_path(str(ROOT / "docs" / "results.py"))["page"]
    texts = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
    assert [page for page, text in texts.items() if make(text) != text] == [], "run: make results"


def test_best_first() -> None:
    for table, (head, _, *rows) in TABLES.items():
        if table != "ablations" and not table.startswith("tuning"):
            column = head.index("1 shot" if table == "short" else "H")
            values = [float(row[column].split(" / ")[0]) for row in rows]
            assert values == sorted(values, reverse=True)
