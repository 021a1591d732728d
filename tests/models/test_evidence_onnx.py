"""Evidence outside torch: the exported comparison gives the same numbers, however ONNX Runtime rearranges it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.methods.cases import make_episode
from torch import Tensor, nn

from gfss.models.evidence import SupportMemory, compare, remember
from gfss.models.pspnet import Features

pytest.importorskip("onnx", reason="the extra 'export' is not installed")
pytest.importorskip("onnxruntime", reason="the extra 'export' is not installed")
pytest.importorskip("onnxscript", reason="the extra 'export' is not installed")

NAMES = ("layer4", "bottleneck")
LEVELS = ["ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"]


class Comparison(nn.Module):
    """A query's maps and base scores to its evidence."""

    def __init__(self, memory: SupportMemory) -> None:
        super().__init__()
        self.memory = memory

    def forward(self, level: Tensor, bottleneck: Tensor, base: Tensor) -> Tensor:
        return compare(self.memory, Features({"layer4": level}, (), bottleneck, base))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[np.ndarray], np.ndarray]:
    """A comparison as ONNX, what goes in, and the evidence that torch finds: two novel classes, one query."""
    episode = make_episode(novel=2, queries=1)
    support, query = episode.support, episode.query.features
    memory = remember(support.features, support.labels, support.novel_labels, NAMES)
    module = Comparison(memory).eval()
    given = (query.levels["layer4"], query.bottleneck, query.base)
    path = tmp_path_factory.mktemp("onnx") / "evidence.onnx"
    torch.onnx.export(
        module, given, path, input_names=["level", "bottleneck", "base"], dynamo=True, external_data=False
    )
    return path.read_bytes(), [one.numpy() for one in given], module(*given).numpy()


@pytest.mark.parametrize("level", LEVELS)
def test_evidence_is_the_same_in_onnx(exported: tuple[bytes, list[np.ndarray], np.ndarray], level: str) -> None:
    import onnxruntime

    content, given, expected = exported
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, dict(zip((one.name for one in session.get_inputs()), given, strict=True)))
    for number, (left, right) in enumerate(zip(found.swapaxes(0, 2), expected.swapaxes(0, 2), strict=True)):
        np.testing.assert_allclose(left, right, atol=1e-5, err_msg=f"evidence map {number}")
