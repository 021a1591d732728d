"""What a model remembers of its support images for its calibrator: saved, forgotten, and as in the harness."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.app import make
from torch import Tensor

import gfss
from gfss.app.network import Knowledge
from gfss.app.segmenter import Segmenter
from gfss.app.support import build_support
from gfss.common.errors import GfssError
from gfss.methods.pcn import Calibrated
from gfss.methods.score_fusion import NormalisedScoreFusion, NovelFitter
from gfss.models.calibrators.options import PRESETS, CalibratorOptions
from gfss.models.calibrators.support_similarity import SupportMemory

READING = {
    "default": make.CALIBRATOR,
    "with attention": replace(PRESETS["pcn-support-attention"], dimension=16),
    "one map": replace(make.CALIBRATOR, compared=("bottleneck",)),
}
OTHER = make.picture(7), np.pad(np.ones((20, 30), dtype=np.uint8), ((14, 14), (17, 17)))
QUERIES = [make.labelled(5)[0], make.labelled(6, 200, 90)[0]]


@pytest.fixture(params=READING)
def model(request: pytest.FixtureRequest) -> Segmenter:
    """An untaught model whose calibrator is far from its start, so that all similarity counts."""
    return Segmenter(make.network(options=READING[request.param], noise=0.2))


def memory(model: Segmenter) -> SupportMemory:
    assert model.knowledge is not None
    assert model.knowledge.memory is not None
    return model.knowledge.memory


def tensors(memory: SupportMemory) -> list[Tensor]:
    """Everything a memory holds."""
    parts = (memory.object, memory.rest, memory.average)
    return [*(one for part in parts for maps in part for one in maps), memory.confusion]


def equal(first: SupportMemory, second: SupportMemory) -> bool:
    """Whether two memories are the same bit for bit."""
    pairs = zip(tensors(first), tensors(second), strict=True)
    return first.features == second.features and all(torch.equal(left, right) for left, right in pairs)


def segmented(model: Segmenter) -> list[np.ndarray]:
    """Probabilities and masks of some images."""
    results = [model.segment(image) for image in QUERIES]
    return [part for result in results for part in (result.scores, result.mask)]


def same(first: list[np.ndarray], second: list[np.ndarray]) -> bool:
    return all(np.array_equal(left, right) for left, right in zip(first, second, strict=True))


def test_a_saved_model_segments_bit_for_bit_alike(model: Segmenter, tmp_path: Path) -> None:
    model.teach("box", *make.labelled(1))
    model.teach("blob", *OTHER)
    model.save(tmp_path / "m")
    again = gfss.load(tmp_path / "m")
    assert equal(memory(again), memory(model))
    assert same(segmented(again), segmented(model))
    again.forget("box")
    model.forget("box")
    assert equal(memory(again), memory(model))
    assert same(segmented(again), segmented(model))


def test_forgetting_restores_what_was_known_bit_for_bit(model: Segmenter) -> None:
    plain = segmented(model)
    model.teach("box", *make.labelled(1))
    kept, first = memory(model), segmented(model)
    model.teach("blob", *OTHER)
    assert memory(model).novel == 2
    model.forget("blob")
    assert equal(memory(model), kept)
    assert same(segmented(model), first)
    model.forget("box")
    assert model.knowledge is None
    assert same(segmented(model), plain)


def test_the_tool_and_the_harness_give_the_same_scores(model: Segmenter) -> None:
    model.teach("box", [make.labelled(1)[0], make.labelled(2)[0]], [make.labelled(1)[1], make.labelled(2)[1]])
    model.teach("blob", *OTHER)
    network = model.network
    assert network.calibrator is not None
    method = Calibrated(NormalisedScoreFusion(NovelFitter(make.NOVEL, form="fast")), network.calibrator, trained=True)
    method.learn(build_support(network, model.taught))
    assert equal(memory(model), method.memory)
    levels = network.levels(make.picture(3, make.SIZE, make.SIZE))
    features = network.features(levels)
    assert torch.equal(network.scores(features, model.knowledge), method.scores(features))


def test_more_support_is_more_memory_and_another_answer(model: Segmenter) -> None:
    model.teach("box", *make.labelled(1))
    before, knowledge = memory(model), model.knowledge
    model.teach("box", *make.labelled(2), add=True)
    after = memory(model)
    assert after.novel == before.novel == 1
    assert len(after.object[0][0]) > len(before.object[0][0])
    assert len(after.rest[0][0]) > len(before.rest[0][0])
    assert knowledge is not None
    square = make.picture(3, make.SIZE, make.SIZE)
    scores = [model.network.score_map(square, Knowledge(knowledge.classifier, one)) for one in (before, after)]
    assert not torch.allclose(*scores, atol=1e-4)  # the classifier is the same, only the memory is not


def test_a_failed_lesson_leaves_the_memory(model: Segmenter) -> None:
    model.teach("box", *make.labelled(1))
    before = model.knowledge
    with pytest.raises(GfssError):
        model.teach("blob", OTHER[0], np.ones_like(OTHER[1]))
    assert model.knowledge is before


@pytest.mark.parametrize("options", [None, replace(PRESETS["pcn-as-printed"], dimension=16), PRESETS["pixel"]])
def test_a_model_that_does_not_look_at_its_support_has_no_memory(options: CalibratorOptions | None) -> None:
    network = make.network(calibrated=options is not None, options=options or make.CALIBRATOR)
    model = Segmenter(network)
    model.teach("box", *make.labelled(1))
    assert model.knowledge is not None
    assert model.knowledge.memory is None
    assert model.segment(QUERIES[0]).scores.shape[0] == 5
