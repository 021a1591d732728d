"""PCN from its fusion to its calibrator: the paper's system (``pcn``), ours (``pcn-support``), and both without one.

Fusion makes one set of scores of base and novel scores; a calibrator, trained on episodes, moves these. Class order of
the result: background, base classes, novel classes. The novel classifier's own "none" output is dropped: the base model
already says what is background. The rules are calibration without training, the bar that a learned calibrator has to
clear: they take NSF scores (batch, background + base + novel, h, w) and the number of novel classes, and return scores
of the same shape.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gfss.features.episodes import Episode, Support
from gfss.methods.base import Method
from gfss.methods.losses import calibration_loss
from gfss.models.base_model import Features
from gfss.models.calibrators.calibrator import Calibrator
from gfss.models.calibrators.pcn_support import (
    SimilarityMaps,
    SupportMemory,
    build_support_memory,
    similarity_maps,
)
from gfss.models.novel.classifier import (
    Form,
    NovelClassifier,
    NovelOptions,
    convolve,
    fit_novel,
    initial_weights,
    novel_maps,
    support_labels,
)
from gfss.models.novel.low_rank import LowRankLayer, low_rank

EPSILON = 1e-6


def score_fusion(base: Tensor, novel: Tensor) -> Tensor:
    """Raw scores side by side.

    Args:
        base: base logits (batch, base + 1, h, w).
        novel: logits of the novel classifier (batch, 1 + new, h, w), "none" first.

    Returns:
        (batch, base + 1 + new, h, w).
    """
    return torch.cat([base, novel[:, 1:]], dim=1)


def normalised_score_fusion(base: Tensor, novel: Tensor) -> Tensor:
    """NSF, eq. 3: each classifier's softmax, side by side; shapes as in :func:`score_fusion`."""
    return torch.cat([base.softmax(dim=1), novel.softmax(dim=1)[:, 1:]], dim=1)


def normalised_parameter_fusion(bottleneck: Tensor, base_rows: Tensor, novel_rows: Tensor) -> Tensor:
    """NPF: all classifier rows scaled to length one, then multiplied with the (unscaled) features.

    Args:
        bottleneck: (batch, channels, h, w).
        base_rows: base classifier (base + 1, channels).
        novel_rows: (new, channels).
    """
    rows = F.normalize(torch.cat([base_rows, novel_rows]), dim=1)
    return F.conv2d(bottleneck, rows[..., None, None])


def split(fused: Tensor, novel: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scores of background, base classes and novel classes."""
    base = fused.shape[1] - novel - 1
    background, known, new = fused.split([1, base, novel], dim=1)
    return background, known, new


def gated(fused: Tensor, novel: int) -> Tensor:
    """Novel score times (1 - largest base score): a base class that is sure keeps its pixel."""
    background, known, new = split(fused, novel)
    return torch.cat([background, known, new * (1 - known.amax(dim=1, keepdim=True))], dim=1)


def background_share(fused: Tensor, novel: int) -> Tensor:
    """Novel classes take their share of the background's probability and of nothing else."""
    background, known, new = split(fused, novel)
    none = (1 - new).prod(dim=1, keepdim=True)
    return torch.cat([background * none, known, background * new], dim=1)


def log_odds(fused: Tensor, novel: int) -> Tensor:
    """Novel logit = background logit + log-odds of the novel classifier, renormalised."""
    background, known, new = split(fused, novel)
    new = new.clamp(EPSILON, 1 - EPSILON)
    scores = torch.cat([background, known, background * new / (1 - new)], dim=1)
    return scores / scores.sum(dim=1, keepdim=True).clamp_min(EPSILON)


RULES: dict[str, Callable[[Tensor, int], Tensor]] = {
    "gated": gated,
    "background-share": background_share,
    "log-odds": log_odds,
}


@dataclass
class NovelFitter:
    """Fits novel classifiers; methods that share one fit each support set only once.

    The last support set and the last query are remembered, so that several methods can be evaluated on the same task
    at the price of one.

    Attributes:
        form: of :func:`fit_novel`.
    """

    options: NovelOptions = field(default_factory=NovelOptions)
    seed: int = 0
    form: Form = "plain"
    _support: Support | None = None
    _classifier: NovelClassifier | None = None
    _first: LowRankLayer | None = None  # of the classifier, where low rank is asked for
    _query: Features | None = None
    _logits: Tensor | None = None

    def fit(self, support: Support) -> NovelClassifier:
        """The novel classifier of a support set."""
        if self._classifier is None or support is not self._support:
            labels = support_labels(support.labels, support.novel_labels)
            coarse = labels[:, :: self.options.label_stride, :: self.options.label_stride]
            if all((coarse == label).any() for label in range(support.novel + 1)):  # else too small: every pixel
                labels = coarse
            maps = novel_maps(support.features, self.options)
            classifier = fit_novel(maps[None], labels[None], support.novel + 1, self.options, self.seed, self.form)
            if self.options.low_rank:
                start = self._initial(maps)
                self._first = low_rank(classifier.first[0], start, self.options.low_rank)
                classifier = replace(classifier, first=self._first.whole(start)[None])
            self._classifier, self._support, self._query = classifier, support, None
        return self._classifier

    def logits(self, query: Features) -> Tensor:
        """Logits of a query under the last classifier: (queries, 1 + novel, h, w)."""
        assert self._classifier is not None
        if self._logits is None or query is not self._query:
            maps = novel_maps(query, self.options)
            start = self.initial_response(query) if self._first else None
            if self._first is None or start is None:
                self._logits = self._classifier.logits(maps)
            else:
                self._logits = self._classifier.decide(self._first(maps, start))
            self._query = query
        return self._logits

    def initial_response(self, query: Features) -> Tensor | None:
        """Result of the first layer with its initial weights, of features that are cached for many tasks."""

        def first_layer(image: Features) -> Tensor:
            maps = novel_maps(image, self.options)
            return convolve(maps, self._initial(maps))

        return query.cached(("novel classifier at the start", self.options, self.seed), first_layer)

    def _initial(self, maps: Tensor) -> Tensor:
        """Initial weights of the first layer; they do not depend on the number of classes."""
        return initial_weights(maps.shape[1], self.options.hidden, 1, self.seed, maps.dtype, maps.device)[0]


class ScoreFusion(Method):
    """Raw base and novel scores side by side: biased to the base classes.

    A baseline of Lu et al. (2022), https://arxiv.org/abs/2210.08290.

        novel logits  (queries, 1 + novel, h, w)                  of the fitted classifier, "none" first
        scores        (queries, background + base + novel, h, w)  "none" dropped
    """

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
    """NSF (eq. 3): each classifier's softmax side by side: no base bias any more, but a bias to the novel classes.

    The fusion that Lu et al. (2022) calibrate, https://arxiv.org/abs/2210.08290; shapes as in :class:`ScoreFusion`.
    """

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
