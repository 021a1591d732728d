"""Exchange between classes: a novel class learns that a base class already claims a pixel, and the other way round.

The cross-covariance treats every class by itself. The two networks here are shared by all classes, so the number of
classes stays free and their order does not matter:

* :class:`PixelExchange` sees a pixel's scores and nothing else: the smallest learned calibrator;
* :class:`Exchange` also sees what the support set says (:mod:`gfss.models.evidence`), the neighbourhood of the pixel
  and the cross-covariance's offsets.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

LOG_FLOOR = 1e-4
SURE = 1e-3  # novel probabilities are taken as between this and one minus this
LOG_SCALE = 4.0  # logarithms are divided by it, so that all inputs are of similar size
CLASS_INPUTS = 8


class PixelExchange(nn.Module):
    """Offsets of all class scores from the scores at the same pixel."""

    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.first = nn.Conv2d(CLASS_INPUTS, hidden, 1)
        self.second = nn.Conv2d(hidden, 1, 1)
        for weight in self.second.parameters():
            nn.init.zeros_(weight)

    def forward(self, fused: Tensor, novel: int) -> Tensor:
        """Offsets (batch, classes, h, w); arguments as in :meth:`Exchange.forward`."""
        inputs = class_inputs(fused, novel).flatten(0, 1)
        return self.second(torch.relu(self.first(inputs))).view_as(fused)


class Exchange(nn.Module):
    """Offsets of all class scores from scores, support evidence and cross-covariance.

    Two 3x3 convolutions look at each novel class's score and evidence maps; their result is what this class says about
    a pixel. A second network then decides for every class: a novel one hears what is said for itself, any other class
    what is said for its strongest novel rival. The last layer also sees the log-odds rule, where training starts.

    Args:
        evidence: evidence maps per novel class; the first ``nearness`` of them are judged over the whole image too.
        nearness: how many of them are nearness maps.
        attention: whether offsets of the cross-covariance come in.
        hidden: width of both networks.
    """

    def __init__(self, evidence: int, nearness: int, attention: bool, hidden: int = 48) -> None:
        super().__init__()
        self.nearness = nearness
        self.look = nn.Sequential(
            nn.Conv2d(6 + evidence + 2 * (2 + nearness), hidden, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(hidden, hidden, 3, padding=1),
            nn.ReLU(),
        )
        self.heard = nn.Conv2d(hidden, hidden, 1)
        self.own = nn.Conv2d(CLASS_INPUTS + 2 * attention, hidden, 1, bias=False)
        self.head = nn.Conv2d(hidden + 1, 1, 1, bias=False)  # a bias would move all classes alike
        nn.init.zeros_(self.head.weight)
        with torch.no_grad():
            self.head.weight[0, -1] = 1

    def forward(self, fused: Tensor, novel: int, evidence: Tensor, offsets: Tensor | None = None) -> Tensor:
        """Offsets (batch, classes, h, w).

        Args:
            fused: NSF scores in [0, 1], (batch, classes, h, w).
            novel: number of novel classes, last in class order.
            evidence: (batch, novel, maps, h, w), see :func:`gfss.models.evidence.compare`.
            offsets: of the cross-covariance, like ``fused``.
        """
        batch, classes, height, width = fused.shape
        known = classes - novel
        inputs = novel_inputs(fused, novel, evidence, self.nearness).flatten(0, 1)
        said = self.look(inputs.contiguous(memory_format=torch.channels_last))
        said = self.heard(said).contiguous().view(batch, novel, -1, height, width)
        own = class_inputs(fused, novel)
        if offsets is not None:
            own = torch.cat([own, offsets[:, :, None], strongest_other(offsets)[:, :, None]], dim=2)
        # products of batches: a convolution to a single channel is slow on a CPU, and so is torch's product of a
        # parameter with a batch, which it turns into one large product with copies
        hidden = self.own.weight[:, :, 0, 0].expand(batch, classes, -1, -1) @ own.flatten(3)
        hidden[:, :known] += strongest_novel(said, fused[:, known:])[:, None].flatten(3)
        hidden[:, known:] += said.flatten(3)
        head = self.head.weight[:, :-1, 0, 0].expand(batch, classes, -1, -1)
        decided = (head @ hidden.relu_()).view_as(fused)
        return decided + self.head.weight[0, -1] * log_odds_scores(fused, novel)


def class_inputs(fused: Tensor, novel: int) -> Tensor:
    """What is known of every class at every pixel, (batch, classes, inputs, h, w)."""
    classes = fused.shape[1]
    kinds = fused.new_zeros(3, classes)
    kinds[0, 0] = 1  # background
    kinds[1, 1 : classes - novel] = 1  # base
    kinds[2, classes - novel :] = 1  # novel
    maps = [
        fused,
        fused.clamp_min(LOG_FLOOR).log() / LOG_SCALE,
        strongest_other(fused),
        fused.amax(dim=(2, 3), keepdim=True).expand_as(fused),
        fused.mean(dim=(2, 3), keepdim=True).expand_as(fused),
        *(kind.view(1, -1, 1, 1).expand_as(fused) for kind in kinds),
    ]
    return torch.stack(maps, dim=2)


def novel_inputs(fused: Tensor, novel: int, evidence: Tensor, nearness: int) -> Tensor:
    """What is known of every novel class at every pixel, (batch, novel, inputs, h, w)."""
    known = fused.shape[1] - novel
    new = fused[:, known:, None]
    odds = new.clamp(SURE, 1 - SURE).logit() / LOG_SCALE
    background = fused[:, None, :1].expand_as(new)
    strongest = fused[:, 1:known].amax(dim=1)[:, None, None].expand_as(new)
    near, others, confused = evidence.split([nearness, evidence.shape[2] - nearness - 1, 1], dim=2)
    near, others = 4 * near, 2 * others  # similarities vary little: to the size of the other inputs
    whole = torch.cat([odds, new, near], dim=2)
    maps = [
        odds,
        new,
        background,
        background.clamp_min(LOG_FLOOR).log() / LOG_SCALE,
        strongest,
        near,
        others,
        confused,
        confused.clamp_min(SURE).log() / LOG_SCALE,
        whole.amax(dim=(3, 4), keepdim=True).expand_as(whole),
        whole.mean(dim=(3, 4), keepdim=True).expand_as(whole),
    ]
    return torch.cat(maps, dim=2)


def log_odds_scores(fused: Tensor, novel: int) -> Tensor:
    """Logarithms of the log-odds rule's scores (see :func:`gfss.models.rules.log_odds`), not normalised.

    Calibrators learn on one novel class at a time. Where there are n, each is rarer: its odds are divided by the
    root of n, which on held-out base classes was better than n or nothing.
    """
    known = fused.shape[1] - novel
    old = fused[:, :known].clamp_min(LOG_FLOOR).log()
    odds = fused[:, known:].clamp(SURE, 1 - SURE).logit() - math.log(novel) / 2
    return torch.cat([old, old[:, :1] + odds], dim=1)


def strongest_novel(values: Tensor, scores: Tensor) -> Tensor:
    """At every pixel the values (batch, novel, n, h, w) of the novel class with the highest score, (batch, n, h, w)."""
    if values.shape[1] == 1:
        return values[:, 0]
    best = scores.argmax(dim=1)[:, None, None].expand(-1, 1, values.shape[2], -1, -1)
    return values.gather(1, best)[:, 0]


def strongest_other(scores: Tensor) -> Tensor:
    """For every class the largest score among the other classes, same shape as ``scores``."""
    best = scores.amax(dim=1, keepdim=True)
    is_best = scores == best
    second = scores.masked_fill(is_best, -math.inf).amax(dim=1, keepdim=True)
    alone = is_best.sum(dim=1, keepdim=True) == 1  # where two are best, each has the other
    return torch.where(is_best & alone, second, best)
