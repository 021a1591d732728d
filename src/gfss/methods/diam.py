"""DIaM: the classifier is adapted to every query image, held by the supports and by the base model's prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gfss.data.catalog import VOID
from gfss.features.episodes import Support
from gfss.methods.base import Method
from gfss.methods.diam_low_rank import LowRankDescent, LowRankForm
from gfss.methods.diam_options import DiamOptions
from gfss.methods.probe import at_positions, position_labels, position_samples
from gfss.methods.prototypes import novel_prototypes
from gfss.models.base_model import Features
from gfss.models.novel.classifier import support_labels

BATCH = 8  # query images that are adapted at once
TINY = 1e-30  # class shares are not taken smaller before a logarithm


class Diam(Method):
    """Distilled information maximisation.

    Hajimiri, Boudiaf, Ben Ayed, Dolz: A Strong Baseline for Generalized Few-Shot Semantic Segmentation (2023),
    https://arxiv.org/abs/2211.14126. Prototypes join the base classifier as rows; then, for every query image, all rows
    and biases descend on

        100 CE(support) + KL(class shares || estimated shares) + entropy(query) + w KL(query || base model)

    with base classes folded into background in the first term and novel ones in the last. Biases start at zero where
    the base classifier has none. Everything happens at map resolution, on the bottleneck features (channels = c):

        start     (background + base + novel, c + 1)            rows, and biases in the last column
        samples   (c + 1, support positions)                    features, and ones in the last row
        tables    (queries, background + base + novel, c + 1)   one classifier per query image

    Args:
        form: how ``options.low_rank`` approximates the descent.
    """

    name = "diam"
    transductive = True

    def __init__(self, options: DiamOptions | None = None, name: str = "diam", form: LowRankForm | None = None) -> None:
        self.name = name  # type: ignore[misc]
        self.options = options or DiamOptions()
        self.probabilities = self.options.as_probabilities  # type: ignore[misc]
        self.reads_void = self.options.void_left_out
        self.form = form or LowRankForm()

    @property
    def settings(self) -> dict[str, Any]:
        return {"diam": asdict(self.options)}

    @torch.inference_mode(False)  # what it makes takes part in gradients
    @torch.no_grad()
    def learn(self, support: Support) -> None:
        prototypes = pooled_prototypes(support) if self.options.pooled else novel_prototypes(support)
        rows = torch.cat([support.base_rows, F.normalize(prototypes, dim=1)])
        self.start, self.known = F.pad(rows, (0, 1)), support.base + 1
        if support.base_bias is not None:
            self.start[: self.known, -1] = support.base_bias
        labels = support_labels(position_labels(support), support.novel_labels).flatten()
        labelled = labels != VOID
        self.labels = labels[labelled].long()  # 0 no novel class, 1.. novel classes
        self.samples = with_ones(position_samples(support.features.bottleneck)[labelled].T)
        one_shot = len(support.owners) == support.novel
        background = self.options.background_one_shot if one_shot else self.options.background_more_shots
        self.weights = torch.where(self.labels > 0, 1.0, background) / len(self.labels)
        one_class = support.novel == 1
        self.distillation = self.options.distillation_weight if one_class else self.options.distillation_several
        self.low_rank = LowRankDescent(self.start, self._groups(), self.form) if self.options.low_rank else None

    def scores(self, query: Features) -> Tensor:
        parts = [slice(i, i + BATCH) for i in range(0, len(query), BATCH)]
        weights = self.position_weights(query)
        tables = torch.cat([self.adapt(query[part], weights[part]) for part in parts])
        scores = (tables @ with_ones(query.bottleneck.flatten(2))).unflatten(2, query.size)
        return scores.softmax(dim=1) if self.options.as_probabilities else scores

    def position_weights(self, query: Features) -> Tensor:
        """How much every position counts in the terms on its query, (queries, positions); they sum to one."""
        counted = torch.ones(len(query), query.size[0] * query.size[1]).to(query.base)
        if self.options.void_left_out and self.void is not None:
            valid = ~at_positions(self.void, query.size).flatten(1)
            counted = torch.where(valid.any(dim=1, keepdim=True), valid, True).to(query.base)
        return counted / counted.sum(dim=1, keepdim=True)

    @torch.inference_mode(False)
    @torch.enable_grad()
    def adapt(self, query: Features, weights: Tensor) -> Tensor:
        """Classifiers of query images, (queries, classes, channels + 1): gradient descent on :meth:`image_loss`.

        Args:
            weights: of the positions, as :meth:`position_weights` gives them.
        """
        if self.low_rank is not None:
            return self.low_rank.adapt(query, weights, self.options, self.distillation)
        maps, weights = with_ones(query.bottleneck.clone().flatten(2)), weights.clone()
        predicted = query.base.clone().flatten(2).log_softmax(dim=1)
        tables, prior = self.start.clone().repeat(len(query), 1, 1), torch.empty(0)
        for iteration in range(self.options.iterations):
            if iteration in (0, self.options.prior_update):
                prior = class_shares(tables @ maps, weights)
            leaf = tables.requires_grad_()
            (gradient,) = torch.autograd.grad(self.image_loss(leaf, maps, predicted, weights, prior).sum(), leaf)
            tables = (leaf - self.options.rate * gradient).detach()
        return tables

    def image_loss(self, tables: Tensor, maps: Tensor, predicted: Tensor, weights: Tensor, prior: Tensor) -> Tensor:
        """The loss of every query image, (queries,).

        Args:
            tables: classifiers (queries, classes, channels + 1).
            maps: query features (queries, channels + 1, positions).
            predicted: log-probabilities of the base model (queries, background + base, positions).
            weights: of the positions (queries, positions).
            prior: estimated class shares (queries, classes).
        """
        known, options = self.known, self.options
        support = (tables @ self.samples).log_softmax(dim=1)
        support = torch.cat([support[:, :known].logsumexp(dim=1, keepdim=True), support[:, known:]], dim=1)
        truth = self.labels.expand(len(tables), 1, -1)
        cross_entropy = -(self.weights * support.gather(1, truth)[:, 0]).sum(dim=1)
        logs = (tables @ maps).log_softmax(dim=1)
        shares = class_shares(tables @ maps, weights)
        divergence = (shares * (shares / prior).log()).sum(dim=1)
        entropy = -((logs.exp() * logs).sum(dim=1) * weights).sum(dim=1)
        background = torch.cat([logs[:, :1], logs[:, known:]], dim=1).logsumexp(dim=1, keepdim=True)
        folded = torch.cat([background, logs[:, 1:known]], dim=1)
        distillation = ((folded.exp() * (folded - predicted)).sum(dim=1) * weights).sum(dim=1)
        return (
            options.support_weight * cross_entropy
            + options.prior_weight * divergence
            + options.entropy_weight * entropy
            + self.distillation * distillation
        )

    def _groups(self) -> Sequence[tuple[Tensor, float]]:
        """Features (channels + 1, positions) of every support label, and the weight of such a position."""
        labels = [self.labels == label for label in range(1 + len(self.start) - self.known)]
        return [(self.samples[:, own], float(self.weights[own][0]) if own.any() else 0.0) for own in labels]


def with_ones(maps: Tensor) -> Tensor:
    """Maps (..., channels, positions) with one more channel of ones, which biases multiply."""
    return F.pad(maps, (0, 0, 0, 1), value=1.0)


def class_shares(logits: Tensor, weights: Tensor) -> Tensor:
    """Share of every class in an image, (images, classes).

    Args:
        logits: (images, classes, positions).
        weights: of the positions (images, positions).
    """
    return (logits.softmax(dim=1) * weights[:, None]).sum(dim=2).clamp_min(TINY)


def pooled_prototypes(support: Support) -> Tensor:
    """Mean feature of the positions of each novel class in all support images together, (new, channels)."""
    support.check()
    labels, samples = position_labels(support).flatten(), position_samples(support.features.bottleneck)
    return torch.stack([samples[labels == label].mean(dim=0) for label in support.novel_labels])
