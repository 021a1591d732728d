"""Segmenting one image, whole or in overlapping tiles; GeoTIFF and video."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, TiffImagePlugin, TiffTags
from torch import Tensor

from gfss.app.inputs import ImageLike, as_image
from gfss.app.network import Guide, label_map, probabilities, square_scores
from gfss.app.support import TILE_FROM
from gfss.common.errors import GfssError
from gfss.common.files import refuse_special, write_atomically
from gfss.data.images import MAX_PIXELS, MULTIPLE, class_colours, mirrored_image, open_image, overlay

LONGEST_JPEG = 65_500  # pixels of a side that the format can hold
OVERLAP = 0.25  # of a tile, at least
TAGS = {
    33550: TiffTags.DOUBLE,
    33922: TiffTags.DOUBLE,
    34264: TiffTags.DOUBLE,
    34735: TiffTags.SHORT,
    34736: TiffTags.DOUBLE,
    34737: TiffTags.ASCII,
}
Georeference = dict[int, Any]
VIDEO_SUFFIXES = (".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v")


@dataclass(frozen=True, eq=False)
class Result:
    """A segmented image.

    Attributes:
        image: (height, width, 3) uint8.
        classes: names; mask value i is ``classes[i]``, the first is "background".
        mask: class of every pixel, (height, width) uint8, as large as the image.
        compute_scores: gives ``scores``.
    """

    image: np.ndarray
    classes: tuple[str, ...]
    mask: np.ndarray
    compute_scores: Callable[[], np.ndarray]

    @cached_property
    def scores(self) -> np.ndarray:
        """Probability of every class at every pixel, (classes, height, width) float32; computed when asked for."""
        return self.compute_scores()

    @property
    def found(self) -> dict[str, float]:
        """Share of the image of every class in it, background left out."""
        counts = np.bincount(self.mask.ravel(), minlength=len(self.classes)) / self.mask.size
        return {name: float(share) for name, share in zip(self.classes[1:], counts[1:], strict=True) if share}

    def overlay(self) -> Image.Image:
        """The image with the classes in colour over it."""
        return Image.fromarray(overlay(self.image, self.mask, class_colours(len(self.classes) - 1)))

    def save(self, path: str | Path, *, overlay: bool = False, scores: bool = False) -> list[Path]:
        """Write the mask as an index PNG with palette, and more if wanted; returns the files.

        Args:
            path: the mask's file; ``.png`` is added if it is not there.
            overlay: also write ``NAME_overlay.jpg`` (``.png`` where it is too long for that).
            scores: also write ``NAME_scores.npz`` with ``scores`` (fp16) and ``classes``.
        """
        target = Path(path)
        target = target if target.suffix.lower() == ".png" else target.with_name(f"{target.name}.png")
        picture = Image.fromarray(self.mask)
        picture.putpalette(class_colours(len(self.classes) - 1).ravel().tolist())
        written = [target]
        with write_atomically(target) as file:
            picture.save(file, format="PNG")
        if overlay:
            large = max(self.mask.shape) > LONGEST_JPEG
            written.append(target.with_name(f"{target.stem}_overlay.{'png' if large else 'jpg'}"))
            with write_atomically(written[-1]) as file:
                self.overlay().save(file, format="PNG" if large else "JPEG", quality=90)
        if scores:
            written.append(target.with_name(f"{target.stem}_scores.npz"))
            with write_atomically(written[-1]) as file:
                np.savez_compressed(file, scores=self.scores.astype(np.float16), classes=np.array(self.classes))
        return written


def segment_image(
    image: ImageLike,
    classes: tuple[str, ...],
    size: int,
    score_map: Callable[[np.ndarray], Tensor],
    tile: bool,
    taught: int = 0,
) -> Result:
    """Segment an image.

    Args:
        classes: names in order of label, background first.
        size: side of the network's square input.
        score_map: logits (classes, h, w) of a square image.
        tile: look at a large image piece by piece.
        taught: how many of the last classes were taught; their edges follow the image.
    """
    pixels = as_image(image)
    shape = (pixels.shape[0], pixels.shape[1])
    if tile and max(shape) > TILE_FROM * size:
        strips = partial(tiled_probabilities, pixels, size, score_map, taught)
        mask = np.concatenate([strip.argmax(axis=0).astype(np.uint8) for strip in strips()])
        return Result(pixels, classes, mask, lambda: np.concatenate(list(strips()), axis=1))
    square = mirrored_image(pixels, size)
    scores, guide = score_map(square), Guide(taught, pixels, square)
    mask = label_map(scores, size, shape, guide)
    return Result(pixels, classes, mask, partial(probabilities, scores, size, shape, guide))


def tile_starts(length: int, tile: int) -> list[int]:
    """Where tiles begin along a side: evenly spread, first and last at the borders.

    >>> tile_starts(1000, 416)
    [0, 292, 584]
    """
    if length <= tile:
        return [0]
    count = 1 + -(-(length - tile) // int(tile * (1 - OVERLAP)))
    return [round(i * (length - tile) / (count - 1)) for i in range(count)]


def tiled_probabilities(
    image: np.ndarray, size: int, score_map: Callable[[np.ndarray], Tensor], taught: int = 0
) -> Iterator[np.ndarray]:
    """Probabilities of an image from top to bottom, in strips (classes, rows, width) float32.

    Only one row of tiles is in memory at a time.

    Args:
        image: (height, width, 3) uint8.
        size: side of the network's square; tiles show the image in its own resolution.
        score_map: logits (classes, h, w) of a square image.
        taught: how many of the last classes were taught; their edges follow the image.
    """
    tile = size // MULTIPLE * MULTIPLE
    height, width = image.shape[:2]
    tops, lefts = tile_starts(height, tile), tile_starts(width, tile)
    window = _window(tile)
    sums: Tensor | None = None  # of weighted probabilities, from the top of the current row of tiles on
    weights = torch.zeros(tile, width)
    for row, top in enumerate(tops):
        for left in lefts:
            part = image[top : top + tile, left : left + tile]
            rows, columns = part.shape[:2]
            square = _padded(part, tile, size)
            scores = square_scores(score_map(square), size, Guide(taught, part, square))
            shares = scores[:, :rows, :columns].softmax(dim=0)
            if sums is None:
                sums = torch.zeros(shares.shape[0], tile, width)
            sums[:, :rows, left : left + columns] += shares * window[:rows, :columns]
            weights[:rows, left : left + columns] += window[:rows, :columns]
        assert sums is not None
        done = (tops[row + 1] if row + 1 < len(tops) else height) - top
        yield (sums[:, :done] / weights[:done]).numpy()
        sums = torch.cat([sums[:, done:], torch.zeros_like(sums[:, :done])], dim=1)
        weights = torch.cat([weights[done:], torch.zeros_like(weights[:done])])


def _padded(part: np.ndarray, tile: int, size: int) -> np.ndarray:
    """A tile as a square image; a part that is smaller than a tile is padded, not enlarged."""
    full = np.zeros((tile, tile, 3), dtype=np.uint8)
    full[: part.shape[0], : part.shape[1]] = part
    return mirrored_image(full, size)


def _window(tile: int) -> Tensor:
    """Weights of a tile, (tile, tile): highest in the middle, small but not zero at the border."""
    ramp = torch.minimum(torch.arange(1, tile + 1), torch.arange(tile, 0, -1)).float() / tile
    return ramp[:, None] * ramp


# pixel scale, tie points, transformation, the directory of keys and its numbers and texts


def georeference(path: Path) -> Georeference:
    """Tags of a TIFF file that say where it lies on Earth; empty for all other files."""
    if path.suffix.lower() not in (".tif", ".tiff"):
        return {}
    try:
        with open_image(path) as file:
            tags = getattr(file, "tag_v2", {})
            return {tag: tags[tag] for tag in TAGS if tag in tags}
    except GfssError:  # whoever reads the pixels says what is wrong
        return {}


def write_geotiff(path: Path, mask: np.ndarray, place: Georeference) -> None:
    """Write a mask (height, width) uint8 as TIFF with a georeference."""
    tags = TiffImagePlugin.ImageFileDirectory_v2()
    for tag, value in place.items():
        tags.tagtype[tag] = TAGS[tag]
        tags[tag] = value
    with write_atomically(path) as file:
        Image.fromarray(mask).save(file, format="TIFF", tiffinfo=tags)


def is_video(path: Path) -> bool:
    """Whether a file is a video by its name."""
    return path.suffix.lower() in VIDEO_SUFFIXES


def frames(path: Path) -> Iterator[np.ndarray]:
    """Every frame of a video, (height, width, 3) uint8."""
    import av
    from av.error import FFmpegError

    refuse_special(path)
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise GfssError(f"{path} has no images in it, only sound; give a video")
            for frame in container.decode(video=0):
                if frame.width * frame.height > MAX_PIXELS:
                    raise GfssError(f"{path} has frames of {frame.width} x {frame.height} pixels; scale it down first")
                yield frame.to_ndarray(format="rgb24")
    except (FFmpegError, OSError, ValueError) as error:
        raise GfssError(f"{path} is not a readable video ({error})") from None
