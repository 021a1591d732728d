"""A figure of images in rows: titles, notes, a legend of classes and a bar of score colours, for print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gfss.common.files import write_atomically
from gfss.reporting.task_images import HEAT_STEPS, heat_colours

CELL = 1.15  # inches
NOTE, TOP, LEGEND = 0.2, 0.24, 0.5
DPI = 300
SMALL, LARGE = 6.5, 7.5  # points


@dataclass(frozen=True)
class Grid:
    """Images in rows.

    Attributes:
        header: over the columns.
        rows: images (height, width, 3) uint8.
        notes: a sentence per row.
        legend: class name -> colour (red, green, blue) in 0..255.
        heat: some images are score maps, so the figure has a bar of their colours.
    """

    header: tuple[str, ...]
    rows: list[list[np.ndarray]]
    notes: list[str]
    legend: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    heat: bool = False

    def save(self, path: Path) -> None:
        """Write the figure: PDF with vector text, or whatever the name ends in, 300 dots per inch."""
        from matplotlib.figure import Figure

        width = max(len(self.header) * CELL, 3.4)
        heights = [row_height(row) for row in self.rows]
        height = TOP + sum(heights) + len(self.rows) * NOTE + (LEGEND if self.legend or self.heat else 0)
        figure = Figure(figsize=(width, height))
        top = height - TOP
        for row, note, tall in zip(self.rows, self.notes, heights, strict=True):
            for column, image in enumerate(row):
                box = (column * CELL / width + 0.004, (top - tall) / height, CELL / width - 0.008, tall / height)
                axes = figure.add_axes(box)
                axes.imshow(image, interpolation="nearest")
                axes.set_axis_off()
            figure.text(0.006, (top - tall - 0.02) / height, note, fontsize=SMALL, color="#334455", va="top")
            top -= tall + NOTE
        for column, title in enumerate(self.header):
            place = ((column + 0.5) * CELL / width, 1 - 0.06 / height)
            figure.text(*place, title, fontsize=LARGE, ha="center", va="top")
        if self.legend:
            self._draw_legend(figure, height)
        if self.heat:
            axes = figure.add_axes((1 - 1.1 / width, 0.26 / height, 1.0 / width, 0.08 / height))
            axes.imshow(heat_colours(np.linspace(0, 1, HEAT_STEPS))[None], aspect="auto", extent=(0, 1, 0, 1))
            axes.set(yticks=[], xticks=[0, 0.5, 1])
            axes.tick_params(labelsize=SMALL, length=1.5, width=0.4, pad=1)
            axes.set_title("score", fontsize=SMALL, pad=2)
        kind = path.suffix.removeprefix(".") or "pdf"
        with write_atomically(path) as file:
            figure.savefig(file, format=kind, dpi=DPI, metadata={"CreationDate": None} if kind == "pdf" else None)

    def _draw_legend(self, figure, height: float) -> None:  # type: ignore[no-untyped-def]
        from matplotlib.patches import Patch

        handles = [
            Patch(color=(colour[0] / 255, colour[1] / 255, colour[2] / 255), label=name)
            for name, colour in self.legend.items()
        ]
        columns = max(1, min(len(handles), int(1.7 * (len(self.header) - self.heat))))
        figure.legend(
            handles=handles, loc="lower left", ncols=columns, fontsize=SMALL, frameon=False, handlelength=0.9,
            handletextpad=0.4, columnspacing=0.9, borderpad=0, bbox_to_anchor=(0.004, 0.02 / height),
        )  # fmt: skip


def row_height(images: Sequence[np.ndarray]) -> float:
    """Inches that the images of a row need, each no wider and no higher than a cell."""
    return CELL * max(min(1.0, image.shape[0] / image.shape[1]) for image in images)
