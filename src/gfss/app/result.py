"""Segmenting one image, whatever gives the scores, and what comes out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from gfss.app.geometry import Guide, label_map, probabilities
from gfss.app.inputs import Picture, as_image
from gfss.app.support import TILE_FROM
from gfss.app.tiling import tiled_probabilities
from gfss.common.files import write_atomically
from gfss.data.images import class_colours, mirrored_image, overlay

LONGEST_JPEG = 65_500  # pixels of a side that the format can hold


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
    image: Picture,
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
