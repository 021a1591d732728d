"""Cosine with the mean feature of a class, the threshold chosen on the support images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from gfss.data.catalog import VOID
from gfss.features.episodes import Support
from gfss.methods.base import Method
from gfss.methods.logistic import Maps, grid_labels, novel_supports
from gfss.models.base_model import Features
from gfss.models.novel.logistic import LogisticHead, finest_grid, known_or_novel, unit_maps
from gfss.models.ops.upsample import upsample

THRESHOLDS = 101


def prototype_rows(supports: Sequence[tuple[Maps, Tensor]], classes: int) -> LogisticHead:
    """The mean unit feature of every class as a row of length one; minus the best threshold as bias.

    Args:
        supports: unit maps (1, channels, h, w) and labels (height, width) of each image: 0 the rest, 1..classes the
            classes, 255 void.
    """
    rows: list[Tensor] = []
    biases: list[Tensor] = []
    for label in range(1, classes + 1):
        vectors: list[Tensor] = []
        truth: list[Tensor] = []
        for maps, labels in supports:
            size = finest_grid(maps)
            on_grid = grid_labels(labels, size)
            valid = on_grid != VOID
            whole = torch.cat([upsample(level, size) for level in maps.values()], dim=1)[0]
            vectors.append(whole[:, valid].T)
            truth.append(on_grid[valid] == label)
        positive = torch.cat(truth)
        own = torch.cat([part[kind] for part, kind in zip(vectors, truth, strict=True)])
        row = F.normalize(own.mean(dim=0), dim=0) / len(supports[0][0]) ** 0.5
        cosine = torch.cat([part @ row for part in vectors])
        places = torch.linspace(float(cosine.min()), float(cosine.max()), THRESHOLDS)
        found = cosine[None] > places[:, None]
        overlap = (found & positive).sum(dim=1) / (found | positive).sum(dim=1)
        rows.append(row)
        biases.append(-places[int(overlap.argmax())])
    return LogisticHead(torch.stack(rows), torch.stack(biases))


class Prototype(Method):
    """Nearest prototype with a threshold; the base model decides where no novel class reaches its own."""

    name = "prototype"

    def learn(self, support: Support) -> None:
        self.head = prototype_rows(novel_supports(support), support.novel)

    def scores(self, query: Features) -> Tensor:
        return known_or_novel(query.base, self.head.logits(unit_maps(query.levels)))
