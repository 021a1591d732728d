"""What a model remembers of the images it was taught from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from gfss.app.inputs import Labelled
from gfss.app.network import COLOURS, Network, encoder_maps
from gfss.common.errors import GfssError
from gfss.data.catalog import BACKGROUND
from gfss.data.images import mirrored_image, square_label
from gfss.models.novel.logistic import features_at, finest_grid

POSITIONS = (500, 1000)  # of the class and of the rest that a support image is fitted on, at most
COPY_POSITIONS = (130, 260)  # the same for every augmented copy
ZOOM, SHRINK = 1.5, 0.66  # scales of augmented copies
TILE_FROM = 2  # an image may be tiled if its long side is more than so many times the network's input
TILES = 2  # parts of such an image that are taught at its own resolution


@dataclass(frozen=True)
class Samples:
    """Feature vectors (positions, channels) fp16 and their labels (positions,) uint8: 1 the class, 0 the rest."""

    features: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Example:
    """One support image, or one that is known not to show the class.

    Attributes:
        id: name of the image.
        sha256: of its pixels.
        lesson: number of the teaching it came with, from 1.
        levels: encoder levels at their own resolutions, name -> (1, channels, h, w) fp16.
        labels: (size, size) uint8: 1 the class, 0 the rest, 255 void.
        copies: positions of augmented copies (flipped, enlarged, shrunk).
        others: (size, size) uint8: value i + 1 where the label file shows ``names[i]``; None where it names no others.
        names: classes of ``others``.
        image: the square image (size, size, 3) where it is at hand.
        kept: the image belongs to the saved model.
    """

    id: str
    sha256: str
    lesson: int
    levels: dict[str, Tensor]
    labels: np.ndarray
    copies: tuple[Samples, ...]
    others: np.ndarray | None = None
    names: tuple[str, ...] = ()
    image: np.ndarray | None = None
    kept: bool = False

    @property
    def shows(self) -> bool:
        """Whether the class is in the image."""
        return bool((self.labels == 1).any())

    @property
    def share(self) -> float:
        """The class's share of the labelled pixels."""
        return float((self.labels == 1).sum()) / max(1, int((self.labels <= 1).sum()))

    @cached_property
    def samples(self) -> Samples:
        """Positions of the image itself."""
        return sample_positions(self.levels, self.labels, POSITIONS, self.sha256)


@dataclass(frozen=True)
class TaughtClass:
    """A class that was added to a model.

    Attributes:
        name: of the class.
        examples: images that show it, and images that do not.
        balance: what the user adds to its log-odds; above 0 finds more.
    """

    name: str
    examples: tuple[Example, ...]
    balance: float = 0.0

    @property
    def shots(self) -> list[Example]:
        """The images that show the class."""
        return [example for example in self.examples if example.shows]


def make_example(network: Network, labelled: Labelled, lesson: int) -> Example:
    """Features and labels of a labelled image; refuses one from which nothing can be learned."""
    labels = square_label(labelled.mask, network.size)
    square = mirrored_image(labelled.image, network.size)
    levels = network.levels(square)
    if labelled.shows:
        seen = grid_labels(levels, labels)
        if not (seen == 1).any():
            raise GfssError(
                f"the object in {labelled.id} is too small to be seen at {network.size} pixels; crop the image around "
                "it"
            )
        if not (seen == BACKGROUND).any():
            raise GfssError(
                f"the mask of {labelled.id} shows only the class and nothing else; leave some background in it"
            )
    sha256 = pixels_hash(labelled.image)
    copies = tuple(
        sample_positions(network.levels(image), copy_labels, COPY_POSITIONS, f"{sha256} {number}")
        for number, (image, copy_labels) in enumerate(augmented_copies(labelled, network.size, sha256))
    )
    others = None if labelled.others is None else square_label(labelled.others, network.size)
    return Example(labelled.id, sha256, lesson, levels, labels, copies, others, labelled.names, square)


