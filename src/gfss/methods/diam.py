"""DIaM: the classifier is adapted to every query image, held by the supports and by what the base model said."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from gfss.data.catalog import VOID
from gfss.methods.base import Method, Support
from gfss.methods.probe import position_labels, position_samples
from gfss.methods.prototypes import novel_prototypes
from gfss.models.novel import support_labels
from gfss.models.pspnet import Features

TINY = 1e-30  # probabilities are not taken smaller before a logarithm


@dataclass(frozen=True)
class DiamOptions:
    """Parameters of DIaM; the defaults are the published ones.

    Attributes:
        iterations: gradient steps per query image.
        rate: learning rate of plain gradient descent.
        support_weight: of the cross entropy on the supports.
        prior_weight: of the divergence of the class shares from the estimated ones.
        entropy_weight: of the query's entropy.
        distillation_weight: of the divergence from the base model.
        background_one_shot: weight of support positions without a novel class, with one support per class.
        background_more_shots: the same with several.
        prior_update: iteration at which the class shares are estimated again.
        batch: query images that are adapted at once; changes the speed only.
    """

    iterations: int = 100
    rate: float = 1.25e-3
    support_weight: float = 100.0
    prior_weight: float = 1.0
    entropy_weight: float = 1.0
    distillation_weight: float = 100.0
    background_one_shot: float = 0.01
    background_more_shots: float = 0.15
    prior_update: int = 10
    batch: int = 8


@dataclass(frozen=True)
class SupportPositions:
    """Support positions that are not void, all images together, those without a novel class first, then by class.

    Attributes:
        features: (channels + 1, positions); the last row is one, for the biases.
        weights: of the positions in the cross entropy, (positions,); means are taken over all positions.
        counts: number of positions without a novel class, of the first novel class, of the second, ...
    """

    features: Tensor
    weights: Tensor
    counts: tuple[int, ...]

    @cached_property
    def weighted(self) -> Tensor:
        """Features times weights, (positions, channels + 1)."""
        return (self.features * self.weights).T.contiguous()

    def pull(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """Cross entropy (images,) with base classes folded into one, and its derivative by the table of classifiers."""
        known = table.shape[1] - len(self.counts) + 1
        logits = (table.flatten(0, 1) @ self.features).view(*table.shape[:2], -1)
        probabilities = logits.softmax(dim=1)
        none, *novel = probabilities.split(self.counts, dim=2)
        right = [none[:, :known].sum(dim=1), *(part[:, known + i] for i, part in enumerate(novel))]
        likelihood = torch.cat(right, dim=1).clamp_min(TINY)
        loss = -(likelihood.log() * self.weights).sum(dim=1)
        # by the logits: the probabilities, minus those given that the position is right; in place
        none[:, :known] *= 1 - 1 / likelihood[:, None, : self.counts[0]]
        for i, part in enumerate(novel):
            part[:, known + i] -= 1
        return loss, (probabilities.flatten(0, 1) @ self.weighted).view_as(table)


@dataclass(frozen=True)
class Adapted:
    """Classifiers of a batch of images.

    Attributes:
        table: rows and, in the last column, biases: (images, classes, channels + 1).
        losses: total loss before each step, (iterations, images).
    """

    table: Tensor
    losses: Tensor


class Diam(Method):
    """Distilled information maximisation.

    Hajimiri, Boudiaf, Ben Ayed, Dolz: A Strong Baseline for Generalized Few-Shot Semantic Segmentation (2023).
    Prototypes join the base classifier as rows; then, for every query image, all rows and biases descend on

        100 CE(support) + KL(class shares || estimated shares) + entropy(query) + 100 KL(query || base model)

    with base classes folded into background in the first term and novel ones in the last. Our base classifier has no
    biases, so they start at zero. Everything happens at map resolution, on the bottleneck features.
    """

    name = "diam"
    transductive = True

    def __init__(self, options: DiamOptions | None = None) -> None:
        self.options = options or DiamOptions()

    def learn(self, support: Support) -> None:
        rows = torch.cat([support.base_rows, F.normalize(novel_prototypes(support), dim=1)])
        self.start = F.pad(rows, (0, 1))
        labels = support_labels(position_labels(support), support.novel_labels).flatten().long()
        order = labels.sort(stable=True).indices[: int((labels != VOID).sum())]  # void is last
        counts = labels[order].bincount(minlength=support.novel + 1)
        weights = torch.ones(len(order)).to(rows)
        one_shot = len(support.owners) == support.novel
        weights[: counts[0]] = self.options.background_one_shot if one_shot else self.options.background_more_shots
        features = _with_ones(position_samples(support.features.bottleneck)[order].T)
        self.support = SupportPositions(features, weights / len(order), tuple(counts.tolist()))

    def scores(self, query: Features) -> Tensor:
        batches = [query[i : i + self.options.batch] for i in range(0, len(query), self.options.batch)]
        return torch.cat([self._scores(batch) for batch in batches])

    def _scores(self, query: Features) -> Tensor:
        adapted = adapt(query, self.start, self.support, self.options)
        return (adapted.table @ _with_ones(query.bottleneck.flatten(2))).view(len(query), -1, *query.size)


@torch.no_grad()
def adapt(query: Features, start: Tensor, support: SupportPositions, options: DiamOptions) -> Adapted:
    """Descend from the classifier ``start`` (classes, channels + 1), for each query image by itself.

    The derivatives are written out: automatic ones would take about twice the time.
    """
    features = _with_ones(query.bottleneck.flatten(2))
    back = features.transpose(1, 2) / features.shape[2]  # means are taken over positions
    snapshot = query.base.flatten(2).log_softmax(dim=1)
    table = start.repeat(len(query), 1, 1)
    prior = table.new_empty(0)
    losses: list[Tensor] = []
    for iteration in range(options.iterations):
        logs = (table @ features).log_softmax(dim=1)
        shares = logs.exp().mean(dim=2).clamp_min(TINY).log()
        if iteration in (0, options.prior_update):
            prior = shares
        query_loss, slopes = pull_of_query(logs, shares - prior, snapshot, options)
        support_loss, steps = support.pull(table)
        losses.append(query_loss + options.support_weight * support_loss)
        table -= options.rate * (slopes @ back + options.support_weight * steps)
    return Adapted(table, torch.stack(losses))


def pull_of_query(logs: Tensor, surplus: Tensor, snapshot: Tensor, options: DiamOptions) -> tuple[Tensor, Tensor]:
    """Loss of query images without its support part, (images,), and its derivative by the logits of each position.

    All three parts have the form sum p log(p / something), where p are the class probabilities, their means, or
    folded ones. With the weighted sum L of these logarithms the loss is the mean of sum p L over positions, and its
    derivative by the logits is p (L - sum p L).

    Args:
        logs: log-probabilities (images, background + base + novel, positions).
        surplus: logarithms of the class shares minus those of the estimated ones, (images, classes).
        snapshot: log-probabilities of the frozen base model (images, background + base, positions).
    """
    known = snapshot.shape[1]
    background = torch.cat([logs[:, :1], logs[:, known:]], dim=1).logsumexp(dim=1, keepdim=True)
    away = torch.cat([background, logs[:, 1:known]], dim=1) - snapshot
    logarithms = options.prior_weight * surplus[..., None] - options.entropy_weight * logs
    logarithms[:, :known] += options.distillation_weight * away
    logarithms[:, known:] += options.distillation_weight * away[:, :1]
    probabilities = logs.exp()
    means = (probabilities * logarithms).sum(dim=1, keepdim=True)
    return means.mean(dim=(1, 2)), probabilities * (logarithms - means)


def _with_ones(maps: Tensor) -> Tensor:
    """Maps (..., channels, positions) with one more channel of ones, which biases multiply."""
    return F.pad(maps, (0, 0, 0, 1), value=1.0)
