"""Methods built on a fitted novel classifier: score fusion, NSF, the rules, and PCN with its ablations."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gfss.data.catalog import VOID
from gfss.methods.base import Episode, Method, Support
from gfss.models.calibrator import Calibrator
from gfss.models.descent import convolve
from gfss.models.evidence import Evidence, SupportMemory, gather, remember
from gfss.models.fusion import normalised_score_fusion, score_fusion
from gfss.models.maps import upsample
from gfss.models.novel import (
    NovelClassifier,
    NovelOptions,
    fit_novel,
    initial_weights,
    novel_maps,
    support_labels,
)
from gfss.models.pspnet import Features
from gfss.models.rules import RULES
from gfss.models.thin import ThinLayer, thin


@dataclass
class NovelFitter:
    """Fits novel classifiers; methods that share one fit each support set only once.

    The last support set and the last query are remembered, so that several methods can be examined on the same task
    at the price of one.

    Attributes:
        form: of :func:`fit_novel`; the cheaper one if left out.
    """

    options: NovelOptions = field(default_factory=NovelOptions)
    seed: int = 0
    form: str | None = None
    _support: Support | None = None
    _classifier: NovelClassifier | None = None
    _thin: ThinLayer | None = None
    _query: Features | None = None
    _logits: Tensor | None = None

    def fit(self, support: Support) -> NovelClassifier:
        """The novel classifier of a support set."""
        if self._classifier is None or support is not self._support:
            labels = support_labels(support.labels, support.novel_labels)
            coarse = labels[:, :: self.options.label_stride, :: self.options.label_stride]
            if all((coarse == label).any() for label in range(support.novel + 1)):  # else too thin: take every pixel
                labels = coarse
            maps = novel_maps(support.features, self.options)
            fitted = fit_novel(maps[None], labels[None], support.novel + 1, self.options, self.seed, self.form)
            start = self._start(maps)
            self._thin = thin(fitted.first[0], start)
            self._classifier = replace(fitted, first=self._thin.whole(start)[None])
            self._support, self._query = support, None
        return self._classifier

    def logits(self, query: Features) -> Tensor:
        """Logits of a query under the last classifier: (queries, 1 + novel, h, w)."""
        assert self._classifier is not None
        assert self._thin is not None
        if self._logits is None or query is not self._query:
            maps, begun = novel_maps(query, self.options), self.begun(query)
            self._logits = (
                self._classifier.logits(maps) if begun is None else self._classifier.decide(self._thin(maps, begun))
            )
            self._query = query
        return self._logits

    def begun(self, query: Features) -> Tensor | None:
        """What the first layer says where fitting begins, of features that are kept for many tasks."""

        def first_layer(image: Features) -> Tensor:
            maps = novel_maps(image, self.options)
            return convolve(maps, self._start(maps))

        return query.kept(("novel classifier at the start", self.options, self.seed), first_layer)

    def _start(self, maps: Tensor) -> Tensor:
        """Weights of the first layer where fitting begins; they do not depend on the number of classes."""
        return initial_weights(maps.shape[1], self.options.hidden, 1, self.seed, maps.dtype, maps.device)[0]


class ScoreFusion(Method):
    """Raw base and novel scores side by side: biased to the base classes."""

    name = "score"

    def __init__(self, fitter: NovelFitter) -> None:
        self.fitter = fitter

    def learn(self, support: Support) -> None:
        support.check()
        self.novel = support.novel
        self.fitter.fit(support)

    def fuse(self, query: Features) -> Tensor:
        """Fused scores before calibration."""
        return score_fusion(query.base, self.fitter.logits(query))

    def scores(self, query: Features) -> Tensor:
        return self.fuse(query)


class NormalisedScoreFusion(ScoreFusion):
    """NSF: each classifier's softmax side by side: no base bias any more, but a bias to the novel classes."""

    name = "nsf"
    probabilities = True

    def fuse(self, query: Features) -> Tensor:
        return normalised_score_fusion(query.base, self.fitter.logits(query))


class RuleFusion(NormalisedScoreFusion):
    """NSF followed by a training-free rule."""

    def __init__(self, fitter: NovelFitter, rule: str) -> None:
        super().__init__(fitter)
        self.name = rule  # type: ignore[misc]
        self.rule = RULES[rule]

    def scores(self, query: Features) -> Tensor:
        return self.rule(self.fuse(query), self.novel)


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

    def evidence(self, query: Features, fused: Tensor) -> Evidence:
        """What support and query say.

        Args:
            fused: from :meth:`fused`.
        """
        shared = fused
        if isinstance(self.inner, NormalisedScoreFusion):
            shared = score_fusion(query.base, self.inner.fitter.logits(query)).softmax(dim=1)
        return gather(self.memory, query, shared)

    @property
    def memory(self) -> SupportMemory:
        """What evidence needs of the support set; not every calibrator asks for it."""
        if self._memory is None:
            support, names = self._support, self.calibrator.options.compared
            self._memory = remember(support.features, support.labels, support.novel_labels, names)
        return self._memory

    def scores(self, query: Features) -> Tensor:
        self.require_trained()
        fused = self.fused(query)
        evidence = self.evidence(query, fused) if self.calibrator.reads_evidence else None
        return self.calibrator(fused, query, self.novel, evidence)

    def loss(self, episode: Episode) -> tuple[Tensor, Tensor]:
        query = episode.query.features
        with torch.no_grad():
            self.learn(episode.support)
            fused = self.fused(query)
            evidence = self.evidence(query, fused) if self.calibrator.reads_evidence else None
        scores = self.calibrator(fused, query, self.novel, evidence)
        return calibration_loss(scores, episode.query.labels)


def calibration_loss(
    scores: Tensor, labels: Tensor, novel: int = 0, novel_weight: float = 1.0, overlap: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Cross entropy of upsampled calibrated scores (eq. 9) as (sum, pixels); void ignored.

    Args:
        novel: number of novel classes, last in class order.
        novel_weight: pixels of these count so many times.
        overlap: weight of :func:`missed_overlap`, taken for every pixel of an image.
    """
    target = labels.long()
    full = upsample(scores, (labels.shape[-2], labels.shape[-1]))
    weights = scores.new_ones(scores.shape[1])
    weights[scores.shape[1] - novel :] = novel_weight
    total = F.cross_entropy(full, target, weights, ignore_index=VOID, reduction="sum")
    valid = target != VOID
    if overlap:
        total = total + overlap * (missed_overlap(full, target) * valid.sum(dim=(1, 2))).sum()
    return total, valid.sum()


def missed_overlap(scores: Tensor, labels: Tensor) -> Tensor:
    """One minus the soft IoU of every image, averaged over the classes that it shows (background apart), (batch,).

    A small object counts as much as a large one, as in the per-image metric. 0 for an image that shows no class.

    Args:
        scores: (batch, classes, height, width).
        labels: (batch, height, width), int64.
    """
    classes = torch.arange(1, scores.shape[1], device=scores.device)
    truth = (labels[:, None] == classes[:, None, None]).to(scores.dtype)
    found = scores.softmax(dim=1)[:, 1:] * (labels != VOID)[:, None]
    both = (found * truth).sum(dim=(2, 3))
    size = truth.sum(dim=(2, 3))
    missed = 1 - both / (found.sum(dim=(2, 3)) + size - both).clamp_min(1e-6)
    shown = size > 0
    return (missed * shown).sum(dim=1) / shown.sum(dim=1).clamp_min(1)
