"""Tables of words as text, Markdown and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import rich.box
import rich.markup
import rich.table

from gfss.reporting.tables import Table, is_papers

NUMBER = re.compile(r"[-+>]?\s?\d[\d.,]*( ± .*| \[.*| \*| / .*| to .*)?$|-?( / -)?$|not run$")
FIGURE = re.compile(r"\d+\.\d+")
SINGLE_FOLD = re.compile(r"fold \d+ base / novel$")
WIDE = 9  # tables of more columns are scaled to the width of a page in LaTeX
COMPARED = ("base", "novel", "mIoU", "mean", "H")  # columns whose best figure is printed bold in LaTeX
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
    """A table without the columns of single folds."""
    shown = [number for number, name in enumerate(table.header) if not SINGLE_FOLD.match(name)]
    header, *rows = (tuple(row[number] for number in shown) for row in (table.header, *table.rows))
    return table._replace(header=header, rows=rows)


def as_markdown(tables: Sequence[Table]) -> str:
    """Tables with pipes, each under a heading."""
    return "\n".join(_markdown(table) for table in tables)


def as_latex(tables: Sequence[Table]) -> str:
    """``table*`` environments for a document that loads booktabs and graphicx; the best figure of a column is bold."""
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
    header, *rows = (" & ".join(row) + r" \\" for row in (_plain(table.header), *_with_best_bold(table)))
    label = table.label or re.sub(r"[^a-z0-9]+", "-", table.title.partition(";")[0].lower()).strip("-")
    wide = len(table.header) > WIDE
    lines = [
        r"\begin{table*}",
        r"\centering",
        rf"\caption{{{_caption(table.title)}}}",
        rf"\label{{tab:{label}}}",
        *([r"\resizebox{\textwidth}{!}{%"] if wide else []),
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        header,
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}" + ("}" if wide else ""),
        r"\end{table*}",
    ]
    return "".join(f"{line}\n" for line in lines)


def _caption(title: str) -> str:
    """A title without the number of the paper's table, which LaTeX counts by itself."""
    words = re.sub(r"^table\d+: ", "", title).translate(LATEX)
    return re.sub(r"-(\d+)\\textasciicircum\{\}i", r"-$\1^i$", words)


def _plain(row: Iterable[str]) -> list[str]:
    return [word.translate(LATEX) for word in row]


def _with_best_bold(table: Table) -> list[list[str]]:
    """Rows in LaTeX; in columns of figures the best of our rows is bold, inside each fold where folds are rows."""
    rows = [_plain(row) for row in table.rows]
    ours = [number for number, row in enumerate(table.rows) if not any(is_papers(cell) for cell in row)]
    fold = table.header.index("fold") if "fold" in table.header else None
    for column, name in enumerate(table.header):
        parts = 2 if SINGLE_FOLD.match(name) else 1
        if name not in COMPARED and parts == 1:
            continue
        for group in {table.rows[number][fold] if fold is not None else "" for number in ours}:
            own = [number for number in ours if fold is None or table.rows[number][fold] == group]
            for part in range(parts):
                _embolden(table, rows, column, own, part)
    return rows


def _embolden(table: Table, rows: list[list[str]], column: int, chosen: Sequence[int], part: int) -> None:
    """Make the largest figure of some rows bold; ``part`` of "base / novel" cells."""
    values: dict[int, str] = {}
    for number in chosen:
        found = FIGURE.findall([*table.rows[number][column].split(" / "), ""][part])
        if found:
            values[number] = found[0]
    best = max(map(float, values.values()), default=None)
    for number, word in values.items():
        if float(word) == best and len(values) > 1:
            cells = rows[number][column].split(" / ")
            cells[part] = cells[part].replace(word, rf"\textbf{{{word}}}", 1)
            rows[number][column] = " / ".join(cells)
