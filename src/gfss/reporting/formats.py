"""Tables of words as text, Markdown and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import rich.box
import rich.markup
import rich.table

from gfss.reporting.tables import Table

NUMBER = re.compile(r"[-+]?\d[\d.,]*( ± .*)?$|-?$|not run$")
SINGLE_FOLD = re.compile(r"\d+ (base|novel)$")
LATEX = str.maketrans(
    {
        **{sign: f"\\{sign}" for sign in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "<": "$<$",
        ">": "$>$",
    }
)


def as_rich(table: Table) -> rich.table.Table:
    """For a terminal; where it is narrow, numbers fold before their ± and methods at their spaces."""
    title = rich.markup.escape(table.title)
    shown = rich.table.Table(title=title, title_justify="left", box=rich.box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name, number in zip(table.header, _numbers(table), strict=True):
        shown.add_column(
            name, justify="right" if number else "left", overflow="fold", no_wrap=not number and name != "method"
        )
    for row in table.rows:
        shown.add_row(*(rich.markup.escape(word) for word in row))
    return shown


def natural_width(table: Table) -> int:
    """Columns of a terminal that :func:`as_rich` needs so that nothing is folded."""
    widest = [max(map(len, column)) for column in zip(table.header, *table.rows, strict=True)]
    return sum(width + 2 for width in widest) + 1  # room beside each cell and at the edges


def without_folds(table: Table) -> Table:
    """A table without the columns of single folds ("0 base", "0 novel" ...)."""
    shown = [number for number, name in enumerate(table.header) if not SINGLE_FOLD.match(name)]
    header, *rows = (tuple(row[number] for number in shown) for row in (table.header, *table.rows))
    return Table(table.title, header, rows)


def as_markdown(tables: Sequence[Table]) -> str:
    """Tables with pipes, each under a heading."""
    return "\n".join(_markdown(table) for table in tables)


def as_latex(tables: Sequence[Table]) -> str:
    """``table*`` environments for a document that loads booktabs."""
    return "\n".join(_latex(table) for table in tables)


def _numbers(table: Table) -> list[bool]:
    """Which columns hold numbers: those whose every cell starts like one, or is empty."""
    columns = list(zip(*table.rows, strict=True)) if table.rows else [()] * len(table.header)
    return [bool(column) and all(NUMBER.match(cell) for cell in column) for column in columns]


def _markdown(table: Table) -> str:
    rule = ("--:" if number else "---" for number in _numbers(table))
    lines = [_pipes(table.header), _pipes(rule), *map(_pipes, table.rows)]
    return f"### {table.title}\n\n" + "".join(f"{line}\n" for line in lines)


def _pipes(words: Iterable[str]) -> str:
    return "| " + " | ".join(word.replace("|", "\\|") for word in words) + " |"


def _latex(table: Table) -> str:
    columns = "".join("r" if number else "l" for number in _numbers(table))
    header, *rows = (" & ".join(word.translate(LATEX) for word in row) + r" \\" for row in (table.header, *table.rows))
    lines = [
        r"\begin{table*}",
        r"\centering",
        rf"\caption{{{table.title.translate(LATEX)}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        header,
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table*}",
    ]
    return "".join(f"{line}\n" for line in lines)
