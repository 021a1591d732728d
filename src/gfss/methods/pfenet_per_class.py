"""PFENet generalised the other way: run once for every class, base classes too."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gfss.features.support import Episode, Support
from gfss.methods.learned import level_channels
from gfss.methods.pfenet import Guide, Pfenet, PfenetOptions
from gfss.models.fusion import mask_shares
from gfss.models.pspnet import Features, PyramidHead

EXEMPLARS = 64  # kept positions of a base class
PER_IMAGE = 16  # of these, at most so many from one image


class Exemplars(nn.Module):
    """Positions of every base class, kept from training images: the newest replace the oldest.

    Args:
        base: number of base classes.
        middle: channels of the middle features.
        high: channels of the high features.
    """

    middle: Tensor
    high: Tensor
    seen: Tensor

    def __init__(self, base: int, middle: int, high: int) -> None:
        super().__init__()
        self.register_buffer("middle", torch.zeros(base, EXEMPLARS, middle))
        self.register_buffer("high", torch.zeros(base, EXEMPLARS, high))
        self.register_buffer("seen", torch.zeros(base, dtype=torch.long))

    def keep(self, place: int, middle: Tensor, high: Tensor) -> None:
        """Keep positions (positions, channels) of base class ``place`` (from 0)."""
        slots = (self.seen[place] + torch.arange(len(middle), device=self.seen.device)) % EXEMPLARS
        self.middle[place, slots] = middle
        self.high[place, slots] = high
        self.seen[place] += len(middle)

    def of(self, place: int) -> tuple[Tensor, Tensor]:
        """Kept middle and high features of a base class, (positions, channels) each."""
        count = min(int(self.seen[place]), EXEMPLARS)
        return self.middle[place, :count], self.high[place, :count]


class PfenetPerClass(Pfenet):
    """PFENet run for every class by itself; the most probable class wins, background where none is above one half.

    The base classes need supports of their own. They are positions of training images, kept while the network is
    trained on episodes (its loss is that of :class:`Pfenet`). A class that no training image showed never wins.
    """

    name = "pfenet-per-class"
    probabilities = True

    def __init__(
        self, head: PyramidHead, options: PfenetOptions | None = None, channels: Mapping[str, int] | None = None
    ) -> None:
        super().__init__(head, options, channels)
        there = channels or head.channels
        widths = level_channels(there, self.middle), level_channels(there, [self.options.high])
        self.exemplars = Exemplars(head.classifier.weight.shape[0] - 1, *widths)
        self.module = nn.ModuleDict({"net": self.net, "exemplars": self.exemplars}).eval()

    def learn(self, support: Support) -> None:
        super().learn(support)
        self.base_labels = support.base_labels

    def logits(self, query: Features) -> Tensor:
        guides = [*(self._guide(label - 1) for label in self.base_labels[1:]), *self.guides]
        known = [guide for guide in guides if guide is not None]
        found = iter([logits.softmax(dim=1)[:, 1] for logits, _ in self.segment(query, known)])
        never = query.base.new_zeros(len(query), *query.size)
        classes = torch.stack([never if guide is None else next(found) for guide in guides], dim=1)
        background = (1 - classes).amin(dim=1, keepdim=True)
        return torch.cat([background, classes], dim=1)

    def loss(self, episode: Episode) -> tuple[Tensor, Tensor]:
        base_labels = episode.support.base_labels
        self._keep(episode.support.features, episode.support.labels, base_labels)
        self._keep(episode.query.features, episode.query.labels, base_labels)
        return super().loss(episode)

    def _guide(self, place: int) -> Guide | None:
        """What is known of base class ``place`` (from 0); None if nothing."""
        middle, high = self.exemplars.of(place)
        if not len(middle):
            return None
        reduced = self.net.reduce_support(middle.T[None, :, :, None])
        return Guide(reduced.mean(dim=(0, 2, 3)), [F.normalize(high, dim=1)])

    def _keep(self, features: Features, labels: Tensor, base_labels: tuple[int, ...]) -> None:
        """Keep some positions of every base class in some images."""
        middle, high = features.named(self.middle), features.named([self.options.high])
        for image in range(len(features)):
            for label in labels[image].unique().tolist():
                if not 0 < label < len(base_labels):
                    continue
                inside = mask_shares(labels[image : image + 1], label, features.size)[0] > 0.5
                places = inside.flatten().nonzero().squeeze(1)
                chosen = places[:: max(1, -(-len(places) // PER_IMAGE))]
                self.exemplars.keep(
                    base_labels[label] - 1, middle[image].flatten(1)[:, chosen].T, high[image].flatten(1)[:, chosen].T
                )
