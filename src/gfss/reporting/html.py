"""A self-contained HTML page of tables, bars and pictures; no script, no file beside it."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np
from PIL import Image

from gfss.common.files import write_atomically

STYLE = """
:root { --ink: #1c2733; --soft: #5b6b7b; --line: #dde3ea; --card: #fff; --page: #f5f7f9;
  --known: #4878a8; --new: #d9742b; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6ebf0; --soft: #9fb0c0; --line: #33414f; --card: #1c252e; --page: #12181e; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 30px; margin: 0 0 4px; } h2 { font-size: 21px; margin: 36px 0 8px; }
p { max-width: 75ch; margin: 6px 0 12px; } .soft { color: var(--soft); }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 4px 20px 18px;
  margin: 18px 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 12px; text-align: right; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
th { color: var(--soft); font-weight: 600; font-size: 14px; } td.best { font-weight: 700; }
.bars { display: grid; grid-template-columns: max-content 1fr max-content; gap: 3px 10px; align-items: center;
  max-width: 760px; }
.bar { height: 13px; border-radius: 3px; background: var(--known); min-width: 1px; }
.bar.new { background: var(--new); } .bar.faint { opacity: .4; height: 7px; }
.bars .value { color: var(--soft); font-size: 14px; font-variant-numeric: tabular-nums; }
.pictures { border-spacing: 0; } .pictures th { text-align: center; padding: 4px; }
.pictures td { border: 0; padding: 3px; text-align: center; }
.pictures img { display: block; width: 132px; height: auto; border-radius: 4px; image-rendering: auto; }
.pictures .note { font-size: 13px; color: var(--soft); }
details { margin: 10px 0; } summary { cursor: pointer; color: var(--soft); }
td.cell { background: color-mix(in srgb, var(--known) var(--share), transparent); }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; } svg .soft { fill: var(--soft); }
"""


class Page:
    """Builds a page section by section, then writes it."""

    def __init__(self, title: str, lead: str) -> None:
        self.title = title
        self._parts = [f"<h1>{escape(title)}</h1><p class=soft>{escape(lead)}</p>"]

    def section(self, title: str, text: str = "") -> None:
        """Start a new section."""
        self._parts.append(f"</section><section><h2>{escape(title)}</h2>")
        if text:
            self.text(text)

    def text(self, text: str) -> None:
        """A paragraph."""
        self._parts.append(f"<p>{escape(text)}</p>")

    def add(self, markup: str) -> None:
        """Markup of the caller's own, an SVG chart for instance; nothing in it is escaped."""
        self._parts.append(markup)

    def details(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table that opens on a click."""
        self._parts.append(f"<details><summary>{escape(title)}</summary>")
        self.table(header, rows)
        self._parts.append("</details>")

    def matrix(self, names: Sequence[str], shares: Sequence[Sequence[float]], corner: str = "") -> None:
        """A square table of shares in percent, the larger the darker."""
        lines = [f"<tr><th>{escape(corner)}</th>" + "".join(f"<th>{escape(name)}</th>" for name in names) + "</tr>"]
        for name, row in zip(names, shares, strict=True):
            cells = "".join(f"<td class=cell style='--share:{share:.0f}%'>{share:.1f}</td>" for share in row)
            lines.append(f"<tr><td>{escape(name)}</td>{cells}</tr>")
        self._parts.append(f"<div class=wide><table>{''.join(lines)}</table></div>")

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]], best: Sequence[int] = ()) -> None:
        """A table; in the columns of ``best`` the largest number is bold."""
        top = {column: max(_number(row[column]) for row in rows) for column in best if rows}
        lines = ["<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in header) + "</tr>"]
        for row in rows:
            cells = [
                f"<td{' class=best' if column in top and _number(cell) == top[column] else ''}>{escape(cell)}</td>"
                for column, cell in enumerate(row)
            ]
            lines.append("<tr>" + "".join(cells) + "</tr>")
        self._parts.append(f"<div class=wide><table>{''.join(lines)}</table></div>")

    def bars(self, values: Mapping[str, tuple[float, float]], new: Sequence[str] = ()) -> None:
        """Two bars per name in percent, the first faint (before) and the second full (after); new ones coloured."""
        lines: list[str] = []
        for name, (before, after) in values.items():
            kind = " new" if name in new else ""
            lines.append(
                f"<div>{escape(name)}</div><div><div class='bar faint{kind}' style='width:{before:.1f}%'></div>"
                f"<div class='bar{kind}' style='width:{after:.1f}%'></div></div>"
                f"<div class=value>{before:.1f} → {after:.1f}</div>"
            )
        self._parts.append(f"<div class=bars>{''.join(lines)}</div>")

    def pictures(self, header: Sequence[str], rows: Sequence[Sequence[np.ndarray]], notes: Sequence[str] = ()) -> None:
        """A grid of pictures (height, width, 3) uint8, one row per example."""
        lines = ["<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in header) + "</tr>"]
        for number, row in enumerate(rows):
            cells = "".join(f"<td><img src='{data_url(picture)}' alt=''></td>" for picture in row)
            note = f"<tr><td class=note colspan={len(header)}>{escape(notes[number])}</td></tr>" if notes else ""
            lines.append(f"<tr>{cells}</tr>{note}")
        self._parts.append(f"<div class=wide><table class=pictures>{''.join(lines)}</table></div>")

    def write(self, path: Path) -> None:
        """Write the page."""
        body = "".join(self._parts).replace("</section>", "", 1)
        page = (
            f"<!doctype html><html lang=en><head><meta charset=utf-8><title>{escape(self.title)}</title>"
            f"<meta name=viewport content='width=device-width,initial-scale=1'><style>{STYLE}</style></head>"
            f"<body><main>{body}</section></main></body></html>"
        )
        with write_atomically(path) as file:
            file.write(page.encode())


def data_url(picture: np.ndarray) -> str:
    """A picture inside the page itself."""
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _number(cell: str) -> float:
    try:
        return float(cell.split()[0])
    except (ValueError, IndexError):
        return float("-inf")
