"""Exchange between classes: a novel class learns that a base class already claims a pixel, and the other way round.

The cross-covariance treats every class by itself. The two networks here are shared by all classes, so the number of
classes stays free and their order does not matter:

* :class:`PixelExchange` sees a pixel's scores and nothing else: the smallest learned calibrator;
* :class:`Exchange` also sees both fusions, what support (:mod:`gfss.models.calibrators.support_similarity`) and query
  (:mod:`gfss.models.calibrators.self_similarity`) say, the neighbourhood of the pixel and the cross-covariance's
  offsets.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from gfss.models.calibrators.support_similarity import Evidence

LOG_FLOOR = 1e-4
SURE = 1e-3  # novel probabilities are taken as between this and one minus this
LOG_SCALE = 4.0  # logarithms are divided by it, so that all inputs are of similar size
CLASS_INPUTS = 8
NOVEL_INPUTS = 14  # of a novel class, and six more for every feature map


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
    """Offsets of all class scores from scores, evidence and cross-covariance.

    Scores come in two forms: each classifier's softmax by itself (NSF), and one softmax over the scores of both (score
    fusion), where a new class has to hold its own against the old ones. Two 3x3 convolutions look at each novel class's
    score and evidence maps; their result is what this class says about a pixel. A second network then decides for every
    class: a novel one hears what is said for itself, any other class what is said for its strongest novel rival. The
    last layer also sees the log-odds rule on score fusion, where training starts.

    Args:
        maps: number of feature maps that evidence comes from.
        attention: whether offsets of the cross-covariance come in.
        both_fusions: whether the scores of score fusion are read; NSF's take their place otherwise (cohesion always
            comes from score fusion).
        hidden: width of both networks.
    """

    def __init__(self, maps: int, attention: bool, both_fusions: bool = True, hidden: int = 48) -> None:
        super().__init__()
        self.both_fusions = both_fusions
        self.look = nn.Sequential(
            nn.Conv2d(NOVEL_INPUTS + 6 * maps, hidden, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(hidden, hidden, 3, padding=1),
            nn.ReLU(),
        )
        self.heard = nn.Conv2d(hidden, hidden, 1)
        self.own = nn.Conv2d(CLASS_INPUTS + 2 + 2 * maps + 2 * attention, hidden, 1, bias=False)
        self.head = nn.Conv2d(hidden + 1, 1, 1, bias=False)  # a bias would move all classes alike
        nn.init.zeros_(self.head.weight)
        with torch.no_grad():
            self.head.weight[0, -1] = 1

    def forward(self, fused: Tensor, novel: int, evidence: Evidence, offsets: Tensor | None = None) -> Tensor:
        """Offsets (batch, classes, h, w).

        Args:
            fused: NSF scores in [0, 1], (batch, classes, h, w).
            novel: number of novel classes, last in class order.
            evidence: what support and query say.
            offsets: of the cross-covariance, like ``fused``.
        """
        batch, classes, height, width = fused.shape
        known, shared = classes - novel, evidence.shared if self.both_fusions else fused
        together = cohesion_inputs(evidence.cohesion)
        seen = torch.cat([novel_inputs(fused, shared, evidence.support), together[:, known:]], dim=2).flatten(0, 1)
        said = self.look(seen.contiguous(memory_format=torch.channels_last))
        said = self.heard(said).contiguous().view(batch, novel, -1, height, width).transpose(1, 2)
        own = [*class_inputs(shared, novel).unbind(dim=2), fused, logs(fused), *together.unbind(dim=2)]
        if offsets is not None:
            own += [offsets, strongest_other(offsets)]
        inputs, rivals = torch.stack(own, dim=1), strongest_novel(said, shared[:, known:])
        if torch.compiler.is_exporting():
            decided = self._decide(inputs, rivals, said)
        else:  # image by image: what is hidden is large, and stays in the processor's cache so
            parts = zip(inputs.split(1), rivals.split(1), said.split(1), strict=True)
            decided = torch.cat([self._decide(*part) for part in parts])
        return decided + self.head.weight[0, -1] * log_odds_scores(shared, novel)

    def _decide(self, own: Tensor, rivals: Tensor, said: Tensor) -> Tensor:
        """The second network without its last input, (batch, classes, h, w).

        Args:
            own: what is known of every class, (batch, inputs, classes, h, w).
            rivals: what is said for the strongest novel class, (batch, hidden, h, w).
            said: for every novel class, (batch, hidden, novel, h, w).
        """
        hidden = self.own.weight[:, :, 0, 0] @ own.flatten(2)  # faster on a CPU than a convolution
        heard = hidden.view(len(own), -1, *own.shape[2:])
        known = own.shape[2] - said.shape[2]
        heard[:, :, :known] += rivals[:, :, None]
        heard[:, :, known:] += said
        return (self.head.weight[0, :-1, 0, 0] @ hidden.relu_()).view_as(own[:, 0])


def class_inputs(fused: Tensor, novel: int) -> Tensor:
    """What is known of every class at every pixel, (batch, classes, inputs, h, w)."""
    classes = fused.shape[1]
    kinds = fused.new_zeros(3, classes)
    kinds[0, 0] = 1  # background
    kinds[1, 1 : classes - novel] = 1  # base
    kinds[2, classes - novel :] = 1  # novel
    maps = [
        fused,
        logs(fused),
        strongest_other(fused),
        fused.amax(dim=(2, 3), keepdim=True).expand_as(fused),
        fused.mean(dim=(2, 3), keepdim=True).expand_as(fused),
        *(kind.view(1, -1, 1, 1).expand_as(fused) for kind in kinds),
    ]
    return torch.stack(maps, dim=2)


def cohesion_inputs(cohesion: Tensor) -> Tensor:
    """Cohesion of every class and its lead over the strongest other class, (batch, classes, 2 maps, h, w)."""
    scaled = 4 * cohesion - 2  # similarities lie close together: to the size of the other inputs
    return torch.cat([scaled, scaled - strongest_other(scaled)], dim=2)


def novel_inputs(fused: Tensor, shared: Tensor, support: Tensor) -> Tensor:
    """What is known of every novel class at every pixel, (batch, novel, inputs, h, w)."""
    known = fused.shape[1] - support.shape[1]
    maps = support.shape[2] // 2
    alone, new = fused[:, known:, None], shared[:, known:, None]
    background = shared[:, None, :1].expand_as(new)
    strongest = shared[:, 1:known].amax(dim=1)[:, None, None].expand_as(new)
    near, like, confused = support.split([maps, maps, 1], dim=2)
    near, like = 4 * near, 2 * like  # similarities vary little: to the size of the other inputs
    whole = torch.cat([log_odds(new), new, near], dim=2)
    inputs = [
        log_odds(new),
        new,
        background,
        logs(background),
        strongest,
        near,
        like,
        confused,
        confused.clamp_min(SURE).log() / LOG_SCALE,
        whole.amax(dim=(3, 4), keepdim=True).expand_as(whole),
        whole.mean(dim=(3, 4), keepdim=True).expand_as(whole),
        log_odds(alone),
        alone,
        torch.full_like(new, math.log(support.shape[1]) / 2),
    ]
    return torch.cat(inputs, dim=2)


def logs(scores: Tensor) -> Tensor:
    """Logarithms of scores, to the size of other inputs."""
    return scores.clamp_min(LOG_FLOOR).log() / LOG_SCALE


def log_odds(scores: Tensor) -> Tensor:
    """Log-odds of novel scores, to the size of other inputs."""
    return scores.clamp(SURE, 1 - SURE).logit() / LOG_SCALE


def log_odds_scores(fused: Tensor, novel: int) -> Tensor:
    """Logarithms of the log-odds rule's scores (see :func:`gfss.models.calibrators.rules.log_odds`), not normalised.

    Where there are n novel classes, each is rarer: its odds are divided by the root of n, which on held-out base
    classes was better than n or nothing.
    """
    known = fused.shape[1] - novel
    old = fused[:, :known].clamp_min(LOG_FLOOR).log()
    odds = fused[:, known:].clamp(SURE, 1 - SURE).logit() - math.log(novel) / 2
    return torch.cat([old, old[:, :1] + odds], dim=1)


def strongest_novel(values: Tensor, scores: Tensor) -> Tensor:
    """At every pixel the values (batch, n, novel, h, w) of the novel class with the highest score, (batch, n, h, w)."""
    if values.shape[2] == 1:
        return values[:, :, 0]
    best = scores.argmax(dim=1)[:, None, None].expand(-1, values.shape[1], -1, -1, -1)
    return values.gather(2, best)[:, :, 0]


def strongest_other(scores: Tensor) -> Tensor:
    """For every class the largest score among the other classes, same shape as ``scores``."""
    best = scores.amax(dim=1, keepdim=True)
    is_best = scores == best
    second = scores.masked_fill(is_best, -math.inf).amax(dim=1, keepdim=True)
    alone = is_best.sum(dim=1, keepdim=True) == 1  # where two are best, each has the other
    return torch.where(is_best & alone, second, best)
