"""What runs in every model: encoder, pyramid head, the rows of taught classes and the mask refiner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from gfss.common.errors import GfssError
from gfss.data.images import to_tensor
from gfss.methods.logistic import known_or_novel
from gfss.models.base_model import BaseCard, BaseModel, Features
from gfss.models.calibrators.mask_refiner import ClassMemory, MaskRefiner, grid_colours
from gfss.models.encoders.base import Run, fast_form
from gfss.models.novel.descriptors import DenseDescriptors
from gfss.models.novel.logistic import LogisticHead, finest_grid, unit_maps
from gfss.models.ops.upsample import upsample

HALF_LIMIT = 65504  # largest value of fp16
DESCRIPTORS = "descriptors"  # beside the encoder levels of an image, where there are weights for them
COLOURS = "colours"  # the same, where there is a refiner
MOST_BALANCE = 100  # beyond, one side has won long ago


@dataclass(frozen=True)
class Taught:
    """The fitted state of all taught classes.

    Attributes:
        head: one row per class; log-odds of the class against everything else.
        balance: (classes,) what is added to the log-odds: the threshold chosen from the supports, and what the user
            adds to it.
        known_limits: (classes, background + base) the most that the base model's opinion counts against a class.
        memories: what the refiner remembers of every class; None where it stays out of the way.
    """

    head: LogisticHead
    balance: Tensor
    known_limits: Tensor
    memories: tuple[ClassMemory | None, ...]

    @property
    def classes(self) -> int:
        """Number of taught classes."""
        return len(self.balance)


class Network(nn.Module):
    """From square images to class scores; what was taught comes in as :class:`Taught`.

    Args:
        base: the base model.
        refiner: corrects the maps of taught classes, where there is one for the encoder.
        descriptors: a further level for the rows of taught classes, where there are weights for the encoder.
    """

    def __init__(
        self, base: BaseModel, refiner: MaskRefiner | None = None, descriptors: DenseDescriptors | None = None
    ) -> None:
        super().__init__()
        self.base = base
        self.refiner = refiner
        self.descriptors = descriptors
        self.requires_grad_(False).eval()

    @property
    def card(self) -> BaseCard:
        """What the base model is."""
        return self.base.card

    @property
    def size(self) -> int:
        """Side of the square input."""
        return self.base.card.size

    @cached_property
    def _fast(self) -> Run:
        return fast_form(self.base.encoder, self.size, fine=True)

    @torch.inference_mode()
    def levels(self, square: np.ndarray) -> dict[str, Tensor]:
        """What is kept of a square image (size, size, 3): name -> (1, channels, h, w) fp16.

        All encoder levels at their own resolutions, the descriptors, and the colours on the finest grid.
        """
        images = to_tensor(square[None])
        maps = self._fast(images.contiguous(memory_format=torch.channels_last))
        maps = self.with_additions(maps, images)
        return {name: level.clamp(-HALF_LIMIT, HALF_LIMIT).half().contiguous() for name, level in maps.items()}

    @property
    def channels(self) -> dict[str, int]:
        """What rows of taught classes read: name -> channels, from fine to deep."""
        own = self.base.encoder.fine_channels
        return own if self.descriptors is None else {**own, DESCRIPTORS: self.descriptors.width}

    @property
    def kept_maps(self) -> list[str]:
        """Names of all maps that are kept of an image."""
        return [*self.channels, *([COLOURS] if self.refiner is not None else [])]

    def with_additions(self, maps: dict[str, Tensor], images: Tensor) -> dict[str, Tensor]:
        """Encoder levels and, where the network has them, the descriptors and the colours that the refiner reads."""
        added = dict(maps)
        if self.descriptors is not None:
            added[DESCRIPTORS] = self.descriptors(maps)
        if self.refiner is not None:
            added[COLOURS] = grid_colours(images, finest_grid(maps))
        return added

    def features(self, levels: Mapping[str, Tensor]) -> Features:
        """Everything the head says of encoder levels."""
        return self.base.head({name: levels[name].float() for name in self.base.head.needs})

    def scores(self, levels: Mapping[str, Tensor], taught: Taught | None) -> Tensor:
        """Logits (batch, background + base + taught, h, w): the largest wins, the softmax are probabilities.

        Without taught classes these are the base model's. Otherwise the best known class has 0, so that a taught class
        wins where its log-odds, moved by its balance, are positive. Where the base model is sure of a known class, they
        must exceed its odds, as far as the supports show that the two are not mixed up. The maps have the resolution of
        the finest level.
        """
        known = self.features(levels).base
        if taught is None:
            return known
        maps = encoder_maps(levels)
        novel = taught.head.logits(maps)
        if self.refiner is not None:
            refined = [
                odds if memory is None else self.refiner.refine(taught.head, i, memory, maps, levels[COLOURS].float())
                for i, (odds, memory) in enumerate(zip(novel.split(1, dim=1), taught.memories, strict=True))
            ]
            novel = torch.cat(refined, dim=1)
        size = (novel.shape[-2], novel.shape[-1])
        novel = novel + taught.balance[:, None, None] - upsample(_known_odds(known, taught.known_limits), size)
        return known_or_novel(known, novel)

    @torch.inference_mode()
    def score_map(self, square: np.ndarray, taught: Taught | None, balance: float = 0.0) -> Tensor:
        """Logits (classes, h, w) of a square image, taught classes moved by ``balance``."""
        return with_balance(self.scores(self.levels(square), taught)[0], taught_classes(taught), balance)


def _known_odds(known: Tensor, limits: Tensor) -> Tensor:
    """Log-odds of the known class that a position shows more likely than not, within limits; else 0.

    Args:
        known: base logits (batch, background + base, h, w).
        limits: (taught, background + base), not negative.

    Returns:
        (batch, taught, h, w).
    """
    odds = torch.logit(known.softmax(dim=1).clamp(0.5, 1 - 1e-4))
    return torch.minimum(odds[:, None], limits.to(known.dtype)[None, :, :, None, None]).sum(dim=2)


def encoder_maps(levels: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Unit maps of the encoder levels and descriptors of an image."""
    return unit_maps({name: level.float() for name, level in levels.items() if name != COLOURS})


def check_balance(balance: float) -> float:
    """The balance itself; raises if it is not a number to add to scores."""
    if not abs(balance) <= MOST_BALANCE:
        raise GfssError(f"the balance is {balance}; expected a number from -{MOST_BALANCE} to {MOST_BALANCE}")
    return float(balance)


def taught_classes(taught: Taught | None) -> int:
    """How many classes were taught."""
    return 0 if taught is None else taught.classes


def with_balance(scores: Tensor, taught: int, balance: float) -> Tensor:
    """Scores (classes, h, w) with ``balance`` added to those of the last ``taught`` classes."""
    if not balance or not taught:
        return scores
    known = scores.shape[0] - taught
    return torch.cat([scores[:known], scores[known:] + balance])
