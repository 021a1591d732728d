"""What the trained compared systems share: they are trained through their own scores, on episodes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from gfss.common.errors import unknown
from gfss.features.episodes import Episode, Query, Support
from gfss.methods.base import Method
from gfss.methods.losses import calibration_loss
from gfss.models.base_model import Features


class Learned(Method):
    """A method with a module; :meth:`learn` and :meth:`logits` are the same code in training and test.

    The module starts in evaluation mode; the training loop switches it to training and back.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module.eval()
        self.trained = False

    @abstractmethod
    def logits(self, query: Features) -> Tensor:
        """Scores of query images as in :meth:`scores`, of a module that may still be in training."""

    def scores(self, query: Features) -> Tensor:
        self.require_trained()
        return self.logits(query)

    def loss(self, episode: Episode) -> tuple[Tensor, Tensor]:
        episode = trainable(episode)
        self.learn(episode.support)
        return calibration_loss(self.logits(episode.query.features), episode.query.labels)


def trainable(episode: Episode) -> Episode:
    """The episode with copied features: those of a feature store come from inference mode and refuse gradients."""
    support = replace(episode.support, features=episode.support.features.map(torch.clone))
    return Episode(support, Query(episode.query.features.map(torch.clone), episode.query.labels))


def images_of(support: Support, position: int) -> list[int]:
    """Support images that were drawn for one novel class (0..n-1)."""
    return [image for image, owner in enumerate(support.owners) if owner == position]


def level_channels(channels: Mapping[str, int], names: Sequence[str]) -> int:
    """Channels of some encoder levels together; refuses levels that are not there.

    Args:
        channels: of the levels that are there.
    """
    for name in names:
        if name not in channels:
            raise unknown("encoder level", name, channels)
    return sum(channels[name] for name in names)
