"""A report as text and as one HTML file with its images inside."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gfss.common.html import render
from gfss.data.catalog import BACKGROUND, VOID
from gfss.data.images import class_colours, overlay

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gfss.app.report import Change, CurvePoint, Report, Section

MOVES = 12  # lines about pixels that changed class
TEMPLATE = Path(__file__).parent / "templates" / "report.html"


def text_report(report: Report, guard: float) -> str:
    """The report for a terminal."""
    lines = [f"After {report.lesson}:" if report.lesson else "Nothing was taught yet."]
    for section in report.sections:
        lines += ["", f"On {section.title} ({section.images} images), IoU in percent"]
        lines += [f"  {section.note}"] if section.note else []
        lines += [f"  {'class':<20}{'before':>8}{'after':>8}{'change':>8}"]
        lines += [f"  {name:<20}{before:>8}{after:>8}{change:>8}" for name, before, after, change in _cells(section)]
        changed = sum(move.share for move in section.moves)
        lines.append(f"  {changed:.1%} of the pixels changed class")
        lines += [f"    {m.source} -> {m.target}: {m.share:.2%}" for m in section.moves[:MOVES]]
        if section.curve:
            lines += ["  balance moved by, and mean IoU", f"    {'moved':>5}{'base':>8}{'taught':>8}"]
            lines += [f"    {p.balance:>+5.0f}{_figure(p.base):>8}{_figure(p.taught):>8}" for p in section.curve]
    lines += ["", *_recommendation(report), *(line for line, _ in _verdict(report, guard))]
    return "\n".join(lines)


def html_report(report: Report, guard: float) -> str:
    """The report as one self-contained page."""
    sections = [_section(section, guard, report.least) for section in report.sections]
    return render(
        TEMPLATE, report=report, verdict=_verdict(report, guard), sections=sections, advice=_recommendation(report)
    )


def _verdict(report: Report, guard: float) -> list[tuple[str, str]]:
    """What was lost, in sentences, each with its kind: bad, good or neither."""
    losses, rare = report.losses(guard), report.too_rare(guard)
    lines = [(f"{loss.doubt()}.", "") for loss in rare]
    if not losses:
        others = "other known class" if rare else "known class"
        return [*lines, (f"No {others} loses more than {guard:g} points.", "good")]
    return lines + [(f"Warning: {loss.sentence()}.", "bad") for loss in losses]


def _recommendation(report: Report) -> list[str]:
    """The balance that did best on validation images, a sentence per taught class."""
    lines: list[str] = []
    for name, value in report.recommended.items():
        if value == report.balances[name]:
            lines.append(f"The balance of '{name}', {value:+g}, is the best of those compared.")
        else:
            command = f"gfss balance MODEL {shlex.quote(name)} {value:g}"
            lines.append(f"Recommended balance of '{name}' {value:+g}; {command} stores it.")
    return lines


def _cells(section: Section) -> list[tuple[str, str, str, str]]:
    """Name, before, after and change of every class that some label shows."""
    cells: list[tuple[str, str, str, str]] = []
    for row in section.seen:
        if not row.known:
            cells.append((row.name, "-", _figure(row.after), "new"))
        elif row.before is None or row.after is None:
            cells.append((row.name, _figure(row.before), _figure(row.after), "-"))
        else:
            cells.append((row.name, _figure(row.before), _figure(row.after), f"{row.after - row.before:+.1f}"))
    return cells


def _section(section: Section, guard: float, least: int) -> dict[str, Any]:
    """What the template shows of a section."""
    return {
        "title": section.title,
        "images": section.images,
        "note": section.note,
        "rows": _cells(section),
        "lost": {loss.name for loss in section.losses(guard, least)},
        "moves": section.moves[:MOVES],
        "chart": balance_chart(section.curve) if section.curve else None,
        "examples": [_example(change, section.names) for change in section.worst if change.image is not None],
    }


def _example(change: Change, names: Sequence[str]) -> dict[str, Any]:
    """The image, its labels, before and after without the padding, a caption, and the colours of the classes shown."""
    assert change.image is not None
    colours = class_colours(len(names) - 1)
    masks = [mask for mask in (change.truth, change.before, change.after) if mask is not None]
    part = _without_padding(change.image if change.truth is None else change.truth != VOID)
    image, masks = change.image[part], [mask[part] for mask in masks]
    shown = sorted({int(value) for mask in masks for value in np.unique(mask)} - {BACKGROUND, VOID})
    lost = ", ".join(f"{name} {pixels}" for name, pixels in change.lost.items())
    return {
        "views": [image, *(overlay(image, mask, colours) for mask in masks)],
        "caption": f"{change.id}: pixels lost by {lost}",
        "legend": [(names[value], "#{:02x}{:02x}{:02x}".format(*colours[value])) for value in shown],
    }


def _without_padding(content: np.ndarray) -> tuple[slice, slice]:
    """The part of a square image that is not padding at its bottom and right."""
    plane = content.reshape(*content.shape[:2], -1).any(axis=-1)
    rows, columns = np.flatnonzero(np.any(plane, axis=1)), np.flatnonzero(np.any(plane, axis=0))
    return slice(0, int(rows.max(initial=0)) + 1), slice(0, int(columns.max(initial=0)) + 1)


def balance_chart(curve: Sequence[CurvePoint]) -> Figure:
    """Mean IoU of base and of taught classes with the balance moved."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3))
    axes = figure.add_subplot(xlabel="balance moved by", ylabel="mean IoU", ylim=(0, 100))
    for kind, colour in (("base", "#1f77b4"), ("taught", "#d62728")):
        points = [(p.balance, value) for p in curve if (value := getattr(p, kind)) is not None]
        axes.plot([balance for balance, _ in points], [value for _, value in points], color=colour, label=kind)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
