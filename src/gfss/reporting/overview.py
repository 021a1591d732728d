"""Figure 2 of the paper: the pipeline, drawn with the shapes that the model at hand really has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gfss.common.files import write_atomically
from gfss.data.episodes import shots_in_words, task
from gfss.experiments.experiment import Experiment

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FROZEN, FITTED, TRAINED, DATA = "#e7eef5", "#fdebdc", "#e4f2e6", "#f4f4f2"
INK, LINE = "#22303c", "#7a8a99"


class Shapes(NamedTuple):
    """What flows through the pipeline, in words.

    Attributes:
        image: side of the images.
        levels: encoder levels with their sizes.
        pooled: sizes of the pyramid branches.
        bottleneck: of the map that the base classifier reads.
        base: of y_base.
        novel: of y_novel.
        fused: of y_all.
        hidden: channels inside the novel classifier.
        read: channels that the novel classifier reads.
        parameters: of the calibrator.
    """

    image: int
    levels: str
    pooled: str
    bottleneck: str
    base: str
    novel: str
    fused: str
    hidden: int
    read: int
    parameters: int


@torch.no_grad()
def shapes_of(experiment: Experiment, shots: int, calibrator: str = "pcn") -> Shapes:
    """Run one query of a real task through the model and write down what comes out of every part."""
    source = experiment.val_source
    drawn = task(source.dataset, source.fold, 0, 0, shots)
    support = source.support(drawn, source.fold)
    query = source.store.features([drawn.queries[0]])
    experiment.fitter.fit(support)
    novel = experiment.fitter.logits(query)
    method = experiment.method(calibrator, shots, trained=False)
    assert method.module is not None
    fused = query.base.shape[1] + novel.shape[1] - 1
    height, width = query.size
    return Shapes(
        image=source.store.size,
        levels="\n".join(f"{name}: {_size(level)}" for name, level in query.levels.items()),
        pooled=", ".join(f"{branch.shape[-1]}²" for branch in query.pooled) + f" x {query.pooled[0].shape[1]}",
        bottleneck=_size(query.bottleneck),
        base=_size(query.base),
        novel=_size(novel),
        fused=f"{fused} x {height} x {width}",
        hidden=experiment.recipe.novel.hidden,
        read=query.named(experiment.recipe.novel.features).shape[1],
        parameters=sum(parameter.numel() for parameter in method.module.parameters()),
    )


def draw_overview(experiment: Experiment, shots: int, path: Path) -> None:
    """Write the overview as vector graphics (PDF or SVG, by the name of the file)."""
    from matplotlib.figure import Figure

    shapes, name = shapes_of(experiment, shots), experiment.recipe.encoder
    side = f"3 x {shapes.image} x {shapes.image}"
    figure = Figure(figsize=(9.2, 3.9))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 9.2), ylim=(0, 3.9))
    axes.set_axis_off()
    _box(axes, (0.75, 3.1), (1.25, 0.62), "support", f"{shots_in_words(shots)}, {side}", DATA)
    _box(axes, (0.75, 1.35), (1.25, 0.62), "query", side, DATA)
    _box(axes, (2.4, 2.2), (1.45, 1.15), f"encoder F ({name})", f"{shapes.levels}", FROZEN, frozen=True)
    head = f"pyramid {shapes.pooled}\nbottleneck {shapes.bottleneck}"
    _box(axes, (4.2, 2.2), (1.65, 0.9), "pyramid head", head, FROZEN, frozen=True)
    fitting = (
        f"3 x 3, {shapes.read} to {shapes.hidden}; 1 x 1\nfitted on the support, {experiment.recipe.novel.steps} steps"
    )
    _box(axes, (6.2, 3.25), (1.85, 0.75), "novel classifier $G_{novel}$", fitting, FITTED)
    _box(axes, (6.2, 1.2), (1.85, 0.7), "base classifier $G_{base}$", "1 x 1, trained in stage 1", FROZEN, frozen=True)
    fusion = "softmax of each, background\nfrom $y_{base}$ (eq. 3)"
    _box(axes, (8.2, 2.2), (1.55, 0.8), "NSF", f"{fusion}\n$y_{{all}}$: {shapes.fused}", DATA)
    words = f"feature-score cross-covariance (eq. 4 to 6), {shapes.parameters:,} parameters, trained on episodes"
    _box(axes, (5.4, 0.36), (4.6, 0.5), "calibrator T", words, TRAINED)
    _box(axes, (1.6, 0.36), (1.7, 0.5), "prediction", shapes.fused, DATA)
    for start, end, text in (
        ((1.38, 3.0), (1.66, 2.62), ""),
        ((1.38, 1.45), (1.66, 1.8), ""),
        ((3.13, 2.2), (3.37, 2.2), ""),
        ((5.03, 2.45), (5.27, 3.1), ""),
        ((5.03, 1.95), (5.27, 1.35), ""),
        ((7.13, 3.25), (8.1, 2.62), f"$y_{{novel}}$: {shapes.novel}"),
        ((7.13, 1.2), (8.0, 1.78), f"$y_{{base}}$: {shapes.base}"),
        ((8.6, 1.78), (7.5, 0.62), ""),
        ((4.2, 1.73), (4.6, 0.62), "features"),
        ((3.08, 0.36), (2.47, 0.36), ""),
    ):
        _arrow(axes, start, end, text)
    legend = "dashed: frozen after stage 1    orange: fitted for every task    green: trained on episodes (stage 2)"
    axes.text(9.1, 0.03, legend, fontsize=5.5, color=LINE, ha="right", va="bottom")
    kind = path.suffix.removeprefix(".") or "pdf"
    with write_atomically(path) as file:
        figure.savefig(file, format=kind, dpi=300, metadata={"CreationDate": None} if kind == "pdf" else None)


def _size(tensor: torch.Tensor) -> str:
    """Channels, height and width of a batch of maps."""
    return " x ".join(map(str, tensor.shape[1:]))


def _box(
    axes: Axes, centre: tuple[float, float], size: tuple[float, float], title: str, text: str, colour: str,
    frozen: bool = False,
) -> None:  # fmt: skip
    from matplotlib.patches import FancyBboxPatch

    corner = (centre[0] - size[0] / 2, centre[1] - size[1] / 2)
    look: dict[str, Any] = {"fc": colour, "ec": LINE, "lw": 0.9, "ls": "--" if frozen else "-"}
    axes.add_patch(FancyBboxPatch(corner, *size, boxstyle="round,pad=0,rounding_size=0.05", **look))
    lines = text.count("\n") + 1
    axes.text(
        centre[0], centre[1] + 0.07 * lines, title, ha="center", va="center", fontsize=7.5, color=INK, weight="bold"
    )
    axes.text(centre[0], centre[1] - 0.09, text, ha="center", va="center", fontsize=5.8, color=INK, linespacing=1.25)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], text: str) -> None:
    from matplotlib.patches import FancyArrowPatch

    axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=8, color=LINE, lw=0.9))
    if text:
        middle = ((start[0] + end[0]) / 2 + 0.06, (start[1] + end[1]) / 2)
        axes.text(*middle, text, ha="left", va="center", fontsize=5.8, color=INK)
