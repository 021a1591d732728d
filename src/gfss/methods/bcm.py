"""Base-class mining: find the base classes that the new object is taken for, and learn to tell it from them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gfss.common.errors import GfssError
from gfss.features.episodes import Support
from gfss.methods.base import Method
from gfss.methods.probe import LinearClassifier, ProbeOptions, fit_probe, position_labels, position_samples
from gfss.models.base_model import Features
from gfss.models.novel.classifier import NovelOptions, novel_maps


@dataclass(frozen=True)
class Confusion:
    """A base class and the novel classes that the base model takes for it.

    Attributes:
        confused: label of the base class; 0 is background.
        novel: positions (0..n-1) of the novel classes.
        classifier: tells the base class (output 0) from these novel classes (outputs 1, 2, ...).
    """

    confused: int
    novel: tuple[int, ...]
    classifier: LinearClassifier


def confused_classes(predicted: Tensor, labels: Tensor, support: Support, most: int = 1) -> list[list[int]]:
    """For each novel class the base labels (background included) that most of its positions are predicted as.

    Args:
        predicted: base model's classes at the support positions, (positions,).
        labels: true labels of the same positions.
        most: number of base labels; fewer if the class is never taken for so many.
    """
    counts = [predicted[labels == label].bincount(minlength=support.base + 1) for label in support.novel_labels]
    orders = [count.argsort(descending=True, stable=True)[:most] for count in counts]
    return [order[count[order] > 0].tolist() for count, order in zip(counts, orders, strict=True)]


class BaseClassMining(Method):
    """BCM: a logistic regression per confused base class, which may only overrule that class.

    Sakai, Qiu, Katsuki, Kimura, Osogami, Inoue: A Surprisingly Simple Approach to Generalized Few-Shot Semantic
    Segmentation (2024), https://openreview.net/forum?id=p3nPHMpx04. A query position that the base model gives to any
    other class keeps its class. Novel classes with the same confused class share one multinomial regression.

        samples  (support positions, channels)
        scores   (queries, background + base + novel, h, w)   base logits as they are, novel ones beside them

    Negatives are the support positions that are predicted as the confused class and are not novel. Base images are
    not at hand when a class is taught, so what the confused class looks like outside the support images is unknown
    to the regression; if the supports show no such position, all their other positions stand in.

    Args:
        maps: which features the regression reads and whether they are normalised.
        options: of the regression.
        mined: base classes that a novel class may overrule at most; the paper plots several numbers.
        balanced: all support positions without a novel class are negatives and together weigh no more than the novel
            ones, as in the published program.
    """

    name = "bcm"

    def __init__(
        self,
        maps: NovelOptions | None = None,
        options: ProbeOptions | None = None,
        mined: int = 1,
        balanced: bool = False,
        name: str = "bcm",
    ) -> None:
        self.maps = maps or NovelOptions()
        self.options = options or ProbeOptions()
        self.mined, self.balanced = mined, balanced
        self.name = name  # type: ignore[misc]

    def learn(self, support: Support) -> None:
        support.check()
        labels = position_labels(support).flatten().long()
        predicted = support.features.base.argmax(dim=1).flatten()
        samples = position_samples(novel_maps(support.features, self.maps))
        confused = confused_classes(predicted, labels, support, self.mined)
        self.novel = support.novel
        self.confusions = [
            self._fit(
                base, tuple(i for i, own in enumerate(confused) if base in own), samples, labels, predicted, support
            )
            for base in sorted({base for own in confused for base in own})
        ]

    def _fit(
        self, base: int, novel: tuple[int, ...], samples: Tensor, labels: Tensor, predicted: Tensor, support: Support
    ) -> Confusion:
        others = labels <= support.base  # void is 255
        negatives = others & (predicted == base)
        if self.balanced or not negatives.any():
            negatives = others
        if not negatives.any():
            raise GfssError("the support masks show only new classes and nothing else; leave some background in them")
        target = torch.full_like(labels, -1)
        target[negatives] = 0
        for output, position in enumerate(novel, start=1):
            target[labels == support.base + 1 + position] = output
        used = target >= 0
        weights = None
        if self.balanced:
            counts = target[used].bincount(minlength=1 + len(novel)).to(samples)
            weights = torch.ones_like(counts)
            weights[0] = (counts[1:].mean() / counts[0]).clamp_max(1)
        classifier = fit_probe(samples[used], target[used], 1 + len(novel), self.options, weights)
        return Confusion(base, novel, classifier)

    def scores(self, query: Features) -> Tensor:
        """Base logits as they are; a novel class scores the confused class's logit plus its log-odds against it.

        Where the base model predicts another class, positive log-odds are cut to zero: the novel class then never
        exceeds its confused class, here or between positions once the scores are upsampled. Of several confused
        classes the highest score counts.
        """
        maps = novel_maps(query, self.maps)
        predicted = query.base.argmax(dim=1, keepdim=True)
        novel = query.base.new_full((len(query), self.novel, *query.size), -torch.inf)
        for confusion in self.confusions:
            logits = confusion.classifier.logits(maps)
            odds = logits[:, 1:] - logits[:, :1]
            odds = torch.where(predicted == confusion.confused, odds, odds.clamp_max(0))
            its = list(confusion.novel)
            novel[:, its] = torch.maximum(novel[:, its], query.base[:, confusion.confused, None] + odds)
        return torch.cat([query.base, novel], dim=1)
