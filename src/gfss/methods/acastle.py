"""ACASTLE: all classifier rows are rewritten by attention over each other and over a learned dictionary."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gfss.features.episodes import Support
from gfss.methods.learned import Learned
from gfss.methods.prototypes import novel_prototypes
from gfss.models.base_model import Features, PyramidHead


@dataclass(frozen=True)
class AcastleOptions:
    """What ACASTLE is made of; the defaults are the published ones.

    Attributes:
        entries: dictionary entries per base class.
        attention_dropout: dropout of the attention.
        dropout: dropout of what the attention adds to a row.
    """

    entries: int = 2
    attention_dropout: float = 0.1
    dropout: float = 0.5


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
        self.synthesis = Synthesis(classes - 1, width, options or AcastleOptions())
        super().__init__(self.synthesis)

    def learn(self, support: Support) -> None:
        self.rows = self.synthesis(torch.cat([support.base_rows, novel_prototypes(support)]))

    def logits(self, query: Features) -> Tensor:
        return F.conv2d(query.bottleneck, self.rows[..., None, None])
