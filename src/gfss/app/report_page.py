"""A report as text and as one HTML file with its pictures inside."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from gfss.data.contact_sheet import class_colours, overlay

if TYPE_CHECKING:
    from gfss.app.report import Change, CurvePoint, Report, Section

MOVES = 12  # lines about pixels that changed hands
STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse;margin:1em 0}td,th{padding:.2em .8em;border-bottom:1px solid #ddd;text-align:right}
td:first-child,th:first-child{text-align:left}.bad{color:#b00;font-weight:600}.good{color:#070}
figure{display:inline-block;margin:0 1em 1em 0}img{height:180px}figcaption{font-size:13px}"""
CHART = (480, 240, 36)  # width, height and margin of the curve


def text_report(report: Report, guard: float) -> str:
    """The report for a terminal."""
    lines = [f"After {report.lesson}:" if report.lesson else "Nothing was taught yet."]
    for section in report.sections:
        lines += ["", f"On {section.title} ({section.images} images), IoU in percent"]
        lines += [f"  {'class':<20}{'before':>8}{'after':>8}{'change':>8}"]
        lines += [f"  {name:<20}{before:>8}{after:>8}{change:>8}" for name, before, after, change in _cells(section)]
        changed = sum(move.share for move in section.moves)
        lines.append(f"  {changed:.1%} of the pixels changed hands")
        lines += [f"    {m.source} -> {m.target}: {m.share:.2%}" for m in section.moves[:MOVES]]
        if section.curve:
            lines += ["  novel bias and mean IoU", f"    {'bias':>5}{'base':>8}{'taught':>8}"]
            lines += [f"    {p.bias:>+5.0f}{_figure(p.base):>8}{_figure(p.taught):>8}" for p in section.curve]
    lines += ["", *(line for line, _ in _verdict(report, guard))]
    return "\n".join(lines)


def html_report(report: Report, guard: float) -> str:
    """The report as one self-contained page."""
    body = [f"<h1>After {html.escape(report.lesson)}</h1>" if report.lesson else "<h1>Nothing was taught yet</h1>"]
    body += [f'<p class="{kind}">{html.escape(line)}</p>' for line, kind in _verdict(report, guard)]
    for section in report.sections:
        body += _section(section, guard, report.least)
    return (
        f'<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>gfss report</title><style>{STYLE}</style>'
        f"<body>{''.join(body)}</body></html>\n"
    )


def _verdict(report: Report, guard: float) -> list[tuple[str, str]]:
    """What was lost, in sentences, each with its kind: bad, good or neither."""
    losses, rare = report.losses(guard), report.too_rare(guard)
    lines = [(f"{loss.doubt()}.", "") for loss in rare]
    if not losses:
        others = "other known class" if rare else "known class"
        return [*lines, (f"No {others} loses more than {guard:g} points.", "good")]
    return lines + [(f"Warning: {loss.sentence()}.", "bad") for loss in losses]


def _cells(section: Section) -> list[tuple[str, str, str, str]]:
    """Name, before, after and change of every class that was there or predicted."""
    cells: list[tuple[str, str, str, str]] = []
    for row in section.seen:
        if not row.known:
            cells.append((row.name, "-", _figure(row.after), "new"))
        elif row.before is None or row.after is None:
            cells.append((row.name, _figure(row.before), _figure(row.after), "-"))
        else:
            cells.append((row.name, _figure(row.before), _figure(row.after), f"{row.after - row.before:+.1f}"))
    return cells


def _section(section: Section, guard: float, least: int) -> list[str]:
    lost = {loss.name for loss in section.losses(guard, least)}
    rows = [_row(cells, "bad" if cells[0] in lost else "") for cells in _cells(section)]
    moves = [_row((f"{m.source} → {m.target}", f"{m.share:.2%}", str(m.pixels))) for m in section.moves[:MOVES]]
    parts = [
        f"<h2>On {html.escape(section.title)} ({section.images} images)</h2>",
        _table(("class", "IoU before", "after", "change"), rows),
        "<h3>Pixels that changed hands</h3>",
        _table(("from → to", "share", "pixels"), moves),
    ]
    if section.curve:
        parts += ["<h3>Balance between known and new classes (novel bias)</h3>", _chart(section.curve)]
    shown = [change for change in section.worst if change.image is not None]
    if shown:
        parts += ["<h3>Where most was lost: image, before, after</h3>", *(_pictures(c, section.names) for c in shown)]
    return parts


def _row(cells: Sequence[str], kind: str = "") -> str:
    return f'<tr class="{kind}">' + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>"


def _table(titles: Sequence[str], rows: Sequence[str]) -> str:
    return "<table><tr>" + "".join(f"<th>{title}</th>" for title in titles) + f"</tr>{''.join(rows)}</table>"


def _pictures(change: Change, names: Sequence[str]) -> str:
    assert change.image is not None
    colours = class_colours(len(names) - 1)
    views = [change.image, *(overlay(change.image, mask, colours) for mask in (change.before, change.after))]
    lost = ", ".join(f"{name} {pixels}" for name, pixels in change.lost.items())
    images = "".join(f'<img alt="" src="{_inline(view)}"> ' for view in views)
    caption = html.escape(f"{change.id}: pixels lost by {lost}")
    return f"<figure>{images}<figcaption>{caption}</figcaption></figure>"


def _inline(picture: np.ndarray) -> str:
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, format="JPEG", quality=85)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _chart(curve: Sequence[CurvePoint]) -> str:
    """Two lines over the bias, as SVG."""
    width, height, margin = CHART
    low, high = curve[0].bias, curve[-1].bias
    drawn: list[str] = []
    for kind, colour in (("base", "#1f77b4"), ("taught", "#d62728")):
        points = [(p.bias, value) for p in curve if (value := getattr(p, kind)) is not None]
        path = " ".join(
            f"{margin + (bias - low) / (high - low) * (width - 2 * margin):.1f},"
            f"{height - margin - value / 100 * (height - 2 * margin):.1f}"
            for bias, value in points
        )
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        if points:
            place = path.split(" ")[-1].split(",")
            drawn.append(f'<text x="{place[0]}" y="{place[1]}" dy="-6" text-anchor="end" fill="{colour}">{kind}</text>')
    axes = (
        f'<path d="M{margin},{margin}V{height - margin}H{width - margin}" fill="none" stroke="#888"/>'
        f'<text x="{margin}" y="{height - 12}">{low:+g}</text>'
        f'<text x="{width - margin}" y="{height - 12}" text-anchor="end">{high:+g}</text>'
        f'<text x="4" y="{margin - 8}">mean IoU, 0 to 100</text>'
    )
    return f'<svg width="{width}" height="{height}" font-size="13">{axes}{"".join(drawn)}</svg>'


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
