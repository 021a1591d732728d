"""DIaM: the classifier is adapted to every query image, held by the supports and by what the base model said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor
from torch.nn import functional as F

from gfss.data.catalog import VOID
from gfss.methods.base import Method, Support
from gfss.methods.probe import position_labels, position_samples
from gfss.methods.prototypes import novel_prototypes
from gfss.models.novel import support_labels
from gfss.models.pspnet import Features

BATCH = 8  # query images that are adapted at once
BLOCK = 512  # support positions worked on at once
TINY = 1e-30  # probabilities are not taken smaller before a logarithm


@dataclass(frozen=True)
class DiamOptions:
    """Parameters of DIaM; the defaults are the published ones but for the weights of distillation.

    The published weight (:data:`PUBLISHED`) holds the query closely to what the base model said, which is right where
    the base model takes unknown objects for background. Ours was never told that they are, and takes half of their
    positions for a base class; the weights here were chosen on held-out base classes.

    Attributes:
        iterations: gradient steps per query image.
        rate: learning rate of plain gradient descent.
        support_weight: of the cross entropy on the supports.
        prior_weight: of the divergence of the class shares from the estimated ones.
        entropy_weight: of the query's entropy.
        distillation_weight: of the divergence from the base model, with one novel class.
        distillation_several: the same with several.
        background_one_shot: weight of support positions without a novel class, with one support per class.
        background_more_shots: the same with several.
        prior_update: iteration at which the class shares are estimated again.
    """

    iterations: PositiveInt = 100
    rate: PositiveFloat = 1.25e-3
    support_weight: NonNegativeFloat = 100.0
    prior_weight: NonNegativeFloat = 1.0
    entropy_weight: NonNegativeFloat = 1.0
    distillation_weight: NonNegativeFloat = 3.0
    distillation_several: NonNegativeFloat = 10.0
    background_one_shot: NonNegativeFloat = 0.01
    background_more_shots: NonNegativeFloat = 0.15
    prior_update: NonNegativeInt = 10


PUBLISHED = DiamOptions(distillation_weight=100.0, distillation_several=100.0)


@dataclass(frozen=True)
class Block:
    """Support positions of one label, few enough that all that is made of them stays in the processor's cache.

    Attributes:
        features: (channels + 1, positions); the last row is one, for the biases.
        rows: of the classifier, any of which is right here: the known classes, or one novel class.
        weight: of each position in the cross entropy.
    """

    features: Tensor
    rows: slice
    weight: float

    def pull(self, table: Tensor, steps: Tensor) -> Tensor:
        """Cross entropy (images,) under the table of classifiers; its derivative by the table is added to ``steps``."""
        logits = (table.flatten(0, 1) @ self.features).view(*table.shape[:2], -1)
        probabilities = logits.softmax(dim=1)
        right = probabilities[:, self.rows]
        likelihood = right.sum(dim=1).clamp_min_(TINY)
        right -= right / likelihood[:, None]  # by the logits: the probabilities, minus those among the right rows
        steps.flatten(0, 1).addmm_(probabilities.flatten(0, 1), self.features.T, alpha=self.weight)
        return likelihood.log_().sum(dim=1).mul_(-self.weight)


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

        100 CE(support) + KL(class shares || estimated shares) + entropy(query) + w KL(query || base model)

    with base classes folded into background in the first term and novel ones in the last. Our base classifier has no
    biases, so they start at zero. Everything happens at map resolution, on the bottleneck features.
    """

    name = "diam"
    transductive = True

    def __init__(self, options: DiamOptions | None = None, name: str = "diam") -> None:
        self.name = name  # type: ignore[misc]
        self.options = options or DiamOptions()

    @property
    def settings(self) -> dict[str, Any]:
        return {"diam": asdict(self.options)}

    def learn(self, support: Support) -> None:
        rows = torch.cat([support.base_rows, F.normalize(novel_prototypes(support), dim=1)])
        self.start = F.pad(rows, (0, 1))
        labels = support_labels(position_labels(support), support.novel_labels).flatten()
        samples = position_samples(support.features.bottleneck)
        one_shot = len(support.owners) == support.novel
        background = self.options.background_one_shot if one_shot else self.options.background_more_shots
        heard = int((labels != VOID).sum())  # means are taken over all of these
        self.held = self.options.distillation_weight if support.novel == 1 else self.options.distillation_several
        self.blocks: list[Block] = []
        for label in range(support.novel + 1):
            last = support.base + 1 + label
            right = slice(last - 1, last) if label else slice(last)
            weight = (1.0 if label else background) / heard
            parts = _with_ones(samples[labels == label].T).split(BLOCK, dim=1)
            self.blocks += [Block(part.contiguous(), right, weight) for part in parts]

    def scores(self, query: Features) -> Tensor:
        return torch.cat([self._scores(query[i : i + BATCH]) for i in range(0, len(query), BATCH)])

    def _scores(self, query: Features) -> Tensor:
        adapted = adapt(query, self.start, self.blocks, self.options, self.held)
        return (adapted.table @ _with_ones(query.bottleneck.flatten(2))).view(len(query), -1, *query.size)


