"""PCN and its ablations: a calibrator on the scores of another method."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gfss.features.support import Episode, Support
from gfss.methods.base import Method
from gfss.methods.losses import calibration_loss
from gfss.methods.score_fusion import NormalisedScoreFusion
from gfss.models.calibrators.calibrator import Calibrator
from gfss.models.calibrators.support_similarity import (
    SimilarityMaps,
    SupportMemory,
    build_support_memory,
    similarity_maps,
)
from gfss.models.fusion import score_fusion
from gfss.models.pspnet import Features


class Calibrated(Method):
    """A method with the calibrator T on its scores; on NSF this is PCN.

    Lu, He, Li, Song, Xiang: Prediction Calibration for Generalized Few-shot Semantic Segmentation (2022).
    The calibrator is trained on episodes with fake novel classes; scores that are not probabilities yet are
    softmaxed before they enter.
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
    def settings(self) -> dict[str, Any]:
        return self.inner.settings

    def learn(self, support: Support) -> None:
        self.inner.learn(support)
        self.novel = support.novel
        self._support, self._memory = support, None

    def fused(self, query: Features) -> Tensor:
        """Class scores in [0, 1] that enter the calibrator."""
        scores = self.inner.scores(query)
        return scores if self.inner.probabilities else scores.softmax(dim=1)

    def similarity(self, query: Features, fused: Tensor) -> SimilarityMaps:
        """What support and query say.

        Args:
            fused: from :meth:`fused`.
        """
        shared = fused
        if isinstance(self.inner, NormalisedScoreFusion):
            shared = score_fusion(query.base, self.inner.fitter.logits(query)).softmax(dim=1)
        return similarity_maps(self.memory, query, shared)

    @property
    def memory(self) -> SupportMemory:
        """What similarity needs of the support set; not every calibrator asks for it."""
        if self._memory is None:
            support, names = self._support, self.calibrator.options.compared
            self._memory = build_support_memory(support.features, support.labels, support.novel_labels, names)
        return self._memory

    def scores(self, query: Features) -> Tensor:
        self.require_trained()
        fused = self.fused(query)
        similarity = self.similarity(query, fused) if self.calibrator.reads_similarity else None
        return self.calibrator(fused, query, self.novel, similarity)

    def loss(self, episode: Episode) -> tuple[Tensor, Tensor]:
        query = episode.query.features
        with torch.no_grad():
            self.learn(episode.support)
            fused = self.fused(query)
            similarity = self.similarity(query, fused) if self.calibrator.reads_similarity else None
        scores = self.calibrator(fused, query, self.novel, similarity)
        return calibration_loss(scores, episode.query.labels)
