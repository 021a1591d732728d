"""PCN, the paper's system, and pcn-support, ours: a calibrator on normalised score fusion, or on any other method."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gfss.features.episodes import Episode, Support
from gfss.methods.base import Method
from gfss.methods.losses import calibration_loss
from gfss.methods.score_fusion import NormalisedScoreFusion, normalised_score_fusion, score_fusion
from gfss.models.base_model import Features
from gfss.models.calibrators.calibrator import Calibrator
from gfss.models.calibrators.pcn_support import (
    SimilarityMaps,
    SupportMemory,
    build_support_memory,
    similarity_maps,
)


def pcn_scores(query: Features, novel: Tensor, calibrator: Calibrator, memory: SupportMemory | None) -> Tensor:
    """PCN's inference: normalised score fusion, then the calibrator; (queries, background + base + novel, h, w).

    Args:
        query: features of the images to segment.
        novel: logits of the novel classifier, (queries, 1 + novel, h, w).
        memory: of the support, where the calibrator reads similarity maps (``pcn-support``).
    """
    fused = normalised_score_fusion(query.base, novel)  # eq. 3
    similarity = None
    if calibrator.reads_similarity and memory is not None:
        similarity = similarity_maps(memory, query, score_fusion(query.base, novel).softmax(dim=1))
    return calibrator(fused, query, novel.shape[1] - 1, similarity)  # eq. 4 to 6


class Calibrated(Method):
    """A method with a calibrator on its scores; on NSF this is PCN (``pcn``) or ours (``pcn-support``).

    Lu, He, Li, Song, Xiang: Prediction Calibration for Generalized Few-shot Semantic Segmentation (2022),
    https://arxiv.org/abs/2210.08290. NSF is biased to the novel classes, since each classifier's softmax sums to one by
    itself. A calibrator, trained on episodes whose fake novel classes are base classes, moves the fused scores back.
    Scores that are not probabilities yet are softmaxed before they enter.

        fused   (queries, background + base + novel, h, w)   in [0, 1]
        scores  likewise; their softmax are the calibrated probabilities
    """

    def __init__(self, inner: Method, calibrator: Calibrator, name: str | None = None, trained: bool = False) -> None:
        self.inner = inner
        self.name = name or f"{inner.name}+T"  # type: ignore[misc]
        self.module = calibrator
        self.calibrator = calibrator
        self.trained = trained
        self.novel = 0
        self._memory: SupportMemory | None = None

    @property
    def reads_images(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What it stands on may want to see images."""
        return self.inner.reads_images

    def show(self, images: Tensor) -> None:
        self.inner.show(images)

    @property
    def settings(self) -> dict[str, Any]:
        return self.inner.settings

    def learn(self, support: Support) -> None:
        self.inner.learn(support)
        self.novel = support.novel
        self._support, self._memory = support, None

    def scores(self, query: Features) -> Tensor:
        self.require_trained()
        return self._calibrate(query)

    def loss(self, episode: Episode) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            self.learn(episode.support)
        return calibration_loss(self._calibrate(episode.query.features), episode.query.labels)

    def fused(self, query: Features) -> Tensor:
        """Class scores in [0, 1] that enter the calibrator."""
        scores = self.inner.scores(query)
        return scores if self.inner.probabilities else scores.softmax(dim=1)

    def similarity(self, query: Features, fused: Tensor) -> SimilarityMaps:
        """Similarity of queries to the support and to themselves.

        Args:
            fused: from :meth:`fused`.
        """
        one_softmax = fused
        if isinstance(self.inner, NormalisedScoreFusion):
            one_softmax = score_fusion(query.base, self.inner.fitter.logits(query)).softmax(dim=1)
        return similarity_maps(self.memory, query, one_softmax)

    @property
    def memory(self) -> SupportMemory:
        """What similarity maps need of the support set; not every calibrator reads them."""
        if self._memory is None:
            support, names = self._support, self.calibrator.options.compared
            self._memory = build_support_memory(support.features, support.labels, support.novel_labels, names)
        return self._memory

    def _calibrate(self, query: Features) -> Tensor:
        memory = self.memory if self.calibrator.reads_similarity else None
        if type(self.inner) is NormalisedScoreFusion:
            with torch.no_grad():
                novel = self.inner.fitter.logits(query)
            return pcn_scores(query, novel, self.calibrator, memory)
        with torch.no_grad():
            fused = self.fused(query)
            similarity = None if memory is None else self.similarity(query, fused)
        return self.calibrator(fused, query, self.novel, similarity)
