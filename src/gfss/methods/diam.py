"""DIaM: the classifier is adapted to every query image, held by the supports and by what the base model said."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gfss.data.catalog import VOID
from gfss.features.support import Support
from gfss.methods.base import Method
from gfss.methods.diam_descent import adapt, supports_in_blocks, with_ones
from gfss.methods.diam_options import DiamOptions
from gfss.methods.probe import position_labels, position_samples
from gfss.methods.prototypes import novel_prototypes
from gfss.models.novel.classifier import support_labels
from gfss.models.pspnet import Features

BATCH = 8  # query images that are adapted at once


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
        groups = [
            (with_ones(samples[labels == label].T), (1.0 if label else background) / heard)
            for label in range(support.novel + 1)
        ]
        self.supports = supports_in_blocks(self.start, groups)

    def scores(self, query: Features) -> Tensor:
        return torch.cat([self._scores(query[i : i + BATCH]) for i in range(0, len(query), BATCH)])

    def _scores(self, query: Features) -> Tensor:
        table = adapt(query, self.start, self.supports, self.options, self.held)
        return (table @ with_ones(query.bottleneck.flatten(2))).view(len(query), -1, *query.size)
