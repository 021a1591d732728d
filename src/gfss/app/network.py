"""What runs in every model: from a square image to class scores, and from these to masks of an image's own size.

Up to twice the size of the network's view, every pixel takes the class map of the evaluation protocol at the nearest
position, so that the mask of an image that the network sees in its own or a smaller size scores exactly what the
harness counts. Larger images interpolate the scores, for smooth edges. Scores of taught classes follow the colours of
the image (:mod:`gfss.models.ops.upsample`), where a :class:`Guide` says which they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from gfss.common.errors import GfssError
from gfss.data.images import fitted_size, to_tensor
from gfss.models.base_model import BaseCard, BaseModel, Features
from gfss.models.calibrators.mask_refiner import ClassMemory, MaskRefiner
from gfss.models.encoders.base import Run, fast_form
from gfss.models.novel.descriptors import DenseDescriptors
from gfss.models.novel.logistic import LogisticHead, finest_grid, known_or_novel, unit_maps
from gfss.models.ops.upsample import class_map, colour_slopes, grid_colours, upsample, with_detail

HALF_LIMIT = 65504  # largest value of fp16
DESCRIPTORS = "descriptors"  # beside the encoder levels of an image, where there are weights for them
COLOURS = "colours"  # the same, where there is a refiner
MOST_BALANCE = 100  # beyond, one side has won long ago
STRIP = 256  # rows that are interpolated at once
SMOOTH_FROM = 2.0  # enlargement from which scores are interpolated


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


@dataclass(frozen=True, eq=False)
class Guide:
    """What scores of taught classes follow.

    Attributes:
        taught: how many of the last classes were taught.
        image: (height, width, 3) uint8.
        square: the same as the network sees it, (size, size, 3) uint8.
    """

    taught: int
    image: np.ndarray
    square: np.ndarray


def label_map(scores: Tensor, size: int, shape: tuple[int, int], guide: Guide | None = None) -> np.ndarray:
    """The class of every pixel of an image, (height, width) uint8.

    Args:
        scores: logits (classes, h, w) of the squared image.
        size: side of the square.
        shape: height and width of the image.
        guide: the image, where scores of taught classes follow it.
    """
    if _is_enlarged(size, shape):
        strips = _smooth(scores, size, shape, _usable(scores, size, guide))
        return np.concatenate([strip.argmax(dim=0).to(torch.uint8).numpy() for strip in strips])
    rows, columns = _nearest(size, shape)
    return square_labels(scores, size, guide).numpy()[rows][:, columns]


def square_labels(scores: Tensor, size: int, guide: Guide | None = None) -> Tensor:
    """The class of every pixel of the square, (size, size) uint8."""
    if (guide := _usable(scores, size, guide)) is None:
        return class_map(scores[None], (size, size))[0]
    return _guided_classes(scores, size, guide)


def probabilities(scores: Tensor, size: int, shape: tuple[int, int], guide: Guide | None = None) -> np.ndarray:
    """The probability of every class at every pixel, (classes, height, width) float32; arguments as above."""
    if _is_enlarged(size, shape):
        guide = _usable(scores, size, guide)
        strips = _smooth(scores, size, shape, guide)
        return np.concatenate([strip.softmax(dim=0).numpy() for strip in strips], axis=1)
    rows, columns = _nearest(size, shape)
    return square_scores(scores, size, guide).softmax(dim=0).numpy()[:, rows][:, :, columns]


def square_scores(scores: Tensor, size: int, guide: Guide | None = None) -> Tensor:
    """Scores (classes, size, size) at the pixels of the square."""
    full = upsample(scores[None], (size, size))[0]
    if (guide := _usable(scores, size, guide)) is None:
        return full
    return torch.cat([full[: -guide.taught], _guided(scores[-guide.taught :], size, guide)])


def _usable(scores: Tensor, size: int, guide: Guide | None) -> Guide | None:
    """The guide where there are taught classes, and pixels of the square lie on positions of the map."""
    fits = all(length > 1 and (size - 1) % (length - 1) == 0 for length in scores.shape[1:])
    return guide if guide is not None and guide.taught and fits else None


def _guided_classes(scores: Tensor, size: int, guide: Guide) -> Tensor:
    """The class of every pixel of the square: the best known one, or a taught one whose guided score is higher."""
    known, taught = scores[: -guide.taught], scores[-guide.taught :]
    labels = class_map(known[None], (size, size))[0]
    able = (taught > known.amax(dim=0)).flatten(1).any(dim=1).nonzero()[:, 0]  # the others win nowhere
    if not len(able):
        return labels
    best, which = _guided(taught[able], size, guide).max(dim=0)
    wins = best > upsample(known.amax(dim=0)[None, None], (size, size))[0, 0]
    return torch.where(wins, (able[which] + len(known)).to(torch.uint8), labels)


def _guided(taught: Tensor, size: int, guide: Guide) -> Tensor:
    """Scores (classes, size, size) of some taught classes at the pixels of the square."""
    image = to_tensor(guide.square[None])
    coarse = _coarse_guide(taught, image)
    parts = upsample(torch.cat([taught, *coarse])[None], (size, size))[0].split([len(taught), 3 * len(taught), 3])
    return with_detail(parts[0], parts[1].unflatten(0, (len(taught), 3)), parts[2], image[0] - 0.5)


def _coarse_guide(taught: Tensor, image: Tensor) -> tuple[Tensor, Tensor]:
    """Slopes (3 * classes, h, w) and mean colours less a half (3, h, w) on the grid of the scores."""
    colours = grid_colours(image, (taught.shape[-2], taught.shape[-1]))[0]
    return colour_slopes(taught, colours).flatten(0, 1), colours


def _is_enlarged(size: int, shape: tuple[int, int]) -> bool:
    return any(side > SMOOTH_FROM * fit for side, fit in zip(shape, fitted_size(*shape, size), strict=True))


def _nearest(size: int, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of the squared image that each row and column of the image shows."""
    fit = fitted_size(*shape, size)
    rows, columns = (
        ((np.arange(side) + 0.5) * (f / side)).astype(np.int64) for side, f in zip(shape, fit, strict=True)
    )
    return rows, columns


