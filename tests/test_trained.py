"""The trained parts that are kept in the repository: intact, belonging together, and usable."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.conftest import REPOSITORY

import gfss
from gfss.methods import Context, build_method
from gfss.training.base_checkpoints import load_base
from gfss.training.method_checkpoints import load_method

FOLDS = [REPOSITORY / "trained" / "pascal-lite0" / f"fold{number}" for number in range(4)]


@pytest.mark.parametrize("fold", FOLDS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_part_loads_on_its_base_model(fold: Path) -> None:
    base = load_base(fold / "base")
    side = base.encoder.map_size(base.card.size)
    methods = [path for path in sorted(fold.iterdir()) if path.name != "base"]
    expected = {f"{name}-1shot" for name in ("pcn-support", "pixel", "acastle", "capl", "denet", "pfenet")}
    expected |= {"pcn-support-5shot", "pixel-5shot"}
    assert expected <= {path.name for path in methods}
    for folder in methods:
        method = build_method(folder.name.rsplit("-", 1)[0], Context(base, (side, side)))
        load_method(folder, method, base.card)
        assert method.trained


def test_a_fold_serves_as_a_model() -> None:
    model = gfss.load(FOLDS[0])
    photo = np.random.default_rng(0).integers(0, 255, (60, 80, 3), dtype=np.uint8)
    assert len(model.classes) == 16
    assert model.segment(photo).mask.shape == (60, 80)
