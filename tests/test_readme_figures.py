"""The README's figures of PASCAL-5^i are those of the records under results/."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gfss.evaluation.records import Record, read_record

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "results" / "pascal-lite0"
NAMES = {"imprinting": "imprint", "score fusion": "score", "learned per-pixel calibrator": "pixel"}
USUAL = {1: (1000, 1000, 1000, 1000), 5: (1000, 500, 500, 300)}  # paired tasks of every fold, by shots
METRICS = ("per-image", "accumulated")
FOUR = range(4)
PAIRED = [(1, FOUR), (1, [0]), (5, FOUR), (5, [0])]  # shots and folds of a column
JOINT = [FOUR, [0], [1], [2], [3]]


def tables() -> Iterator[list[list[str]]]:
    """Tables of the README, rows of cells without bold and footnote marks."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").replace("**", "").replace("†", "")
    for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        yield [[cell.strip() for cell in line.split("|")[1:-1]] for line in block.splitlines()]


def method(label: str) -> str:
    """The method of a row: the name in backticks, or the label itself."""
    name = re.search(r"`(.+?)`", label)
    plain = re.sub(r" \(.*| rule", "", label)
    return name[1] if name else NAMES.get(plain, plain.lower().replace(" ", "-"))


def cases() -> Iterator[tuple[str, int, str, tuple[int, ...], str]]:
    """Every cell with figures: method, shots, protocol, folds, text."""
    for head, _, *rows in tables():
        if head[1:3] == ["1 shot, four folds", "1 shot, fold 0"]:
            columns = [(shots, "paired", folds) for shots, folds in PAIRED]
        elif head[1:3] == ["four folds", "fold 0"]:
            columns = [(5 if "5" in head[0] else 1, "joint", folds) for folds in JOINT]
        else:
            continue
        for row in rows:
            for (shots, protocol, folds), cell in zip(columns, row[1:], strict=False):
                if cell != "not run":
                    yield method(row[0]), shots, protocol, tuple(folds), cell


@pytest.mark.parametrize(("name", "shots", "protocol", "folds", "cell"), list(cases()))
def test_cell(name: str, shots: int, protocol: str, folds: tuple[int, ...], cell: str) -> None:
    records = [read_record(RECORDS / f"fold{fold}" / f"{name}-{shots}shot-{protocol}-seed0.json") for fold in folds]
    assert cell.split(" (")[0] == " / ".join(f"{harmonic(records, metric):.1f}" for metric in METRICS)
    named = {int(number) for number in re.findall(r"\d+", cell.partition(" (")[2].replace(",", "").replace("3 x", ""))}
    usual = {5} if protocol == "joint" else {USUAL[shots][fold] for fold in folds}
    assert {record.tasks for record in records} == (named or usual)


def harmonic(records: list[Record], metric: str) -> float:
    """H of the averaged base and novel figures."""
    base, novel = (
        sum(getattr(record.figures[metric], part) for record in records) / len(records)  # pyright: ignore[reportArgumentType]
        for part in ("base", "novel")
    )
    return 2 * base * novel / (base + novel) if base + novel else 0


def test_cells_are_found() -> None:
    assert len(list(cases())) > 80
