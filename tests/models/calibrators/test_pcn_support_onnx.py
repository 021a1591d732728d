"""SimilarityMaps outside torch: what is exported gives the same numbers, however ONNX Runtime rearranges it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.methods.cases import BASE, make_episode
from torch import Tensor, nn

from gfss.models.base_model import Features
from gfss.models.calibrators.pcn_support import SupportMemory, build_support_memory, similarity_maps

pytest.importorskip("onnx", reason="the extra 'export' is not installed")
pytest.importorskip("onnxruntime", reason="the extra 'export' is not installed")
pytest.importorskip("onnxscript", reason="the extra 'export' is not installed")

NAMES = ("layer4", "bottleneck")
LEVELS = ["ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"]
Exported = tuple[bytes, list[np.ndarray], list[np.ndarray]]


class Gathering(nn.Module):
    """A query's maps, base scores and shared scores to what support and query say about it."""

    def __init__(self, memory: SupportMemory) -> None:
        super().__init__()
        self.memory = memory

    def forward(self, level: Tensor, bottleneck: Tensor, base: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        found = similarity_maps(self.memory, Features({"layer4": level}, (), bottleneck, base), shared)
        return found.support, found.self_similarity


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Gathering as ONNX, what goes in, and the similarity that torch finds: two novel classes, one query."""
    episode = make_episode(novel=2, queries=1)
    support, query = episode.support, episode.query.features
    memory = build_support_memory(support.features, support.labels, support.novel_labels, NAMES)
    module = Gathering(memory).eval()
    generator = torch.Generator().manual_seed(0)
    shared = (3 * torch.randn(1, BASE + 3, *query.size, generator=generator)).softmax(dim=1)
    given = (query.levels["layer4"], query.bottleneck, query.base, shared)
    path = tmp_path_factory.mktemp("onnx") / "similarity.onnx"
    names = ["level", "bottleneck", "base", "shared"]
    torch.onnx.export(module, given, path, input_names=names, dynamo=True, external_data=False)
    return path.read_bytes(), [one.numpy() for one in given], [one.numpy() for one in module(*given)]


@pytest.mark.parametrize("level", LEVELS)
def test_evidence_is_the_same_in_onnx(exported: Exported, level: str) -> None:
    import onnxruntime

    content, given, expected = exported
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    found = session.run(None, dict(zip((one.name for one in session.get_inputs()), given, strict=True)))
    arrays = [np.asarray(one) for one in found]
    for name, left, right in zip(("support", "self_similarity"), arrays, expected, strict=True):
        assert left.shape == right.shape
        for number in np.ndindex(left.shape[1:-2]):  # classes and maps
            np.testing.assert_allclose(left[0][number], right[0][number], atol=1e-5, err_msg=f"{name} {number}")
