"""BCM as its authors run it: cross-validated regressions on square roots of features, one per shot."""

from __future__ import annotations

import torch
from torch import Tensor

from gfss.common.errors import GfssError
from gfss.features.episodes import Support
from gfss.methods.base import Method
from gfss.methods.bcm import Confusion, confused_classes
from gfss.methods.probe import LinearClassifier, ProbeOptions, fit_probe, position_labels, position_samples
from gfss.models.base_model import Features

PENALTIES = tuple(10 ** (-4 + 8 * i / 9) for i in range(10))  # ten values of C from 1e-4 to 1e4, evenly by logarithm
PARTS = 5  # of the cross-validation
FIT = ProbeOptions(iterations=100, tolerance=1e-4)  # scikit-learn's defaults, which the published program keeps
SURE = 1e-6  # averaged probabilities are not taken nearer to 0 or 1


class PublishedBaseClassMining(Method):
    """BCM in its published settings; see :class:`gfss.methods.bcm.BaseClassMining` for the idea and ours.

    What differs: the regression reads the square root of the bottleneck features; its penalty is chosen out of ten by
    five-fold cross-validation on average precision; all support positions without a novel class are negatives, drawn
    down to the number of the largest novel class; and with several shots there is one regression per shot, whose
    probabilities are averaged.
    """

    name = "bcm-published"

    def learn(self, support: Support) -> None:
        support.check()
        labels = position_labels(support).long()
        predicted = support.features.base.argmax(dim=1)
        samples = root_features(support.features)
        confused = [own[0] for own in confused_classes(predicted.flatten(), labels.flatten(), support)]
        self.novel = support.novel
        self.confusions = [
            [
                self._fit(
                    base, tuple(i for i, own in enumerate(confused) if own == base), samples, labels, support, shot
                )
                for shot in shots_of(support.owners)
            ]
            for base in sorted(set(confused))
        ]

    def _fit(
        self, base: int, novel: tuple[int, ...], samples: Tensor, labels: Tensor, support: Support, shot: list[int]
    ) -> Confusion:
        """The regression of one shot: a confused class against the novel classes that are taken for it."""
        inputs, truth = position_samples(samples[shot]), labels[shot].flatten()
        target = torch.where(truth <= support.base, 0, -1)  # other novel classes and void are left out
        for output, position in enumerate(novel, start=1):
            target[truth == support.base + 1 + position] = output
        most = max(int((target == output).sum()) for output in range(1, 1 + len(novel)))
        negatives = torch.nonzero(target == 0)[:, 0]
        if len(negatives) == 0:
            raise GfssError("the support masks show only new classes and nothing else; leave some background in them")
        order = torch.randperm(len(negatives), generator=torch.Generator().manual_seed(0)).to(negatives.device)
        target[negatives[order[most:]]] = -1
        used = target >= 0
        return Confusion(base, novel, fit_cross_validated(inputs[used], target[used], 1 + len(novel)))

    def scores(self, query: Features) -> Tensor:
        """Base logits as they are; a novel class scores its confused class's logit plus its averaged log-odds."""
        maps = root_features(query)
        predicted = query.base.argmax(dim=1, keepdim=True)
        novel = query.base.new_full((len(query), self.novel, *query.size), -torch.inf)
        for shots in self.confusions:
            first = shots[0]
            shares = torch.stack([shot.classifier.logits(maps).softmax(dim=1) for shot in shots]).mean(dim=0)
            shares = shares.clamp(SURE, 1 - SURE)
            odds = (shares[:, 1:] / shares[:, :1]).log()
            odds = torch.where(predicted == first.confused, odds, odds.clamp_max(0))
            novel[:, list(first.novel)] = query.base[:, first.confused, None] + odds
        return torch.cat([query.base, novel], dim=1)


def root_features(features: Features) -> Tensor:
    """Square roots of the bottleneck, which a ReLU ends."""
    return features.bottleneck.clamp_min(0).sqrt()


def shots_of(owners: tuple[int, ...]) -> list[list[int]]:
    """Support images of every shot: the first of each class, the second of each class, ...

    >>> shots_of((0, 0, 1, 1))
    [[0, 2], [1, 3]]
    """
    of_class = {owner: [i for i, one in enumerate(owners) if one == owner] for owner in sorted(set(owners))}
    most = max(len(images) for images in of_class.values())
    return [[images[shot] for images in of_class.values() if shot < len(images)] for shot in range(most)]


def fit_cross_validated(samples: Tensor, labels: Tensor, classes: int) -> LinearClassifier:
    """Logistic regression with the penalty whose mean average precision over held-out parts is highest."""
    parts = stratified_parts(labels)
    scores = [_validated(samples, labels, classes, parts, penalty) for penalty in PENALTIES]
    best = max(range(len(PENALTIES)), key=lambda i: scores[i])  # the first of equals: the strongest penalty
    return fit_probe(samples, labels, classes, ProbeOptions(PENALTIES[best], FIT.iterations, FIT.tolerance))


def _validated(samples: Tensor, labels: Tensor, classes: int, parts: Tensor, penalty: float) -> float:
    options = ProbeOptions(penalty, FIT.iterations, FIT.tolerance)
    found: list[float] = []
    for part in range(PARTS):
        inside, outside = parts != part, parts == part
        if min(len(labels[inside].unique()), len(labels[outside].unique())) < classes:
            continue  # a class with fewer positions than parts
        model = fit_probe(samples[inside], labels[inside], classes, options)
        shares = (samples[outside] @ model.rows.T + model.biases).softmax(dim=1)
        truth = labels[outside]
        found += [average_precision(shares[:, c], truth == c) for c in range(1 if classes == 2 else 0, classes)]
    return sum(found) / len(found) if found else 0.0


def stratified_parts(labels: Tensor) -> Tensor:
    """Part (0..4) of every sample: the samples of a class, in their order, in five runs of equal length."""
    parts = torch.empty_like(labels)
    for label in labels.unique():
        own = torch.nonzero(labels == label)[:, 0]
        parts[own] = torch.arange(len(own), device=labels.device) * PARTS // len(own)
    return parts


def average_precision(scores: Tensor, positive: Tensor) -> float:
    """Mean over the positives of the precision at their score.

    >>> average_precision(torch.tensor([0.9, 0.8, 0.7]), torch.tensor([True, False, True]))
    0.8333333...
    """
    hits = positive[scores.argsort(descending=True, stable=True)].double()
    precision = hits.cumsum(dim=0) / torch.arange(1, len(hits) + 1, device=hits.device)
    return float((precision * hits).sum() / hits.sum())
