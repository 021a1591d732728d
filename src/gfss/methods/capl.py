"""CAPL: prototypes that take up context from the support images and from each query image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gfss.features.episodes import Episode, Support
from gfss.methods.learned import Learned, images_of, trainable
from gfss.methods.losses import calibration_loss
from gfss.models.base_model import Features, PyramidHead
from gfss.models.ops.upsample import mask_shares


@dataclass(frozen=True)
class CaplOptions:
    """What CAPL is made of; the defaults are the published ones but for the lengths of vectors.

    Attributes:
        scale: of the cosine.
        background: how often the background takes part as context in training; at test it always does.
        enriched: share of the loss under rows enriched by the query; the rest is under the support's rows alone.
        raw: features and prototypes are averaged and mixed at their own lengths, as in the published program: queries
            enrich raw prototypes by raw features, supports are averaged raw at test and at length one in training, and
            the gate reads prototypes of length one. Otherwise all features have length one, and the prototypes
            start with it.
    """

    scale: float = 10.0
    background: float = 0.5
    enriched: float = 0.5
    raw: bool = False


PUBLISHED = CaplOptions(raw=True)


class Prototypes(nn.Module):
    """Learned part of CAPL: projection of the features, prototypes P of all base classes, gate.

    The projection starts as identity and the prototypes as the directions of the base classifier.

    Args:
        rows: of the base classifier (base + 1, channels).
    """

    def __init__(self, rows: Tensor, options: CaplOptions) -> None:
        super().__init__()
        width = rows.shape[1]
        self.scale, self.raw = options.scale, options.raw
        self.project = nn.Conv2d(width, width, 1, bias=False)
        nn.init.dirac_(self.project.weight)
        self.prototypes = nn.Parameter(rows.clone() if options.raw else F.normalize(rows, dim=1))
        self.gate = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))

    def embed(self, features: Features) -> Tensor:
        """Projected features x, of length one unless they are raw, (images, channels, h, w)."""
        x = self.project(features.bottleneck)
        return x if self.raw else F.normalize(x, dim=1)

    def embed_support(self, features: Features) -> Tensor:
        """Projected features of supports, raw at test only."""
        x = self.embed(features)
        return F.normalize(x, dim=1) if self.training else x

    def known(self, labels: tuple[int, ...]) -> Tensor:
        """Prototypes P of some classes as the support's rows are made of them."""
        prototypes = self.prototypes[list(labels)]
        return F.normalize(prototypes, dim=1) if self.raw and self.training else prototypes

    def mix(self, known: Tensor, seen: Tensor) -> Tensor:
        """Rows g P + (1 - g) mean with the gate g, (base + 1, channels); of length one unless raw ones are trained.

        Args:
            known: prototypes P of the base classes.
            seen: mean features of these classes in the support.
        """
        as_they_are = self.raw and self.training
        seen = seen if as_they_are else F.normalize(seen, dim=1)
        known = F.normalize(known, dim=1) if self.raw and not as_they_are else known
        gate = self.gate(torch.cat([known, seen], dim=1)).sigmoid()
        rows = gate * known + (1 - gate) * seen
        return rows if as_they_are else F.normalize(rows, dim=1)

    def enrich(self, x: Tensor, known: Tensor) -> Tensor:
        """Prototypes that take up what each query shows of their class, (queries, base + 1, channels).

        A class's summary q is an average of the pixels like it; the more q resembles P, the more of it is taken.

        Args:
            x: (queries, channels, h, w) of length one.
            known: prototypes P of the base classes.
        """
        attention = self.cosine(x, F.normalize(known, dim=1)).flatten(2).softmax(dim=2)
        summary = torch.einsum("qcp,qdp->qcd", attention, x.flatten(2))
        trust = F.cosine_similarity(summary, known[None], dim=2).clamp_min(0)[..., None]
        return trust * summary + (1 - trust) * known

    def cosine(self, x: Tensor, rows: Tensor) -> Tensor:
        """Scaled cosine with rows (classes, channels), the same for all images or (images, ...).

        Features and rows have length one already unless they are raw.
        """
        if self.raw:
            x, rows = F.normalize(x, dim=1), F.normalize(rows, dim=-1)
        rows = rows.expand(len(x), *rows.shape[-2:])
        return self.scale * torch.einsum("qdhw,qcd->qchw", x, rows)


