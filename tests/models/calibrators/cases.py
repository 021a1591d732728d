"""Random features, scores, similarity and calibrators for the tests of calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gfss.models.base_model import BINS, Features
from gfss.models.calibrators.calibrator import Calibrator, CalibratorOptions
from gfss.models.calibrators.pcn_support import SimilarityMaps

SIZE = (7, 8)
DEFAULT = CalibratorOptions()
ATTENTION = CalibratorOptions(kind="cross-covariance")  # with class interaction, as by default


def make_features(size: tuple[int, int] = SIZE, dtype: torch.dtype = torch.float64) -> Features:
    """Post-ReLU features of two images: 5 and 6 channels in levels, 3 in each branch, 4 in the bottleneck."""
    generator = torch.Generator().manual_seed(0)

    def maps(channels: int, shape: tuple[int, int]) -> Tensor:
        return torch.randn(2, channels, *shape, generator=generator, dtype=torch.float64).relu().to(dtype)

    levels = {"layer3": maps(5, size), "layer4": maps(6, size)}
    return Features(levels, tuple(maps(3, (n, n)) for n in BINS), maps(4, size), maps(4, size))


def make_scores(
    base: int = 3, novel: int = 1, size: tuple[int, int] = SIZE, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Scores of two images as normalised score fusion gives them."""
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(2, 1 + base + novel, *size, generator=generator, dtype=torch.float64)
    return torch.cat([logits[:, : 1 + base].softmax(dim=1), logits[:, 1 + base :].sigmoid()], dim=1).to(dtype)


def make_similarity(
    base: int = 3, novel: int = 1, maps: int = 3, size: tuple[int, int] = SIZE, dtype: torch.dtype = torch.float64
) -> SimilarityMaps:
    """Similarity maps of two images on ``maps`` feature maps.

    Score fusion sums to one over the classes; nearness, likeness and self-similarity are in [-1, 1], confusion in
    [0, 1].
    """
    generator = torch.Generator().manual_seed(3)

    def maps_of(*shape: int) -> Tensor:
        return torch.rand(2, *shape, *size, generator=generator, dtype=torch.float64)

    classes = 1 + base + novel
    support = maps_of(novel, 2 * maps + 1)
    support[:, :, :-1] = 2 * support[:, :, :-1] - 1
    shared = (6 * maps_of(classes)).softmax(dim=1)
    return SimilarityMaps(shared.to(dtype), support.to(dtype), (2 * maps_of(classes, maps) - 1).to(dtype))


def reorder(similarity: SimilarityMaps, order: Sequence[int]) -> SimilarityMaps:
    """Similarity maps with their classes in another order, novel ones still last."""
    known = similarity.score_fusion.shape[1] - similarity.support.shape[1]
    novel = [label - known for label in order if label >= known]
    return SimilarityMaps(
        similarity.score_fusion[:, order], similarity.support[:, novel], similarity.self_similarity[:, order]
    )


def make_calibrator(options: CalibratorOptions, dtype: torch.dtype = torch.float64) -> Calibrator:
    """A calibrator whose weights are all random: zero layers would hide what comes before them."""
    options = replace(options, dimension=min(options.dimension, 12))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        calibrator = Calibrator(options, SIZE).to(dtype).eval()
    generator = torch.Generator().manual_seed(2)
    for weight in calibrator.parameters():
        noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        weight.data += (0.3 * noise).to(dtype)
    return calibrator
