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
from gfss.reporting.figures import METHODS_OF, Grid, choose, make_figure

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
    recipe = make_recipe(tiny_content(folder / "data", methods=["npf", "nsf", "pcn-support"]))
    run_plan(Plan(recipe, folder / "runs", folder, only="methods"))
    return Experiment(recipe, 0, folder / "runs")


@pytest.mark.parametrize("name", METHODS_OF)
def test_every_figure_is_made_and_saved(name: str, experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gfss.reporting.figures.CANDIDATES", 3)
    grid = make_figure(name, experiment, ["npf", "nsf", "pcn-support"], rows=2)
    assert len(grid.rows) == len(grid.notes) == 2
    assert all(len(row) == len(grid.header) for row in grid.rows)
    assert grid.header[:3] == ("support", "query", "truth")
    expected = {m.upper() for m in METHODS_OF[name]} & {"NPF", "NSF", "PCN"}
    assert expected <= set(grid.header)
    grid.save(tmp_path / "figure.png")
    assert Image.open(tmp_path / "figure.png").width > 180 * len(grid.header)


def test_scores_before_and_after_calibration_are_both_shown(experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gfss.reporting.figures.CANDIDATES", 1)
    grid = make_figure("fig4", experiment, ["nsf", "pcn-support"], rows=1)
    columns = dict(zip(grid.header, grid.rows[0], strict=True))
    assert not np.array_equal(columns["novel score before"], columns["novel score after"])


def test_a_figure_without_its_methods_is_refused(experiment) -> None:
    with pytest.raises(GfssError, match="npf, nsf"):
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
    ("edge", "taken", "reason"),
    [(0.5, 0.9, "partial object"), (0.0, 0.9, "confusable class"), (0.0, 0.1, "intra-class variance")],
)
def test_reasons_of_failures(edge: float, taken: float, reason: str) -> None:
    failure = Failure(TASK, 0, 3.2, edge, "cow", taken, 0.4)
    assert failure.reason == reason
    assert reason in failure.sentence("sheep")
    assert "sheep, IoU 3.2" in failure.sentence("sheep")


def test_the_worst_tasks_are_found(source) -> None:
    tasks = [task(source.dataset, source.fold, 0, i) for i in range(4)]
    found = worst_tasks(source, Background(), tasks, 2)
    assert len(found) == 2
    assert all(failure.iou == 0 and failure.taken_share == 0 for failure in found)
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
    Grid(("one", "two"), [[wide, wide]], ["a note"]).save(tmp_path / "grid.png")
    saved = np.asarray(Image.open(tmp_path / "grid.png"))
    assert (saved[30, 6:180] == 0).all()
    assert (saved[30, -5:] == 255).all()
