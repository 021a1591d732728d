"""The checkpoints that are kept in the repository: intact, belonging together, and usable."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.conftest import REPOSITORY

import gfss
from gfss.experiments.experiment import Experiment
from gfss.experiments.recipes import read_recipe
from gfss.experiments.storage import stored_artifacts

TRAINED = REPOSITORY / "trained"
METHODS = [("pcn-support", 1), ("pcn-support", 5), ("acastle", 1), ("capl", 1), ("denet", 1), ("pfenet", 1)]


@pytest.mark.parametrize("fold", range(4))
def test_every_method_loads_on_its_base_model(fold: int) -> None:
    experiment = Experiment(read_recipe("frozen/pascal-lite0"), fold, TRAINED)
    for name, shots in METHODS:
        assert experiment.method(name, shots).trained


def test_everything_is_complete_and_parents_are_there_but_for_held_out_models() -> None:
    found = stored_artifacts(TRAINED)
    assert len(found) == 44
    assert all(one.is_complete for one in found)
    there = {one.identity for one in found}
    assert all(there & set(one.parents) for one in found if one.kind == "method")


def test_a_method_serves_as_a_model() -> None:
    folder = next(Path(TRAINED / "method").glob("pascal-fold0-lite0-pcn-support-1shot-*"))
    model = gfss.load(folder)
    photo = np.random.default_rng(0).integers(0, 255, (60, 80, 3), dtype=np.uint8)
    assert len(model.classes) == 16
    assert model.segment(photo).mask.shape == (60, 80)
