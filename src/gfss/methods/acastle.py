"""ACASTLE: all classifier rows are rewritten by attention over each other and over a learned dictionary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gfss.features.episodes import Episode, Support
from gfss.methods.learned import Learned, trainable
from gfss.methods.losses import calibration_loss
from gfss.methods.prototypes import novel_prototypes
from gfss.models.base_model import Features, PyramidHead


@dataclass(frozen=True)
class AcastleOptions:
    """What ACASTLE is made of; :data:`PUBLISHED` differs in the training tasks only.

    Attributes:
        entries: dictionary entries per base class.
        attention_dropout: dropout of the attention.
        dropout: dropout of what the attention adds to a row.
        drawn: fake novel classes of a training episode, or as many as there can be.
        ways: so many of them are novel in a task, the others are base classes.
        tasks: random tasks made of an episode; the loss is their mean.
    """

    entries: int = 2
    attention_dropout: float = 0.1
    dropout: float = 0.5
    drawn: int = 1
    ways: int = 1
    tasks: int = 1


PUBLISHED = AcastleOptions(drawn=16, ways=5, tasks=256)


class Synthesis(nn.Module):
    """Classifier rows Z become Z + W_o attention(Z, [Z; B]), with a learned dictionary B.

    Args:
        base: number of base classes.
        width: channels d of a row.
    """

    def __init__(self, base: int, width: int, options: AcastleOptions) -> None:
        super().__init__()
        self.dictionary = nn.Parameter(torch.empty(options.entries * base, width))
        nn.init.kaiming_normal_(self.dictionary)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        for projection in (self.query, self.key, self.value):
            nn.init.normal_(projection.weight, std=(2 / (width + width)) ** 0.5)
        nn.init.xavier_normal_(self.out.weight)
        self.attention_dropout = nn.Dropout(options.attention_dropout)
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, rows: Tensor) -> Tensor:
        """Synthesised rows of length one from rows of any length, (classes, channels)."""
        rows = F.normalize(rows, dim=1)
        known = torch.cat([rows, self.dictionary])
        likeness = self.query(rows) @ self.key(known).T / rows.shape[1] ** 0.5
        attention = self.attention_dropout(likeness.softmax(dim=1))
        return F.normalize(rows + self.dropout(self.out(attention @ self.value(known))), dim=1)


class Acastle(Learned):
    """ACASTLE on our frozen features.

    Ye, Hu, Zhan: Learning Adaptive Classifiers Synthesis for Generalized Few-Shot Learning (2021),
    https://arxiv.org/abs/1906.02944. Base rows and the prototypes of novel classes are adapted to each other by
    attention over all rows and a learned dictionary. The original is an image classifier with its own encoder; here the
    rows are those of our base classifier, prototypes are masked averages, and every position of our bottleneck is
    classified.

        rows    (background + base + novel, channels)             of length one
        scores  (queries, background + base + novel, h, w)        features times rows
    """

    name = "acastle"

    def __init__(self, head: PyramidHead, options: AcastleOptions | None = None) -> None:
        classes, width = head.classifier.weight.shape[:2]
        self.options = options or AcastleOptions()
        self.fake_classes = self.options.drawn
        self.synthesis = Synthesis(classes - 1, width, self.options)
        super().__init__(self.synthesis)

    @property
    def settings(self) -> dict[str, Any]:
        return {"published": True} if self.options == PUBLISHED else {}

    def learn(self, support: Support) -> None:
        self.rows = self.synthesis(torch.cat([support.base_rows, novel_prototypes(support)]))

    def logits(self, query: Features) -> Tensor:
        return F.conv2d(query.bottleneck, self.rows[..., None, None])

    def loss(self, episode: Episode) -> tuple[Tensor, Tensor]:
        if self.options.tasks == 1:
            return super().loss(episode)
        episode = trainable(episode)
        support, losses = episode.support, list[Tensor]()
        prototypes = novel_prototypes(support)
        pixels = torch.zeros((), dtype=torch.long)
        for _ in range(self.options.tasks):
            rows = support.all_rows.clone()
            chosen = torch.randperm(support.novel)[: self.options.ways]
            rows[support.base + 1 + chosen] = prototypes[chosen]
            self.rows = self.synthesis(rows)
            part, pixels = calibration_loss(self.logits(episode.query.features), episode.query.labels)
            losses.append(part)
        return torch.stack(losses).mean(), pixels
