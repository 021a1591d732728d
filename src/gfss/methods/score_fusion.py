"""Methods built on a fitted novel classifier without training: score fusion, NSF and the rules."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor

from gfss.features.support import Support
from gfss.methods.base import Method
from gfss.models.calibrators.rules import RULES
from gfss.models.fusion import normalised_score_fusion, score_fusion
from gfss.models.novel.classifier import (
    Form,
    NovelClassifier,
    NovelOptions,
    fit_novel,
    initial_weights,
    novel_maps,
    support_labels,
)
from gfss.models.novel.low_rank import LowRankLayer, low_rank
from gfss.models.ops.convolve import convolve
from gfss.models.pspnet import Features


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
