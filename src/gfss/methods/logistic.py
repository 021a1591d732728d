"""Logistic regression on the encoder's levels: the twenty lines that every method has to beat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gfss.data.catalog import VOID
from gfss.features.episodes import Support
from gfss.methods.base import Method
from gfss.models.base_model import Features
from gfss.models.novel.logistic import (
    LogisticHead,
    LogisticOptions,
    features_at,
    finest_grid,
    fit_logistic,
    known_or_novel,
    unit_maps,
)

Maps = Mapping[str, Tensor]
POSITIONS = (1000, 2000)  # of the class and of the rest in every support image, at most
OPTIONS = LogisticOptions(l2=1e-3, iterations=150)


def grid_labels(labels: Tensor, size: tuple[int, int]) -> Tensor:
    """Labels (height, width) at the positions of a grid whose corners lie on those of the image."""
    rows = torch.linspace(0, labels.shape[0] - 1, size[0]).round().long()
    columns = torch.linspace(0, labels.shape[1] - 1, size[1]).round().long()
    return labels[rows][:, columns]


def fit_rows(supports: Sequence[tuple[Maps, Tensor]], classes: int, seed: int = 0) -> LogisticHead:
    """One row per class against the rest, fitted to convergence on standardised positions.

    Args:
        supports: unit maps (1, channels, h, w) and labels (height, width) of each image: 0 the rest, 1..classes the
            classes, 255 void.
    """
    rows: list[Tensor] = []
    biases: list[Tensor] = []
    for label in range(1, classes + 1):
        generator = torch.Generator().manual_seed(seed)
        features: list[Tensor] = []
        positive: list[Tensor] = []
        for maps, labels in supports:
            on_grid = grid_labels(labels, finest_grid(maps))
            kinds = (on_grid == label, (on_grid != label) & (on_grid != VOID))
            for kind, most, truth in zip(kinds, POSITIONS, (True, False), strict=True):
                places = kind.nonzero()
                places = places[torch.randperm(len(places), generator=generator)[:most]]
                features.append(features_at(maps, places[:, 0], places[:, 1]))
                positive.append(torch.full((len(places),), truth))
        stacked, truths = torch.cat(features), torch.cat(positive)
        weight, bias = fit_logistic(stacked, truths, torch.ones(len(truths)), OPTIONS)
        rows.append(weight)
        biases.append(bias)
    return LogisticHead(torch.stack(rows), torch.stack(biases))


def novel_supports(support: Support) -> list[tuple[Maps, Tensor]]:
    """Unit maps and labels of every support image: 0 the rest, 1..n the novel classes, 255 void."""
    support.check()
    labels = (support.labels.int() - support.base).clamp_min(0).to(support.labels.dtype)
    labels = torch.where(support.labels == VOID, support.labels, labels)
    return [(unit_maps(support.features[[i]].levels), labels[i]) for i in range(len(support.features))]


class Logistic(Method):
    """Logistic regression of every novel class against the rest of its support images; the base model decides else."""

    name = "logistic"

    def learn(self, support: Support) -> None:
        self.head = fit_rows(novel_supports(support), support.novel)

    def scores(self, query: Features) -> Tensor:
        return known_or_novel(query.base, self.head.logits(unit_maps(query.levels)))
