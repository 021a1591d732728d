"""DIaM's descent: a classifier for each query image, on the supports and on the image itself.

Rows and biases move along features only, so after any number of steps the table of a classifier is

    start + of_supports S' + of_image Q'

where the columns of S and Q are directions of the support features and of the image's, and the two small tables hold
how far each class went along them. Steps are therefore made on the small tables, with features as coordinates along
the directions. With all directions that is the descent itself. With the leading ones (``SUPPORT_RANK``,
``QUERY_RANK``), and with support positions that pull little and smoothly read in every second step (``DENSE``), it
takes a third of the time and nearly every pixel keeps its class (benchmarks/diam_descent.py). What the start says of a
position is never rounded in this way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from gfss.methods.diam_options import DiamOptions
from gfss.models.pspnet import Features

SUPPORT_RANK = 64  # directions of the supports along which classifiers move
QUERY_RANK = 32  # directions of a query image
SETTLED = 0.1  # how much a support position counts for these, before what is wrong at it under the start
BLOCK = 512  # support positions worked on at once
POWERS = 2  # rounds in which leading directions are found
CENTRED = 10  # steps after which scores of support positions are centred again; an even number, see DENSE
DENSE = 10  # first steps, which read all supports; after them every second one reads those without a novel class
TINY = 1e-30  # probabilities are not taken smaller before a logarithm
LOG2_E = math.log2(math.e)  # powers of two are three times as quick as those of e


@dataclass(frozen=True)
class Block:
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

    def pull(self, start: Tensor, moved: Tensor, steps: Tensor, centre: bool) -> None:
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


@dataclass(frozen=True)
class Supports:
    """The supports as the descent reads them: directions (channels + 1, rank), and their positions in blocks."""

    directions: Tensor
    blocks: Sequence[Block]


class SupportPull:
    """Derivative of the cross entropy on some blocks of supports, for a number of images."""

    def __init__(self, blocks: Sequence[Block], images: int) -> None:
        self.blocks = [(block, block.start.repeat(images, 1, 1)) for block in blocks]

    def __call__(self, moved: Tensor, centre: bool) -> Tensor:
        """By how far the classifiers went, (images, classes, directions); arguments as those of a block."""
        steps = torch.zeros_like(moved)
        for block, start in self.blocks:
            block.pull(start, moved, steps, centre)
        return steps


class QueryPull:
    """Derivative of the loss on query images, without its support part, by the logits of their positions.

    All three parts have the form sum p log(p / something), where p are the class probabilities, their means, or
    folded ones. With the weighted sum L of these logarithms the loss is the mean of sum p L over positions, and its
    derivative by the logits is p (L - sum p L). What is added to L for all classes alike drops out, so logits stand for
    log-probabilities.

    Args:
        snapshot: log-probabilities of the frozen base model (images, background + base, positions).
        classes: background, base and novel ones together.
        held: as in :func:`adapt`.
    """

    def __init__(self, snapshot: Tensor, classes: int, options: DiamOptions, held: float) -> None:
        self.options, self.held, self.known = options, held, snapshot.shape[1]
        self.own = snapshot.new_full((classes, 1), -options.entropy_weight)  # how much of its own logit is in L
        self.own[1 : self.known] += held
        self.background = held * snapshot[:, :1]
        self.fixed = snapshot.new_zeros(len(snapshot), classes, snapshot.shape[2])  # what never changes in L
        self.fixed[:, 1 : self.known] = -held * snapshot[:, 1:]
        self.prior = snapshot.new_empty(0)
        self.probabilities, self.products = torch.empty_like(self.fixed), torch.empty_like(self.fixed)

    def __call__(self, logits: Tensor, iteration: int) -> Tensor:
        """Derivative (images, classes, positions), given the logits, which are overwritten."""
        known = self.known
        logits -= logits.amax(dim=1, keepdim=True)
        probabilities = torch.mul(logits, LOG2_E, out=self.probabilities).exp2_()  # times their sum
        folded = probabilities[:, :1] + probabilities[:, known:].sum(dim=1, keepdim=True)
        away = folded.clamp_min_(TINY).log_().mul_(self.held).sub_(self.background)
        probabilities *= probabilities.sum(dim=1, keepdim=True).reciprocal_()
        shares = probabilities.mean(dim=2, keepdim=True).clamp_min_(TINY).log_()
        if iteration in (0, self.options.prior_update):
            self.prior = shares
        logarithms = torch.addcmul(self.fixed, logits, self.own, out=logits)
        logarithms += self.options.prior_weight * (shares - self.prior)
        logarithms[:, :1] += away
        logarithms[:, known:] += away
        means = torch.mul(probabilities, logarithms, out=self.products).sum(dim=1, keepdim=True)
        return logarithms.sub_(means).mul_(probabilities).div_(logits.shape[2])  # means are taken over positions


def with_ones(maps: Tensor) -> Tensor:
    """Maps (..., channels, positions) with one more channel of ones, which biases multiply."""
    return F.pad(maps, (0, 0, 0, 1), value=1.0)


def supports_in_blocks(start: Tensor, groups: Sequence[tuple[Tensor, float]]) -> Supports:
    """Make blocks of support positions, along directions in which those lie that will pull most.

    Args:
        start: classifier, (classes, channels + 1).
        groups: features (channels + 1, positions) and the weight of a position, first of the positions without a novel
            class, then of each novel class.
    """
    known = len(start) - len(groups) + 1
    gram = start.new_zeros(start.shape[1], start.shape[1])
    for label, (features, weight) in enumerate(groups):
        probabilities = (start @ features).softmax(dim=0)
        likelihood = probabilities[known + label - 1] if label else probabilities[:known].sum(dim=0)
        gram += weight * (features * (SETTLED + 1 - likelihood)) @ features.T
    directions = leading_directions(gram / gram.trace(), SUPPORT_RANK)
    return Supports(
        directions,
        [
            Block(directions.T @ part, LOG2_E * (start @ part), known + label - 1 if label else None, known, weight)
            for label, (features, weight) in enumerate(groups)
            for part in features.split(BLOCK, dim=1)
        ],
    )


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


@torch.no_grad()
def adapt(query: Features, start: Tensor, supports: Supports, options: DiamOptions, held: float) -> Tensor:
    """Descend from the classifier ``start`` (classes, channels + 1), for each query image by itself.

    The derivatives are written out: automatic ones would take about twice the time.

    Args:
        held: weight of the divergence from the base model.

    Returns:
        Classifiers of the images, (images, classes, channels + 1).
    """
    maps = with_ones(query.bottleneck.flatten(2))
    directions = leading_directions(maps @ maps.transpose(1, 2), QUERY_RANK)
    features = directions.transpose(1, 2) @ maps
    between = supports.directions.T @ directions  # (images, directions of the supports, of the image)
    start_logits = start @ maps
    pull_of_query = QueryPull(query.base.flatten(2).log_softmax(dim=1), len(start), options, held)
    plain = SupportPull([block for block in supports.blocks if block.right is None], len(query))
    novel = SupportPull([block for block in supports.blocks if block.right is not None], len(query))
    of_image = maps.new_zeros(len(query), len(start), directions.shape[2])
    of_supports = maps.new_zeros(len(query), len(start), supports.directions.shape[1])
    last = before = torch.zeros_like(of_supports)
    for iteration in range(options.iterations):
        seen = torch.baddbmm(of_image, of_supports, between)  # all that moved, as the image's features see it
        slopes = pull_of_query(torch.baddbmm(start_logits, seen, features), iteration)
        moved = torch.baddbmm(of_supports, of_image, between.transpose(1, 2))  # the same as the supports see it
        centre = iteration % CENTRED == 0
        if iteration < DENSE or iteration % 2 == 0:
            steps = plain(moved, centre)
            if iteration % 2 == 0:
                last, before = steps, last
        else:
            steps = 1.5 * last - 0.5 * before  # on the line through those of the last two even iterations
        of_supports.sub_(steps + novel(moved, centre), alpha=options.rate * options.support_weight)
        of_image.baddbmm_(slopes, features.transpose(1, 2), alpha=-options.rate)
    return start + of_supports @ supports.directions.T + of_image @ directions.transpose(1, 2)
