"""Charts of the HTML report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVELS = (20, 30, 40, 50, 60, 70)  # harmonic means whose lines are drawn
MARKERS = "osD^v<>ph"


def balance_chart(points: Mapping[str, tuple[float, float]], highlight: str = "pcn-support") -> Figure:
    """Methods by base IoU (across) and novel IoU (up), with lines of equal harmonic mean.

    Args:
        points: name -> (base, novel) in percent.
        highlight: name of the method that is drawn larger.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5))
    axes = figure.add_subplot(
        xlabel="base IoU", ylabel="novel IoU", title="Base and novel IoU, with lines of equal harmonic mean H"
    )
    top = max([30.0, *(value for point in points.values() for value in point)]) * 1.08
    for level in (level for level in LEVELS if level < top):
        base = np.linspace(level * top / (2 * top - level), top, 60)
        axes.plot(base, level * base / (2 * base - level), color="#d5dce4", linewidth=1, zorder=1)
        axes.annotate(f"H {level}", (top, level * top / (2 * top - level)), color="#7a8a99", fontsize=8)
    colours = colormaps["tab20"]
    for number, (name, (base, novel)) in enumerate(points.items()):
        colour, marker, size = colours(number % 20), MARKERS[number % len(MARKERS)], 45
        if name == highlight:
            colour, marker, size = "#d9742b", "*", 220
        axes.scatter(base, novel, s=size, color=colour, marker=marker, label=name, zorder=3)
    axes.set(xlim=(0, top), ylim=(0, top))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper left", bbox_to_anchor=(1.06, 1), frameon=False, fontsize=9, ncols=1 + len(points) // 24)
    return figure
