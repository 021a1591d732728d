"""DIaM's descent along the leading directions of the features: nearly that of :meth:`gfss.methods.diam.Diam.adapt`.

Rows and biases move along features only, so after any number of steps the table of a classifier is

    start + of_supports S' + of_image Q'

where the columns of S and Q are directions of the support features and of the image's, and the two small tables hold
how far each class went along them. Steps are therefore made on the small tables, with features as coordinates along
the directions. With all directions that is the descent itself. With the leading ones, and with support positions
without a novel class read in every second step only, it takes a third of the time and nearly every pixel keeps its
class (benchmarks/diam_low_rank.py). The scores of the start are never rounded in this way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from gfss.methods.diam_options import DiamOptions
from gfss.models.base_model import Features

SETTLED = 0.1  # how much a support position counts for these, before what is wrong at it under the start
POWERS = 2  # rounds in which leading directions are found
CENTRED = 10  # steps after which scores of support positions are centred again; an even number
TINY = 1e-30  # probabilities are not taken smaller before a logarithm
LOG2_E = math.log2(math.e)  # powers of two are three times as quick as those of e


@dataclass(frozen=True)
class LowRankForm:
    """What is left out.

    Attributes:
        support_rank: directions of the supports along which classifiers move.
        query_rank: directions of a query image.
        dense: first steps, which read all supports; after them every second one reads those without a novel class.
        block: support positions worked on at once.
    """

    support_rank: int = 64
    query_rank: int = 32
    dense: int = 10
    block: int = 512


@dataclass(frozen=True)
class SupportBlock:
    """Support positions of one label, few enough that all that is made of them stays in the processor's cache.

    Attributes:
        features: along the directions of the supports, (directions, positions).
        start: scores under the start, as powers of two, (classes, positions).
        right: row of the novel class that is right here; None where no novel class is.
        known: number of rows of known classes, any of which is right where no novel class is.
        weight: of each position in the cross entropy.
    """

    features: Tensor
    start: Tensor
    right: int | None
    known: int
    weight: float

    def add_gradient(self, start: Tensor, moved: Tensor, steps: Tensor, centre: bool) -> None:
        """Add the derivative of the cross entropy to ``steps``.

        Args:
            start: :attr:`start` for every image, (images, classes, positions).
            moved: how far each image's classifier went along the directions, (images, classes, directions).
            steps: (images, classes, directions).
            centre: take off the largest score of every position, here and in ``start``, so that powers stay finite.
        """
        logits = torch.addmm(start.flatten(0, 1), moved.flatten(0, 1), self.features, alpha=LOG2_E).view_as(start)
        if centre:
            largest = logits.amax(dim=1, keepdim=True)
            logits -= largest
            start -= largest
        powers = logits.exp2_()
        # by the logits: the probabilities, minus those among the right rows alone
        if self.right is None:
            known, novel = powers[:, : self.known], powers[:, self.known :]
            right = known.sum(dim=1, keepdim=True).clamp_min_(TINY)
            wrong = novel.sum(dim=1, keepdim=True)
            total = right + wrong
            known *= wrong.div_(total).div_(right).neg_()
            novel *= total.reciprocal_()
        else:
            powers *= powers.sum(dim=1, keepdim=True).clamp_min_(TINY).reciprocal_()
            powers[:, self.right] -= 1
        steps.flatten(0, 1).addmm_(powers.flatten(0, 1), self.features.T, alpha=self.weight)


class SupportGradient:
    """Derivative of the cross entropy on some blocks of supports, for a number of images."""

    def __init__(self, blocks: Sequence[SupportBlock], images: int) -> None:
        self.blocks = [(block, block.start.repeat(images, 1, 1)) for block in blocks]

    def __call__(self, moved: Tensor, centre: bool) -> Tensor:
        """By how far the classifiers went, (images, classes, directions); arguments as those of a block."""
        steps = torch.zeros_like(moved)
        for block, start in self.blocks:
            block.add_gradient(start, moved, steps, centre)
        return steps


class QueryGradient:
    """Derivative of the loss on query images, without its support part, by the logits of their positions.

    All three parts have the form sum p log(p / something), where p are the class probabilities, their means, or
    folded ones. With the weighted sum L of these logarithms the loss is the mean of sum p L over positions, and its
    derivative by the logits is p (L - sum p L). What is added to L for all classes alike drops out, so logits stand for
    log-probabilities.

    Args:
        snapshot: log-probabilities of the frozen base model (images, background + base, positions).
        weights: of the positions (images, positions), one in all.
        classes: background, base and novel ones together.
        distillation: weight of the divergence from the base model.
    """

    def __init__(
        self, snapshot: Tensor, weights: Tensor, classes: int, options: DiamOptions, distillation: float
    ) -> None:
        self.weights = weights[:, None]
        self.options, self.distillation, self.known = options, distillation, snapshot.shape[1]
        self.own = snapshot.new_full((classes, 1), -options.entropy_weight)  # how much of its own logit is in L
        self.own[1 : self.known] += distillation
        self.background = distillation * snapshot[:, :1]
        self.fixed = snapshot.new_zeros(len(snapshot), classes, snapshot.shape[2])  # what never changes in L
        self.fixed[:, 1 : self.known] = -distillation * snapshot[:, 1:]
        self.prior = snapshot.new_empty(0)
        self.probabilities, self.products = torch.empty_like(self.fixed), torch.empty_like(self.fixed)

    def __call__(self, logits: Tensor, iteration: int) -> Tensor:
        """Derivative (images, classes, positions), given the logits, which are overwritten."""
        known = self.known
        logits -= logits.amax(dim=1, keepdim=True)
        probabilities = torch.mul(logits, LOG2_E, out=self.probabilities).exp2_()  # times their sum
        folded = probabilities[:, :1] + probabilities[:, known:].sum(dim=1, keepdim=True)
        away = folded.clamp_min_(TINY).log_().mul_(self.distillation).sub_(self.background)
        probabilities *= probabilities.sum(dim=1, keepdim=True).reciprocal_()
        shares = (probabilities @ self.weights.transpose(1, 2)).clamp_min_(TINY).log_()
        if iteration in (0, self.options.prior_update):
            self.prior = shares
        logarithms = torch.addcmul(self.fixed, logits, self.own, out=logits)
        logarithms += self.options.prior_weight * (shares - self.prior)
        logarithms[:, :1] += away
        logarithms[:, known:] += away
        means = torch.mul(probabilities, logarithms, out=self.products).sum(dim=1, keepdim=True)
        return logarithms.sub_(means).mul_(probabilities).mul_(self.weights)


class LowRankDescent:
    """The supports of a task as the descent reads them, and the descent.

    Args:
        start: classifier (classes, channels + 1).
        groups: features (channels + 1, positions) and the weight of a position, first of the positions without a novel
            class, then of each novel class.
    """

    def __init__(self, start: Tensor, groups: Sequence[tuple[Tensor, float]], form: LowRankForm) -> None:
        self.start, self.form = start, form
        known = len(start) - len(groups) + 1
        gram = start.new_zeros(start.shape[1], start.shape[1])
        for label, (features, weight) in enumerate(groups):
            probabilities = (start @ features).softmax(dim=0)
            likelihood = probabilities[known + label - 1] if label else probabilities[:known].sum(dim=0)
            gram += weight * (features * (SETTLED + 1 - likelihood)) @ features.T
        # those in which positions lie that will pull most
        self.directions = leading_directions(gram / gram.trace(), form.support_rank)
        self.blocks = [
            SupportBlock(
                self.directions.T @ part, LOG2_E * (start @ part), known + label - 1 if label else None, known, weight
            )
            for label, (features, weight) in enumerate(groups)
            for part in features.split(form.block, dim=1)
        ]

    @torch.no_grad()
    def adapt(self, query: Features, weights: Tensor, options: DiamOptions, distillation: float) -> Tensor:
        """Classifiers of query images, (images, classes, channels + 1).

        The derivatives are written out: automatic ones would take about twice the time.

        Args:
            weights: of the positions (images, positions), one in all.
            distillation: weight of the divergence from the base model.
        """
        maps = F.pad(query.bottleneck.flatten(2), (0, 0, 0, 1), value=1.0)
        directions = leading_directions(maps @ maps.transpose(1, 2), self.form.query_rank)
        features = directions.transpose(1, 2) @ maps
        between = self.directions.T @ directions  # (images, directions of the supports, of the image)
        start_logits, classes = self.start @ maps, len(self.start)
        predicted = query.base.flatten(2).log_softmax(dim=1)
        query_gradient = QueryGradient(predicted, weights, classes, options, distillation)
        plain = SupportGradient([block for block in self.blocks if block.right is None], len(query))
        novel = SupportGradient([block for block in self.blocks if block.right is not None], len(query))
        of_image = maps.new_zeros(len(query), classes, directions.shape[2])
        of_supports = maps.new_zeros(len(query), classes, self.directions.shape[1])
        last = before = torch.zeros_like(of_supports)
        for iteration in range(options.iterations):
            seen = torch.baddbmm(of_image, of_supports, between)  # all that moved, as the image's features see it
            slopes = query_gradient(torch.baddbmm(start_logits, seen, features), iteration)
            moved = torch.baddbmm(of_supports, of_image, between.transpose(1, 2))  # the same as the supports see it
            centre = iteration % CENTRED == 0
            if iteration < self.form.dense or iteration % 2 == 0:
                steps = plain(moved, centre)
                if iteration % 2 == 0:
                    last, before = steps, last
            else:
                steps = 1.5 * last - 0.5 * before  # on the line through those of the last two even iterations
            of_supports.sub_(steps + novel(moved, centre), alpha=options.rate * options.support_weight)
            of_image.baddbmm_(slopes, features.transpose(1, 2), alpha=-options.rate)
        return self.start + of_supports @ self.directions.T + of_image @ directions.transpose(1, 2)


def leading_directions(gram: Tensor, rank: int) -> Tensor:
    """Orthonormal columns (..., size, rank) near the leading eigenvectors of (..., size, size); all if there are fewer.

    Found from random columns, the same every time, by multiplying with the matrix.
    """
    size = gram.shape[-1]
    if size <= rank:
        return torch.eye(size).to(gram).expand(gram.shape)
    columns = torch.randn(size, rank, generator=torch.Generator().manual_seed(0)).to(gram)
    for _ in range(1 + POWERS):
        columns = torch.linalg.qr(gram @ columns).Q
    return columns
