"""Charts as SVG for the HTML report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape

WIDTH, HEIGHT, MARGIN = 560, 400, 44
LEVELS = (20, 30, 40, 50, 60, 70)  # harmonic means whose lines are drawn
LINE_STEPS = 40
LETTER, LINE_HEIGHT = 7.0, 12  # size of a label's letters
RADIUS, GAP = 7, 10  # of a point, and from it to its label

Place = Callable[[float, float], tuple[float, float]]
"""Base and novel IoU as a point of the drawing."""


def balance_chart(points: Mapping[str, tuple[float, float]], highlight: str = "pcn") -> str:
    """Methods by base IoU (across) and novel IoU (up), with lines of equal harmonic mean.

    Args:
        points: name -> (base, novel) in percent.
        highlight: name of the method that is drawn larger.
    """
    top = max([30.0, *(value for point in points.values() for value in point)]) * 1.08

    def place(base: float, novel: float) -> tuple[float, float]:
        across = MARGIN + base / top * (WIDTH - 2 * MARGIN)
        return across, HEIGHT - MARGIN - novel / top * (HEIGHT - 2 * MARGIN)

    parts = [_line(level, top, place) for level in LEVELS if level < top]
    parts += _axes(top, place)
    places = {name: place(*point) for name, point in points.items()}
    labels = label_places(places)
    for name, (x, y) in places.items():
        main = name == highlight
        colour, radius, weight = ("var(--new)", RADIUS, 700) if main else ("var(--known)", 5, 400)
        parts.append(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='{radius}' fill='{colour}'/>")
        left, height = labels[name]
        if abs(height - y) > LINE_HEIGHT:  # too far to be seen as its label
            end = left if left > x else left + LETTER * len(name)
            line = f"x1='{x:.1f}' y1='{y:.1f}' x2='{end:.1f}' y2='{height:.1f}'"
            parts.insert(0, f"<line {line} stroke='var(--soft)' stroke-width='0.5'/>")
        parts.append(f"<text x='{left:.1f}' y='{height + 4:.1f}' font-weight='{weight}'>{escape(name)}</text>")
    return f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' style='max-width:{WIDTH}px;width:100%' role=img>{''.join(parts)}</svg>"


def label_places(points: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """Left end and height of a label for every point: beside it where there is room, else a little higher or lower."""
    taken = [(x - RADIUS, x + RADIUS, y) for x, y in points.values()]  # left, right, height
    labels: dict[str, tuple[float, float]] = {}
    for name, (x, y) in sorted(points.items(), key=lambda item: item[1][1]):
        width = LETTER * len(name)
        sides = [left for left in (x + GAP, x - GAP - width) if left >= 0 and left + width <= WIDTH - MARGIN]
        free = (
            (left, y + shift)
            for shift in sorted(range(-HEIGHT, HEIGHT, 2), key=abs)
            for left in sides or [x - GAP - width]
            if all(
                abs(y + shift - other) >= LINE_HEIGHT or left >= end or start >= left + width
                for start, end, other in taken
            )
        )
        left, height = next(free, (x + GAP, y))
        taken.append((left, left + width, height))
        labels[name] = (left, height)
    return labels


def _line(level: float, top: float, place: Place) -> str:
    """The curve of one harmonic mean H: novel = H base / (2 base - H)."""
    start = max(level * top / (2 * top - level), level / 2 + 1e-6)
    bases = [start + (top - start) * step / LINE_STEPS for step in range(LINE_STEPS + 1)]
    path = " ".join("{:.1f},{:.1f}".format(*place(base, level * base / (2 * base - level))) for base in bases)
    x, y = place(top, level * top / (2 * top - level))
    return (
        f"<polyline points='{path}' fill='none' stroke='var(--line)'/>"
        f"<text class=soft x='{x:.1f}' y='{y:.1f}' dx='2' dy='4'>H {level}</text>"
    )


def _axes(top: float, place: Place) -> list[str]:
    left, bottom = place(0, 0)
    right, upper = place(top, top)
    parts = [f"<path d='M{left:.1f},{upper:.1f}V{bottom:.1f}H{right:.1f}' fill='none' stroke='var(--soft)'/>"]
    for value in range(0, int(top) + 1, 10):
        x, y = place(value, value)
        parts.append(f"<text class=soft x='{x:.1f}' y='{bottom + 16:.1f}' text-anchor='middle'>{value}</text>")
        parts.append(f"<text class=soft x='{left - 6:.1f}' y='{y + 4:.1f}' text-anchor='end'>{value}</text>")
    parts.append(f"<text x='{right:.1f}' y='{bottom + 34:.1f}' text-anchor='end'>base IoU</text>")
    parts.append(f"<text x='{left - 30:.1f}' y='{upper - 12:.1f}'>novel IoU</text>")
    return parts