class Capl(Learned):
    """CAPL on our frozen features.

    Tian, Lai, Jiang, Liu, Shu, Zhao, Jia: Generalized Few-shot Semantic Segmentation (2022),
    https://arxiv.org/abs/2010.05210. Novel rows are prototypes; base rows take up what the support images and the
    query show of their class. The original trains its encoder with an auxiliary head; here both are replaced by our
    frozen bottleneck and a learned projection of it. Where the original splits the classes of half a batch into
    fake novel and fake context ones, our episodes bring the split along: the fake novel class, and the base classes
    that are also in its support images.

        rows    (background + base + novel, channels)        from the support
        scores  (queries, background + base + novel, h, w)   scaled cosines with rows enriched by each query
    """

    name = "capl"

    def __init__(self, head: PyramidHead, options: CaplOptions | None = None) -> None:
        self.options = options or CaplOptions()
        self.net = Prototypes(head.classifier.weight.detach()[:, :, 0, 0], self.options)
        super().__init__(self.net)

    @property
    def settings(self) -> dict[str, Any]:
        return {"published": True} if self.options == PUBLISHED else {}

    def learn(self, support: Support) -> None:
        support.check()
        x = self.net.embed_support(support.features)
        self.prototypes = self.net.prototypes[list(support.base_labels)]
        known = self.net.known(support.base_labels)
        with_background = not self.net.training or bool(torch.rand(()) < self.options.background)
        seen: list[Tensor] = []
        novel: list[Tensor] = []
        for position, label in enumerate(support.novel_labels):
            own = images_of(support, position)
            seen.append(_context(x[own], support.labels[own], known, with_background))
            novel.append(_mean(x[own], support.labels[own], label))
        base_rows = self.net.mix(known, torch.stack(seen).mean(dim=0))
        self.rows = torch.cat([base_rows, F.normalize(torch.stack(novel), dim=1)])

    def logits(self, query: Features) -> Tensor:
        return self._enriched(self.net.embed(query))

    def loss(self, episode: Episode) -> tuple[Tensor, Tensor]:
        episode = trainable(episode)
        self.learn(episode.support)
        x = self.net.embed(episode.query.features)
        enriched, pixels = calibration_loss(self._enriched(x), episode.query.labels)
        plain, _ = calibration_loss(self.net.cosine(x, self.rows), episode.query.labels)
        return self.options.enriched * enriched + (1 - self.options.enriched) * plain, pixels

    def _enriched(self, x: Tensor) -> Tensor:
        """Scores with base rows enriched by each query."""
        base = self.rows[: len(self.prototypes)] + self.net.enrich(x, self.prototypes)
        novel = self.rows[len(self.prototypes) :].expand(len(x), -1, -1)
        return self.net.cosine(x, F.normalize(torch.cat([base, novel], dim=1), dim=2))


def _context(x: Tensor, labels: Tensor, known: Tensor, with_background: bool) -> Tensor:
    """Mean features of the base classes in some images; a class that is not there keeps its prototype."""
    rows = list(known.unbind())
    for label in labels.unique().tolist():
        if label < len(rows) and (label > 0 or with_background):
            rows[label] = _mean(x, labels, label)
    return torch.stack(rows)


def _mean(x: Tensor, labels: Tensor, label: int) -> Tensor:
    """Mean feature of a label's positions over some images, (channels,)."""
    shares = mask_shares(labels, label, (x.shape[2], x.shape[3])).to(x)
    return torch.einsum("schw,shw->c", x, shares) / shares.sum()
