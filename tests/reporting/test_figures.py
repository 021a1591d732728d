"""Figures from a tiny run, the reasons of failures, and confusion between groups."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.evaluation.trivial import Background
from tests.experiments.tiny_recipe import tiny_content
from tests.training.tiny import make_source

from gfss.common.errors import GfssError
from gfss.data.episodes import Task, task
from gfss.evaluation.confusion import group_confusion
from gfss.methods.trivial import BaseOnly
from gfss.reporting.failures import Failure, edge_share, worst_tasks
from gfss.reporting.figures import METHODS_OF, choose, gained, make_figure, opposite, overconfident
from gfss.reporting.grid import Grid
from gfss.reporting.overview import draw_overview, shapes_of
from gfss.reporting.paper_tables import printed_name

TASK = Task((1,), ((0,),), (1, 2))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory):
    return make_source(tmp_path_factory.mktemp("figures"), keep=True)


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory):
    from gfss.experiments.experiment import Experiment
    from gfss.experiments.recipes import make_recipe
    from gfss.experiments.runner import run_plan
    from gfss.experiments.steps import Plan

    folder = tmp_path_factory.mktemp("figure models")
    recipe = make_recipe(tiny_content(folder / "data", methods=["npf-fitted", "nsf", "pcn-support"]))
    run_plan(Plan(recipe, folder / "runs", folder, only="methods"))
    return Experiment(recipe, 0, folder / "runs")


@pytest.mark.parametrize("name", [name for name in METHODS_OF if name != "fig2"])
@pytest.mark.parametrize("kind", ["png", "pdf"])
def test_every_figure_is_made_and_saved(
    name: str, kind: str, experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gfss.reporting.figures.CANDIDATES", 3)
    grid = make_figure(name, experiment, ["npf-fitted", "nsf", "pcn-support"], rows=2)
    assert len(grid.rows) == len(grid.notes) == 2
    assert all(len(row) == len(grid.header) for row in grid.rows)
    assert grid.header[:3] == ("support", "query", "truth")
    expected = {printed_name(m) for m in METHODS_OF[name] if m in ("npf-fitted", "nsf", "pcn-support")}
    assert expected <= set(grid.header)
    assert next(iter(grid.legend)) == "novel class"
    assert grid.heat == any("score" in title for title in grid.header)
    assert all(("base score: " in note) == grid.heat for note in grid.notes)
    path = tmp_path / f"figure.{kind}"
    grid.save(path)
    if kind == "png":
        assert Image.open(path).width >= 300 * len(grid.header)  # 300 dpi, more than an inch each
    else:
        assert path.read_bytes().startswith(b"%PDF")


def test_no_image_is_shown_twice(experiment) -> None:
    source = experiment.val_source
    tasks = [task(source.dataset, source.fold, 0, i) for i in range(6)]
    for rule in (gained, overconfident, opposite):
        chosen = choose(source, Background(), BaseOnly(), tasks, 5, rule)
        assert len({one.image for one in chosen}) == len(chosen) == 5
    worst = worst_tasks(source, Background(), tasks, 5)
    assert len({one.task.queries[one.query] for one in worst}) == 5
    assert len({one.task.novel for one in worst[:2]}) == 2  # the novel classes take turns


def test_rules_count_the_pixels_that_they_name() -> None:
    truth = torch.tensor([[[0, 1, 1, 3, 3, 255]]])  # two base classes, label 3 is novel
    first, last = torch.tensor([[[0, 3, 3, 3, 0, 3]]]), torch.tensor([[[3, 3, 1, 3, 3, 3]]])
    assert overconfident(first, last, truth, 2)[0].tolist() == [1]  # two base pixels taken, then one
    assert gained(first, last, truth, 2)[0].tolist() == [1]
    assert opposite(first, last, truth, 2)[0].tolist() == [1]  # one lost, two claimed


def test_the_overview_has_the_shapes_of_the_model(experiment, tmp_path: Path) -> None:
    shapes = shapes_of(experiment, 1)
    base = len(experiment.classes.base)
    side = experiment.model.encoder.map_size(33)
    assert shapes.base == f"{base + 1} x {side} x {side}"
    assert shapes.novel == f"2 x {side} x {side}"
    assert shapes.fused == f"{base + 2} x {side} x {side}"
    draw_overview(experiment, 1, tmp_path / "overview.svg")
    text = (tmp_path / "overview.svg").read_text()
    assert f"{base + 2} x {side} x {side}" in text


def test_scores_before_and_after_calibration_are_both_shown(experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gfss.reporting.figures.CANDIDATES", 1)
    grid = make_figure("fig4", experiment, ["nsf", "pcn-support"], rows=1)
    columns = dict(zip(grid.header, grid.rows[0], strict=True))
    assert not np.array_equal(columns["novel score before"], columns["novel score after"])


def test_a_figure_without_its_methods_is_refused(experiment) -> None:
    with pytest.raises(GfssError, match="npf-fitted, nsf"):
        make_figure("fig5", experiment, ["pcn-support"])
    with pytest.raises(GfssError, match="did you mean 'fig1'"):
        make_figure("fig11", experiment, ["nsf"])


def test_rows_are_where_the_methods_differ_most(source) -> None:
    tasks = [task(source.dataset, source.fold, 0, i) for i in range(4)]
    chosen = choose(source, Background(), Background(), tasks, 3)
    assert len({one.task.novel for one in chosen[:2]}) == 2  # the novel classes take turns
    assert all("+0.0 %" in one.note for one in chosen)


def test_an_object_at_the_edge_is_cut_off() -> None:
    inside = torch.ones(20, 20, dtype=torch.bool)
    middle, corner = torch.zeros(2, 20, 20, dtype=torch.bool)
    middle[5:15, 5:15] = True
    corner[:10, :10] = True
    assert edge_share(middle, inside) == 0
    assert edge_share(corner, inside) == pytest.approx(19 / 36)


@pytest.mark.parametrize(
    ("missed", "confused", "flooded", "words"),
    [
        (80, 10, 30, "missed (80 % of the object seen as background"),
        (10, 80, 30, "confused (80 % of the object seen as cow"),
        (40, 30, 250, "flooded (2.5 times the object's area wrongly claimed"),
    ],
)
def test_reasons_of_failures(missed: int, confused: int, flooded: int, words: str) -> None:
    failure = Failure(TASK, 0, 3.2, missed, confused, "cow", flooded, 100, 0.1, 0.4)
    assert failure.sentence("sheep").startswith(f"sheep, IoU 3.2: {words}")


def test_the_worst_tasks_are_found(source) -> None:
    tasks = [task(source.dataset, source.fold, 0, i) for i in range(4)]
    found = worst_tasks(source, Background(), tasks, 2)
    assert len(found) == 2
    assert all((failure.iou, failure.reason, failure.missed) == (0, "missed", failure.area) for failure in found)
    taken = worst_tasks(source, BaseOnly(), tasks, 4)
    assert any(failure.taken_by for failure in taken)
    assert all(-1 <= failure.similarity <= 1.001 for failure in taken)


def test_confusion_of_methods_that_see_one_thing(source) -> None:
    tasks = [task(source.dataset, source.fold, 0, i) for i in range(2)]
    shares = group_confusion(source, [Background(), BaseOnly()], tasks)
    assert shares["background"] == [[100.0, 0.0, 0.0]] * 3
    assert all(sum(row) == pytest.approx(100) and row[2] == 0 for row in shares["base"])


def test_a_grid_keeps_pictures_inside_their_cells(tmp_path: Path) -> None:
    wide = np.zeros((50, 400, 3), dtype=np.uint8)
    Grid(("one", "two", "three"), [[wide, wide, wide]], [""]).save(tmp_path / "grid.png")
    saved = np.asarray(Image.open(tmp_path / "grid.png").convert("L"))
    assert saved.shape[0] < 300 * 0.7  # the row is as high as its images
    middle = saved[int(300 * (0.24 + 1.15 / 8 / 2))]  # below the titles, in the middle of the row
    edges = np.flatnonzero(np.diff((middle < 128).astype(int)))
    assert len(edges) == 6  # three images, with room between them
