"""What runs in every model: encoder, pyramid head, the rows of taught classes and the mask refiner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from gfss.common.errors import GfssError
from gfss.data.transforms import to_tensor
from gfss.methods.logistic import known_or_novel
from gfss.models.base_model import BaseCard, BaseModel
from gfss.models.calibrators.mask_refiner import ClassMemory, MaskRefiner, grid_colours
from gfss.models.novel.logistic import LogisticHead, finest_grid, unit_maps
from gfss.models.ops.fused_encoder import Run, fast_form
from gfss.models.ops.upsample import upsample
from gfss.models.pspnet import Features

HALF_LIMIT = 65504  # largest value of fp16
COLOURS = "colours"  # beside the encoder levels of an image, where there is a refiner
MOST_BALANCE = 100  # beyond, one side has won long ago


@dataclass(frozen=True)
class Taught:
    """The fitted state of all taught classes.

    Attributes:
        head: one row per class; log-odds of the class against everything else.
        balance: (classes,) what is added to the log-odds: the threshold chosen from the supports, and what the user
            adds to it.
        distinct: (classes, background + base) 1 for known classes that are not seen where the supports show the class.
        memories: what the refiner remembers of every class; None where it stays out of the way.
    """

    head: LogisticHead
    balance: Tensor
    distinct: Tensor
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
    """

    def __init__(self, base: BaseModel, refiner: MaskRefiner | None = None) -> None:
        super().__init__()
        self.base = base
        self.refiner = refiner
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

        All encoder levels at their own resolutions, and the colours on the finest grid.
        """
        images = to_tensor(square[None])
        maps = self._fast(images.contiguous(memory_format=torch.channels_last))
        maps = self.with_colours(maps, images)
        return {name: level.clamp(-HALF_LIMIT, HALF_LIMIT).half().contiguous() for name, level in maps.items()}

    def with_colours(self, maps: dict[str, Tensor], images: Tensor) -> dict[str, Tensor]:
        """Levels and, where there is a refiner, the colours that it reads."""
        if self.refiner is None:
            return maps
        return {**maps, COLOURS: grid_colours(images, finest_grid(maps))}

    def features(self, levels: Mapping[str, Tensor]) -> Features:
        """Everything the head says of encoder levels."""
        return self.base.head({name: levels[name].float() for name in self.base.head.needs})

    def scores(self, levels: Mapping[str, Tensor], taught: Taught | None) -> Tensor:
        """Logits (batch, background + base + taught, h, w): the largest wins, the softmax are probabilities.

        Without taught classes these are the base model's. Otherwise the best known class has 0, so that a taught class
        wins where its log-odds, moved by its balance, are positive. Where the base model is sure of a known class that
        the supports do not mix up with it, they must exceed the odds of that. The maps have the finest level's
        resolution.
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
        novel = novel + taught.balance[:, None, None] - upsample(_known_odds(known, taught.distinct), size)
        return known_or_novel(known, novel)

    @torch.inference_mode()
    def score_map(self, square: np.ndarray, taught: Taught | None, balance: float = 0.0) -> Tensor:
        """Logits (classes, h, w) of a square image, taught classes moved by ``balance``."""
        return with_balance(self.scores(self.levels(square), taught)[0], taught_classes(taught), balance)


def _known_odds(known: Tensor, distinct: Tensor) -> Tensor:
    """Log-odds that a position shows one of the distinct known classes, where it is likelier than not, else 0.

    Args:
        known: base logits (batch, background + base, h, w).
        distinct: (taught, background + base) of 0 and 1.

    Returns:
        (batch, taught, h, w).
    """
    share = torch.einsum("bchw,nc->bnhw", known.softmax(dim=1), distinct.to(known.dtype))
    return torch.logit(share.clamp(0.5, 1 - 1e-4))


def encoder_maps(levels: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Unit maps of the encoder levels of an image."""
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
