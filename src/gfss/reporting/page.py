"""A self-contained HTML page of tables, bars, charts and images; no script, no file beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gfss.common.files import write_atomically
from gfss.common.html import render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEMPLATE = Path(__file__).parent / "templates" / "page.html"


@dataclass(frozen=True)
class PageSection:
    """A heading and what stands below it: blocks as the template knows them, each with its ``kind``."""

    title: str
    blocks: list[dict[str, Any]] = field(default_factory=list)


class Page:
    """Collects a page section by section, then writes it."""

    def __init__(self, title: str, lead: str) -> None:
        self.title, self.lead = title, lead
        self._sections: list[PageSection] = []

    def section(self, title: str, text: str = "") -> None:
        """Start a new section; what is added from now on belongs to it."""
        self._sections.append(PageSection(title))
        if text:
            self.text(text)

    def text(self, text: str) -> None:
        """Add a paragraph."""
        self._add("text", text=text)

    def chart(self, figure: Figure, alt: str) -> None:
        """Add a matplotlib figure.

        Args:
            alt: what it shows, for readers who cannot see it.
        """
        self._add("chart", figure=figure, alt=alt)

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]], best: Sequence[int] = ()) -> None:
        """Add a table; in the columns of ``best`` the largest number is bold."""
        self._add("table", header=header, rows=rows, best=_best_cells(rows, best))

    def details(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Add a table that opens on a click."""
        self._add("details", title=title, header=header, rows=rows, best=())

    def matrix(self, names: Sequence[str], shares: Sequence[Sequence[float]], corner: str = "") -> None:
        """Add a square table of shares in percent, the larger the darker."""
        self._add("matrix", corner=corner, names=names, rows=list(zip(names, shares, strict=True)))

    def bars(self, values: Mapping[str, tuple[float, float]], new: Sequence[str] = ()) -> None:
        """Add two bars per name in percent, the first faint (before), the second full (after); new ones coloured."""
        self._add("bars", pairs=[(name, *pair) for name, pair in values.items()], new=new)

    def images(self, header: Sequence[str], rows: Sequence[Sequence[np.ndarray]], notes: Sequence[str] = ()) -> None:
        """Add a grid of images (height, width, 3) uint8, one row per example, with a note below each."""
        self._add("images", header=header, rows=list(zip_longest(rows, notes, fillvalue="")))

    def write(self, path: Path) -> None:
        """Write the page."""
        text = render(TEMPLATE, title=self.title, lead=self.lead, sections=self._sections)
        with write_atomically(path) as file:
            file.write(text.encode())

    def _add(self, kind: str, **content: Any) -> None:
        self._sections[-1].blocks.append({"kind": kind, **content})


def _best_cells(rows: Sequence[Sequence[str]], columns: Sequence[int]) -> set[tuple[int, str]]:
    """(column, cell) of the largest number of some columns."""
    largest = {column: max(_number(row[column]) for row in rows) for column in columns if rows}
    return {(column, row[column]) for column in largest for row in rows if _number(row[column]) == largest[column]}


def _number(cell: str) -> float:
    try:
        return float(cell.split()[0])
    except (ValueError, IndexError):
        return float("-inf")
