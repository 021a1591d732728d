"""Exchange between classes: a novel class learns that a base class already claims a pixel, and the other way round.

The cross-covariance treats every class by itself. This part is one small network, shared by all classes, that sees
for a class and a pixel: its own score, the strongest other class's, the background's, how the class does in the
whole image, and the cross-covariance's evidence for it and for its strongest rival.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

LOG_FLOOR = 1e-4


class Exchange(nn.Module):
    """Offsets of all class scores from the scores of all classes.

    Args:
        evidence: whether evidence maps of the cross-covariance come in too.
        hidden: width of the network.
        kernel: 1 looks at a pixel alone, 3 at its neighbours too.
    """

    def __init__(self, evidence: bool, hidden: int = 32, kernel: int = 3) -> None:
        super().__init__()
        self.evidence = evidence
        inputs = 11 if evidence else 8
        self.first = nn.Conv2d(inputs, hidden, kernel, padding=kernel // 2)
        self.second = nn.Conv2d(hidden, 1, 1)
        for weight in self.second.parameters():
            nn.init.zeros_(weight)

    def forward(self, fused: Tensor, evidence: Tensor | None, novel: int) -> Tensor:
        """Offsets (batch, classes, h, w).

        Args:
            fused: NSF scores in [0, 1], (batch, classes, h, w).
            evidence: cross-covariance offsets of the same shape.
            novel: number of novel classes, last in class order.
        """
        batch, classes, height, width = fused.shape
        is_novel = torch.zeros(classes).to(fused)
        is_novel[classes - novel :] = 1
        is_background = torch.zeros(classes).to(fused)
        is_background[0] = 1
        inputs = [
            fused,
            fused.clamp_min(LOG_FLOOR).log() / 4,
            strongest_other(fused),
            fused[:, :1].expand_as(fused),
            fused.amax(dim=(2, 3), keepdim=True).expand_as(fused),
            fused.mean(dim=(2, 3), keepdim=True).expand_as(fused),
            is_novel.view(1, -1, 1, 1).expand_as(fused),
            is_background.view(1, -1, 1, 1).expand_as(fused),
        ]
        if evidence is not None:
            inputs += [evidence, strongest_other(evidence), evidence[:, :1].expand_as(fused)]
        stacked = torch.stack(inputs, dim=2).flatten(0, 1)
        offset = self.second(torch.relu(self.first(stacked))).view(batch, classes, height, width)
        return offset if evidence is None else offset + evidence


def strongest_other(scores: Tensor) -> Tensor:
    """For every class the largest score among the other classes, same shape as ``scores``."""
    best, second = scores.topk(2, dim=1).values.split(1, dim=1)
    return torch.where(scores == best, second, best)
