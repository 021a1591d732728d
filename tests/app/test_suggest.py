"""Which image to label next."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from tests.app import make

from gfss.app.segmenter import Segmenter
from gfss.app.suggest import doubt


@pytest.fixture(scope="module")
def taught() -> Segmenter:
    model = make.model()
    model.teach("box", *make.labelled(1))
    return model


def test_doubt_is_one_for_ignorance_and_zero_for_certainty() -> None:
    assert doubt(torch.zeros(4, 5, 5)) == pytest.approx(1)
    sure = torch.zeros(4, 5, 5)
    sure[2] = 100
    assert doubt(sure) == pytest.approx(0, abs=1e-6)


def test_copies_and_supports_come_last(taught: Segmenter, tmp_path: Path) -> None:
    pictures = {"support": make.labelled(1)[0], **{f"new{seed}": make.picture(20 + seed) for seed in range(3)}}
    pictures["copy"] = pictures["new0"]
    for name, pixels in pictures.items():
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
    ranked = taught.suggest(tmp_path)
    names = [one.path.stem for one in ranked]
    assert sorted(names) == sorted(pictures)
    assert {"support", names[max(names.index("copy"), names.index("new0"))]} == set(names[-2:])
    assert [one.value for one in ranked] == sorted((one.value for one in ranked), reverse=True)
    assert ranked == taught.suggest([tmp_path / "*.png"])
