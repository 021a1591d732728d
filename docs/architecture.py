"""Draw the pictures of docs/architecture.md:

python docs/architecture.py
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

FOLDER = Path(__file__).parent / "images"
INK, SOFT, LINE = "#1c2733", "#5b6b7b", "#8a99a8"
GREY, BLUE, ORANGE, GREEN = "#eef1f4", "#dbe8f5", "#fbe5d3", "#dff0e1"

# room, what is inside, colour; top of the list = may import everything below it
ROOMS = [
    ("cli", "the gfss command: parse, call, print", GREY),
    ("server", "web page and REST interface on top of app", ORANGE),
    ("app", "Segmenter: teach, segment, report, model folder, export", ORANGE),
    ("reporting", "tables, figures of the paper, HTML reports", BLUE),
    ("experiments", "specification, recipes, steps, runner, tuning", BLUE),
    ("evaluation", "metrics, protocols, records", BLUE),
    ("training", "stage 1: base model; stage 2: calibrator; checkpoints", BLUE),
    ("methods", "one file per system: learn(support), scores(query)", GREEN),
    ("features", "feature bank, cache, episodes and tasks as tensors", GREEN),
    ("models", "encoders, PSPNet head, novel classifier, fusion, calibrators", GREEN),
    ("data", "data sets, label formats, folds, episodes, validation", GREEN),
    ("common", "errors, files, progress, devices, processes", GREY),
]


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure whose axes are measured in inches and not drawn."""
    figure = Figure(figsize=(width, height), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(0, height))
    axes.set_axis_off()
    return figure, axes


def box(axes: Axes, centre: tuple[float, float], size: tuple[float, float], title: str, text: str, colour: str) -> None:
    """A box with a bold title and a line of text below it."""
    (x, y), (width, height) = centre, size
    shape = FancyBboxPatch(
        (x - width / 2, y - height / 2), width, height, boxstyle="round,pad=0,rounding_size=0.08", fc=colour, ec=LINE
    )
    axes.add_patch(shape)
    lines = text.count("\n") + 1 if text else 0
    top = y + 0.085 * lines
    axes.text(x, top, title, ha="center", va="center", color=INK, fontsize=11, fontweight="bold")
    if text:
        axes.text(x, top - 0.13, text, ha="center", va="top", color=SOFT, fontsize=9, linespacing=1.25)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], text: str = "", bend: float = 0) -> None:
    """An arrow, with a word beside its middle."""
    style = f"arc3,rad={bend}"
    axes.add_patch(
        FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=13, color=LINE, lw=1.4, connectionstyle=style)
    )
    if text:
        middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
        axes.text(*middle, text, ha="center", va="center", color=SOFT, fontsize=8.5, backgroundcolor="white")


def rooms() -> Figure:
    """The folders of src/gfss, in the order of imports."""
    figure, axes = canvas(8.2, 5.6)
    for number, (name, inside, colour) in enumerate(ROOMS):
        y = 5.3 - 0.45 * number
        shape = FancyBboxPatch(
            (0.9, y - 0.18), 7.1, 0.36, boxstyle="round,pad=0,rounding_size=0.06", fc=colour, ec=LINE
        )
        axes.add_patch(shape)
        axes.text(1.05, y, name, va="center", color=INK, fontsize=11, fontweight="bold")
        axes.text(2.55, y, inside, va="center", color=INK, fontsize=10)
    arrow(axes, (0.6, 5.4), (0.6, 0.25))
    axes.text(0.36, 2.85, "imports", rotation=90, ha="center", va="center", color=SOFT, fontsize=10)
    return figure


def data_flow() -> Figure:
    """From image files to tables (above) and to a taught model (below)."""
    figure, axes = canvas(11.4, 5.7)
    row, size = 4.55, (1.85, 0.95)
    research = [
        (1.15, "images + labels", "data/", GREY),
        (3.4, "encoder", "models/encoders/\nfrozen, run once", GREEN),
        (5.65, "feature bank", "features/\non disk", GREEN),
        (7.9, "base model", "training/base.py\nstage 1", BLUE),
        (10.15, "calibrator", "training/episodic.py\nstage 2, on episodes", BLUE),
    ]
    for x, title, text, colour in research:
        box(axes, (x, row), size, title, text, colour)
    for (left, *_), (right, *_) in pairwise(research):
        arrow(axes, (left + 0.93, row), (right - 0.93, row))
    box(axes, (9.0, 2.85), (3.2, 1.0), "method", "methods/\nlearn(support), scores(query)", GREEN)
    arrow(axes, (7.9, row - 0.48), (8.5, 3.36))
    arrow(axes, (10.15, row - 0.48), (9.5, 3.36))
    box(axes, (5.65, 2.85), (1.95, 1.0), "evaluation", "tasks, protocols,\nmetrics", BLUE)
    arrow(axes, (5.65, row - 0.48), (5.65, 3.36), "tasks")
    arrow(axes, (7.38, 2.85), (6.64, 2.85))
    box(axes, (3.4, 2.85), (1.85, 1.0), "records", "results/*.json", GREY)
    arrow(axes, (4.66, 2.85), (4.34, 2.85))
    box(axes, (1.15, 2.85), (1.85, 1.0), "tables, reports", "reporting/", BLUE)
    arrow(axes, (2.46, 2.85), (2.09, 2.85))
    axes.plot([0.2, 11.2], [1.95, 1.95], color=LINE, lw=0.8, ls=":")
    axes.text(0.22, 5.38, "research: gfss run, evaluate, tables, reproduce", color=SOFT, fontsize=10)
    axes.text(0.22, 1.66, "your own images: gfss teach, segment, report", color=SOFT, fontsize=10)
    box(axes, (1.7, 1.05), (2.95, 0.62), "support", "1 to 5 images with masks", GREY)
    box(axes, (1.7, 0.37), (2.95, 0.62), "query", "any image", GREY)
    box(axes, (5.65, 0.71), (3.0, 1.0), "Segmenter", "app/\nteach, segment, report, forget, save", ORANGE)
    box(axes, (9.0, 0.71), (3.2, 1.0), "class map", "the classes it knew\nand the new one", GREY)
    arrow(axes, (3.2, 1.05), (4.13, 0.85), "teach")
    arrow(axes, (3.2, 0.37), (4.13, 0.57), "segment")
    arrow(axes, (7.17, 0.71), (7.38, 0.71))
    arrow(axes, (8.3, 2.34), (6.5, 1.23), "the same method")
    return figure


def main() -> None:
    """Write both pictures."""
    for name, figure in (("rooms", rooms()), ("data-flow", data_flow())):
        figure.savefig(FOLDER / f"{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