def _smooth(scores: Tensor, size: int, shape: tuple[int, int], guide: Guide | None) -> Iterator[Tensor]:
    """Interpolated scores of an image, strip by strip: (classes, rows, width)."""
    fit = fitted_size(*shape, size)
    down, across = (
        _weights(side, f, size, length) for side, f, length in zip(shape, fit, scores.shape[1:], strict=True)
    )
    coarse = () if guide is None else _coarse_guide(scores[-guide.taught :], to_tensor(guide.square[None]))
    wide = torch.cat([scores, *coarse]) @ across.T
    for start in range(0, shape[0], STRIP):
        strip = down[start : start + STRIP] @ wide
        if guide is None:
            yield strip
            continue
        known, taught, slopes, colours = strip.split([len(scores) - guide.taught, guide.taught, 3 * guide.taught, 3])
        image = to_tensor(np.array(guide.image[None, start : start + STRIP]))[0] - 0.5
        sharp = with_detail(taught, slopes.unflatten(0, (guide.taught, 3)), colours, image)
        yield torch.cat([known, sharp])


def _weights(side: int, fit: int, size: int, length: int) -> Tensor:
    """Linear interpolation (side, length) from a map of a square to the pixels that an image has along one side."""
    pixels = ((torch.arange(side, dtype=torch.float64) + 0.5) * (fit / side) - 0.5).clamp(0, fit - 1)
    places = pixels * ((length - 1) / (size - 1))
    distance = (places[:, None] - torch.arange(length, dtype=torch.float64)).abs()
    return (1 - distance).clamp_min(0).float()