@torch.no_grad()
def adapt(query: Features, start: Tensor, supports: Sequence[Block], options: DiamOptions, held: float) -> Adapted:
    """Descend from the classifier ``start`` (classes, channels + 1), for each query image by itself.

    The derivatives are written out: automatic ones would take about twice the time.

    Args:
        held: weight of the divergence from the base model.
    """
    features = _with_ones(query.bottleneck.flatten(2))
    snapshot = query.base.flatten(2).log_softmax(dim=1)
    table = start.repeat(len(query), 1, 1)
    prior = table.new_empty(0)
    losses: list[Tensor] = []
    for iteration in range(options.iterations):
        logs = (table @ features).log_softmax(dim=1)
        probabilities = logs.exp()
        shares = probabilities.mean(dim=2).clamp_min(TINY).log()
        if iteration in (0, options.prior_update):
            prior = shares
        query_loss, slopes = pull_of_query(logs, probabilities, shares - prior, snapshot, options, held)
        steps = torch.zeros_like(table)
        support_loss = sum((block.pull(table, steps) for block in supports), torch.zeros_like(query_loss))
        losses.append(query_loss + options.support_weight * support_loss)
        table -= options.rate * (slopes @ features.transpose(1, 2) + options.support_weight * steps)
    return Adapted(table, torch.stack(losses))


def pull_of_query(
    logs: Tensor, probabilities: Tensor, surplus: Tensor, snapshot: Tensor, options: DiamOptions, held: float
) -> tuple[Tensor, Tensor]:
    """Loss of query images without its support part, (images,), and its derivative by the logits of each position.

    All three parts have the form sum p log(p / something), where p are the class probabilities, their means, or
    folded ones. With the weighted sum L of these logarithms the loss is the mean of sum p L over positions, and its
    derivative by the logits is p (L - sum p L).

    Args:
        logs: log-probabilities (images, background + base + novel, positions).
        probabilities: the same without logarithm.
        surplus: logarithms of the class shares minus those of the estimated ones, (images, classes).
        snapshot: log-probabilities of the frozen base model (images, background + base, positions).
        held: as in :func:`adapt`.
    """
    known = snapshot.shape[1]
    own = logs.new_full((logs.shape[1], 1), -options.entropy_weight)  # how much of its own logarithm is in L
    own[1:known] += held
    logarithms = torch.addcmul(options.prior_weight * surplus[..., None], logs, own)
    logarithms[:, 1:known].sub_(snapshot[:, 1:], alpha=held)
    background = (probabilities[:, :1] + probabilities[:, known:].sum(dim=1, keepdim=True)).clamp_min_(TINY).log_()
    away = background.sub_(snapshot[:, :1]).mul_(held)
    logarithms[:, :1] += away
    logarithms[:, known:] += away
    means = (probabilities * logarithms).sum(dim=1, keepdim=True)
    slopes = logarithms.sub_(means).mul_(probabilities).div_(logs.shape[2])  # means are taken over positions
    return means.mean(dim=(1, 2)), slopes


def _with_ones(maps: Tensor) -> Tensor:
    """Maps (..., channels, positions) with one more channel of ones, which biases multiply."""
    return F.pad(maps, (0, 0, 0, 1), value=1.0)
