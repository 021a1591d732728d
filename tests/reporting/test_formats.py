"""Tables as Markdown and LaTeX."""

from __future__ import annotations

import io

from rich.console import Console

from gfss.reporting.formats import as_latex, as_markdown, as_rich, natural_width, without_folds
from gfss.reporting.tables import HEADER, Table


def test_markdown_and_latex_escape_their_signs() -> None:
    table = Table("my_data, 1 shot", HEADER, [("a|b", "> 50%_x", *("1.00 ± 0.10" for _ in HEADER[2:]))])
    title, _, *lines = as_markdown([table]).splitlines()
    assert title == "### my_data, 1 shot"
    assert lines[1].count("|") == len(HEADER) + 1
    assert lines[2].startswith("| a\\|b | > 50%_x |")
    latex = as_latex([table])
    assert r"a|b & $>$ 50\%\_x & 1.00 $\pm$ 0.10 &" in latex
    assert r"\caption{my\_data, 1 shot}" in latex
    assert all(line.count("&") == len(HEADER) - 1 for line in latex.splitlines() if line.endswith(r"\\"))


def test_the_natural_width_folds_nothing() -> None:
    header = ("method", "fold 0 base / novel", "H")
    table = Table("t", header, [("a method", "1.00 / 2.00", "3.00 ± 0.10")])
    console = Console(width=natural_width(table), file=io.StringIO())
    console.print(as_rich(table))
    lines = [line for line in console.file.getvalue().splitlines() if "method" in line]  # type: ignore[attr-defined]
    assert len(lines) == 2
    assert all(word in lines[1] for word in table.rows[0])
    assert without_folds(table) == Table("t", ("method", "H"), [("a method", "3.00 ± 0.10")])


def test_a_terminal_shows_brackets_of_the_title() -> None:
    console = Console(width=200, file=io.StringIO())
    console.print(as_rich(Table("yard [v2], 1 shot", HEADER, [("x",) * len(HEADER)])))
    assert "yard [v2], 1 shot" in console.file.getvalue()  # type: ignore[attr-defined]
