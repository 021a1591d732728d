"""The paper's figures as grids of images: one row per query, chosen automatically by a stated rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont, ImageOps
from torch import Tensor

from gfss.common.errors import GfssError, unknown
from gfss.common.files import write_atomically
from gfss.data.catalog import VOID
from gfss.data.episodes import Task, task
from gfss.experiments.experiment import Experiment
from gfss.features.sampler import EpisodeSampler
from gfss.features.support import Support
from gfss.methods.base import Method
from gfss.methods.score_fusion import NormalisedScoreFusion
from gfss.models.ops.upsample import class_map
from gfss.models.pspnet import Features
from gfss.reporting.failures import worst_tasks
from gfss.reporting.task_images import TaskView, view_task

# methods that a figure shows, in its order; those that the recipe lacks are left out
METHODS_OF: dict[str, tuple[str, ...]] = {
    "fig1": ("nsf", "pcn-support"),
    "fig2": ("nsf", "pcn-support"),
    "fig3": ("denet", "pfenet", "acastle", "capl", "nsf", "pcn-support"),
    "fig4": ("nsf", "pcn-support"),
    "fig5": ("npf", "nsf"),
    "fig6": ("nsf", "pcn-support"),
}
CANDIDATES = 30  # tasks that the rows of a figure are chosen from
CELL, GAP, TITLE, NOTE = 180, 6, 22, 18  # pixels of a saved figure


@dataclass(frozen=True)
class Grid:
    """Images in rows.

    Attributes:
        header: over the columns.
        rows: images (height, width, 3) uint8.
        notes: a sentence per row.
    """

    header: tuple[str, ...]
    rows: list[list[np.ndarray]]
    notes: list[str]

    def save(self, path: Path) -> None:
        """Write the grid as one PNG."""
        row_height = CELL + NOTE + GAP
        canvas = Image.new("RGB", (len(self.header) * (CELL + GAP) + GAP, TITLE + len(self.rows) * row_height), "white")
        draw, font = ImageDraw.Draw(canvas), ImageFont.load_default(13)
        for column, name in enumerate(self.header):
            draw.text((GAP + column * (CELL + GAP), 3), name, fill="black", font=font)
        for number, (row, note) in enumerate(zip(self.rows, self.notes, strict=True)):
            top = TITLE + number * row_height
            for column, image in enumerate(row):
                canvas.paste(ImageOps.contain(Image.fromarray(image), (CELL, CELL)), (GAP + column * (CELL + GAP), top))
            draw.text((GAP, top + CELL), note, fill="#445566", font=font)
        with write_atomically(path) as file:
            canvas.save(file, format="PNG")


class Probabilities(Method):
    """A method whose scores are softmaxed, for heat maps of calibrated scores."""

    def __init__(self, inner: Method) -> None:
        self.inner = inner
        self.name = inner.name  # type: ignore[misc]

    def learn(self, support: Support) -> None:
        self.inner.learn(support)

    def scores(self, query: Features) -> Tensor:
        return self.inner.scores(query).softmax(dim=1)


@dataclass(frozen=True)
class Chosen:
    """A query of a task, and why it is shown."""

    task: Task
    query: int
    note: str


def make_figure(
    name: str, experiment: Experiment, methods: Sequence[str], shots: int = 1, seed: int = 0, rows: int = 4
) -> Grid:
    """A figure of the paper.

    Args:
        name: ``fig1`` (overconfidence), ``fig2`` (the pipeline), ``fig3`` (all methods), ``fig4`` (score maps before
            and after calibration), ``fig5`` (NPF and NSF) or ``fig6`` (failure cases).
        methods: names of methods that may be shown.
        rows: how many queries.
    """
    if name not in METHODS_OF:
        raise unknown("figure of the paper", name, METHODS_OF)
    names = [method for method in METHODS_OF[name] if method in methods]
    if not names:
        raise GfssError(f"{name} shows {', '.join(METHODS_OF[name])}, but the recipe has none of them")
    source = experiment.val_source
    shown = [experiment.method(method, shots) for method in names]
    tasks = [task(source.dataset, source.fold, seed, i, shots) for i in range(CANDIDATES)]
    if name == "fig6":
        chosen = _failures(source, shown[-1], tasks, rows)
    else:
        chosen = choose(source, shown[0], shown[-1], tasks, rows)
    heat = NormalisedScoreFusion(experiment.fitter)
    images = [_row(name, source, one, shown, heat) for one in chosen]
    return Grid(tuple(images[0]), [list(row.values()) for row in images], [one.note for one in chosen])


@torch.no_grad()
def choose(source: EpisodeSampler, first: Method, last: Method, tasks: Sequence[Task], rows: int) -> list[Chosen]:
    """The queries in which two methods differ most in right pixels, best gain first, novel classes taking turns."""
    best: dict[int, list[tuple[int, Chosen]]] = {}
    for drawn in tasks:
        support = source.support(drawn, source.fold)
        images = list(drawn.queries[:6])
        features = source.store.features(images)
        truth = source.store.labels(images, source.fold.label_table(drawn.novel))
        right: list[Tensor] = []
        for method in (first, last):
            method.learn(support)
            predicted = class_map(method.scores(features), (truth.shape[-2], truth.shape[-1]))
            right.append(((predicted == truth) & (truth != VOID)).sum(dim=(1, 2)))
        gains = right[1] - right[0]
        place = int(gains.argmax())
        share = 100 * int(gains[place]) / max(1, int((truth[place] != VOID).sum()))
        name = source.dataset.classes[drawn.novel[0] - 1]
        note = f"new class: {name}; {last.name} gets {share:+.1f} % of the pixels right compared with {first.name}"
        best.setdefault(drawn.novel[0], []).append((int(gains[place]), Chosen(drawn, place, note)))
    ranked = [sorted(group, key=lambda pair: -pair[0]) for group in best.values()]
    turns = [group[turn] for turn in range(max(map(len, ranked))) for group in ranked if turn < len(group)]
    return [one for _, one in turns[:rows]]


def _failures(source: EpisodeSampler, method: Method, tasks: Sequence[Task], rows: int) -> list[Chosen]:
    names, found = source.dataset.classes, worst_tasks(source, method, tasks, rows)
    return [Chosen(one.task, one.query, one.sentence(names[one.task.novel[0] - 1])) for one in found]


def _row(
    figure: str, source: EpisodeSampler, one: Chosen, shown: Sequence[Method], heat: Method
) -> dict[str, np.ndarray]:
    """The images of one row by column title."""
    view = view_task(source, one.task, one.query, shown, heat)
    row = {"support": view.support, "query": view.query, "truth": view.truth}
    predictions = {name.upper(): image for name, image in view.predictions.items()}
    if figure in ("fig1", "fig2"):
        return row | _heats(view, "") | predictions
    if figure == "fig4":
        after = view_task(source, one.task, one.query, [], Probabilities(shown[-1]))
        return row | _heats(view, " before") | _heats(after, " after") | predictions
    return row | predictions


def _heats(view: TaskView, when: str) -> dict[str, np.ndarray]:
    return {f"base score{when}": view.base_heat, f"novel score{when}": view.novel_heat}