def refuse_repeated(name: str, examples: Sequence[Example], before: Sequence[Example]) -> None:
    """Raise if an image is among those that a class was taught from, or twice among the new ones."""
    earlier = {example.sha256 for example in before}
    new: dict[str, str] = {}
    for example in examples:
        words = example.id if example.shows else f"{example.id} of those without the class"
        if example.sha256 in earlier:
            raise GfssError(f"'{name}' was already taught from {example.id}; give every image once")
        if example.sha256 in new:
            raise GfssError(f"{new[example.sha256]} and {words} are the same image; leave one of them out")
        new[example.sha256] = words


def pixels_hash(image: np.ndarray) -> str:
    """SHA-256 of an image's size and pixels: the same for the same picture, whatever its file is called."""
    return hashlib.sha256(repr(image.shape).encode() + np.ascontiguousarray(image).tobytes()).hexdigest()


def augmented_copies(labelled: Labelled, size: int, seed: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Square copies of a labelled image with their labels: flipped, enlarged around the class, shrunk.

    Of an image that may be segmented in tiles, also parts of the size of a tile, at its own resolution, so that both
    ways of looking at it are taught.
    """
    image, mask = labelled.image, labelled.mask
    yield mirrored_image(np.ascontiguousarray(image[:, ::-1]), size), square_label(mask[:, ::-1], size)
    height, width = mask.shape
    windows = [zoom_window(mask, seed, (int(height / ZOOM), int(width / ZOOM)))]
    if max(mask.shape) > TILE_FROM * size:
        tile = (min(height, size), min(width, size))
        windows += [zoom_window(mask, f"{seed} tile {number}", tile) for number in range(TILES)]
    for rows, columns in windows:
        yield (
            mirrored_image(np.ascontiguousarray(image[rows, columns]), size),
            square_label(np.ascontiguousarray(mask[rows, columns]), size),
        )
    yield mirrored_image(image, size, SHRINK), square_label(mask, size, SHRINK)


def zoom_window(mask: np.ndarray, seed: str, lengths: tuple[int, int]) -> tuple[slice, slice]:
    """Rows and columns of a part of an image, a pixel of the class in its middle as far as the border lets it.

    Args:
        lengths: height and width of the part.
    """
    generator = np.random.default_rng(_seed(seed))
    places = np.argwhere(mask == 1) if (mask == 1).any() else np.array([[side // 2 for side in mask.shape]])
    middle = places[generator.integers(len(places))]
    window: list[slice] = []
    for side, place, length in zip(mask.shape, middle, lengths, strict=True):
        length = max(1, length)
        start = min(max(0, int(place) - length // 2), side - length)
        window.append(slice(start, start + length))
    return window[0], window[1]


def grid_labels(levels: dict[str, Tensor], labels: np.ndarray) -> np.ndarray:
    """Labels at the positions of the finest level."""
    height, width = finest_grid({name: level for name, level in levels.items() if name != COLOURS})
    rows = np.round(np.linspace(0, labels.shape[0] - 1, height)).astype(int)
    columns = np.round(np.linspace(0, labels.shape[1] - 1, width)).astype(int)
    return labels[rows][:, columns]


def sample_positions(levels: dict[str, Tensor], labels: np.ndarray, most: tuple[int, int], seed: str) -> Samples:
    """Random positions of the class and of the rest.

    Args:
        most: how many of each kind, at most.
    """
    on_grid = grid_labels(levels, labels)
    generator = np.random.default_rng(_seed(seed))
    chosen: list[np.ndarray] = []
    for value, count in ((1, most[0]), (BACKGROUND, most[1])):
        places = np.argwhere(on_grid == value)
        chosen.append(generator.permutation(places)[:count])
    places = torch.from_numpy(np.concatenate(chosen))
    features = features_at(encoder_maps(levels), places[:, 0], places[:, 1])
    kinds = torch.cat([torch.ones(len(chosen[0])), torch.zeros(len(chosen[1]))]).to(torch.uint8)
    return Samples(features.half(), kinds)


def before_lesson(taught: Sequence[TaughtClass], lesson: int) -> list[TaughtClass]:
    """The taught classes as they were before a lesson."""
    kept = [replace(one, examples=tuple(e for e in one.examples if e.lesson < lesson)) for one in taught]
    return [one for one in kept if one.shots]


def _seed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
