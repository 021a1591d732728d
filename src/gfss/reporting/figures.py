"""The paper's figures as grids of images: one row per query, chosen automatically by a stated rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gfss.common.errors import GfssError, unknown
from gfss.data.catalog import VOID
from gfss.data.episodes import Task, task
from gfss.experiments.experiment import Experiment
from gfss.features.episodes import EpisodeSampler, Support
from gfss.methods.base import Method
from gfss.methods.pcn import NormalisedScoreFusion
from gfss.models.base_model import Features
from gfss.models.ops.upsample import class_map
from gfss.reporting.failures import worst_tasks
from gfss.reporting.grid import Grid
from gfss.reporting.paper_tables import printed_name
from gfss.reporting.task_images import NOVEL_COLOUR, TaskView, label_colours, view_task

# methods that a figure shows, in its order; those that the recipe lacks are left out
METHODS_OF: dict[str, tuple[str, ...]] = {
    "fig1": ("nsf", "pcn-support"),
    "fig2": ("nsf", "pcn-support"),
    "fig3": ("denet", "pfenet", "acastle", "capl", "nsf", "pcn-support"),
    "fig4": ("nsf", "pcn-support"),
    "fig5": ("npf-fitted", "nsf"),
    "fig6": ("nsf", "pcn-support"),
}
CANDIDATES = 30  # tasks that the rows of a figure are chosen from
QUERIES = 6  # of each of them
SEEN = 0.03  # share of an image from which it shows the novel class


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

    @property
    def image(self) -> int:
        """Number of the query image in its data set."""
        return self.task.queries[self.query]


def make_figure(
    name: str, experiment: Experiment, methods: Sequence[str], shots: int = 1, seed: int = 0, rows: int = 4
) -> Grid:
    """A figure of the paper that is made of images; figure 2 is drawn by :mod:`gfss.reporting.overview`.

    Args:
        name: ``fig1`` (overconfidence), ``fig3`` (all methods), ``fig4`` (score maps before and after calibration),
            ``fig5`` (NPF and NSF) or ``fig6`` (failure cases).
        methods: names of methods that may be shown.
        rows: how many queries.
    """
    if name not in METHODS_OF or name == "fig2":
        raise unknown("figure of images of the paper", name, [one for one in METHODS_OF if one != "fig2"])
    names = [method for method in METHODS_OF[name] if method in methods]
    if not names:
        raise GfssError(f"{name} shows {', '.join(METHODS_OF[name])}, but the recipe has none of them")
    source = experiment.val_source
    shown = [experiment.method(method, shots) for method in names]
    tasks = [task(source.dataset, source.fold, seed, i, shots) for i in range(CANDIDATES)]
    if name == "fig6":
        chosen = _failures(source, shown[-1], tasks, rows)
    else:
        chosen = choose(source, shown[0], shown[-1], tasks, rows, RULES.get(name, gained))
    heat = NormalisedScoreFusion(experiment.fitter)
    views = [_row(name, source, one, shown, heat) for one in chosen]
    labels = sorted({label for _, view in views for label in view.shown})
    colours, names_of = label_colours(len(source.fold.base)), source.dataset.classes
    legend: dict[str, tuple[int, int, int]] = {"novel class": NOVEL_COLOUR}
    for label in labels:
        red, green, blue = map(int, colours[label])
        legend[names_of[source.fold.base[label - 1] - 1]] = (red, green, blue)
    return Grid(
        tuple(views[0][0]),
        [list(row.values()) for row, _ in views],
        [one.note + _base_note(name, view) for one, (_, view) in zip(chosen, views, strict=True)],
        legend,
        name in WITH_HEAT,
    )


Rule = Callable[[Tensor, Tensor, Tensor, int], tuple[Tensor, str]]


def gained(first: Tensor, last: Tensor, truth: Tensor, base: int) -> tuple[Tensor, str]:
    """Pixels that the last method gets right and the first does not, less the opposite."""
    right = [((predicted == truth) & (truth != VOID)).sum(dim=(1, 2)) for predicted in (first, last)]
    return right[1] - right[0], "{last} gets {share:+.1f} % of the pixels right compared with {first}"


def gained_where_new(first: Tensor, last: Tensor, truth: Tensor, base: int) -> tuple[Tensor, str]:
    """The same in images that show the novel class, as those of base classes alone show only false alarms."""
    rates, words = gained(first, last, truth, base)
    new = ((truth > base) & (truth != VOID)).sum(dim=(1, 2))
    return torch.where(new >= SEEN * (truth != VOID).sum(dim=(1, 2)), rates, 0), words


def overconfident(first: Tensor, last: Tensor, truth: Tensor, base: int) -> tuple[Tensor, str]:
    """Pixels of base objects that the first method gives to the novel class and the last does not."""
    objects = (truth > 0) & (truth <= base)
    taken = [(objects & (predicted > base)).sum(dim=(1, 2)) for predicted in (first, last)]
    return taken[0] - taken[1], "{first} gives {share:.1f} % of the pixels, of base objects, to the novel class"


def opposite(first: Tensor, last: Tensor, truth: Tensor, base: int) -> tuple[Tensor, str]:
    """Novel pixels that the first method loses, and base pixels that the last gives to the novel class: the fewer."""
    known = (truth <= base) & (truth != VOID)
    lost = ((truth > base) & (truth != VOID) & (first <= base)).sum(dim=(1, 2))
    claimed = (known & (last > base)).sum(dim=(1, 2))
    return torch.minimum(lost, claimed), "{first} loses and {last} wrongly claims {share:.1f} % of the pixels or more"


RULES: dict[str, Rule] = {"fig1": overconfident, "fig3": gained_where_new, "fig5": opposite}
WITH_HEAT = ("fig1", "fig4")


@torch.no_grad()
def choose(
    source: EpisodeSampler, first: Method, last: Method, tasks: Sequence[Task], rows: int, rule: Rule = gained
) -> list[Chosen]:
    """The queries that a rule rates highest, novel classes taking turns, best first, no image twice."""
    best: dict[int, list[tuple[int, Chosen]]] = {}
    for drawn in tasks:
        support = source.support(drawn, source.fold)
        images = list(drawn.queries[:QUERIES])
        features = source.store.features(images)
        truth = source.store.labels(images, source.fold.label_table(drawn.novel))
        predicted: list[Tensor] = []
        for method in (first, last):
            method.learn(support)
            predicted.append(class_map(method.scores(features), (truth.shape[-2], truth.shape[-1])))
        rates, words = rule(predicted[0], predicted[1], truth, len(source.fold.base))
        name = source.dataset.classes[drawn.novel[0] - 1]
        for place, rate in enumerate(rates.tolist()):
            share = 100 * rate / max(1, int((truth[place] != VOID).sum()))
            said = words.format(first=printed_name(first.name), last=printed_name(last.name), share=share)
            chosen = Chosen(drawn, place, f"novel class: {name}; {said}")
            best.setdefault(drawn.novel[0], []).append((int(rate), chosen))
    ranked = [sorted(group, key=lambda pair: -pair[0]) for group in best.values()]
    return _in_turns(sorted(ranked, key=lambda group: -group[0][0]), rows)


def _in_turns(ranked: list[list[tuple[int, Chosen]]], rows: int) -> list[Chosen]:
    """The best of every class, then the second best ...; an image that was shown is passed over."""
    taken: dict[int, Chosen] = {}
    while len(taken) < rows:
        before = len(taken)
        for group in ranked:
            fresh = next((one for _, one in group if one.image not in taken), None)
            if fresh is not None and len(taken) < rows:
                taken[fresh.image] = fresh
        if len(taken) == before:
            break
    return list(taken.values())


def _failures(source: EpisodeSampler, method: Method, tasks: Sequence[Task], rows: int) -> list[Chosen]:
    names, found = source.dataset.classes, worst_tasks(source, method, tasks, rows)
    return [Chosen(one.task, one.query, one.sentence(names[one.task.novel[0] - 1])) for one in found]


def _row(
    figure: str, source: EpisodeSampler, one: Chosen, shown: Sequence[Method], heat: Method
) -> tuple[dict[str, np.ndarray], TaskView]:
    """The images of one row by column title."""
    view = view_task(source, one.task, one.query, shown, heat)
    row = {"support": view.support, "query": view.query, "truth": view.truth}
    predictions = {printed_name(name): image for name, image in view.predictions.items()}
    if figure == "fig1":
        return row | _heats(view, "") | predictions, view
    if figure == "fig4":
        after = view_task(source, one.task, one.query, [], Probabilities(shown[-1]))
        return row | _heats(view, " before") | _heats(after, " after") | predictions, view
    return row | predictions, view


def _heats(view: TaskView, when: str) -> dict[str, np.ndarray]:
    return {f"base score{when}": view.base_heat, f"novel score{when}": view.novel_heat}


def _base_note(figure: str, view: TaskView) -> str:
    return f"; base score: {view.base_name}" if figure in WITH_HEAT else ""
