"""What segmenting an image gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image

from gfss.data.sheet import class_colours, overlay
from gfss.files import write_atomically


@dataclass(frozen=True)
class Result:
    """A segmented image.

    Attributes:
        image: (height, width, 3) uint8.
        classes: names; mask value i is ``classes[i]``, the first is "background".
        mask: class of every pixel, (height, width) uint8, as large as the image.
    """

    image: np.ndarray
    classes: tuple[str, ...]
    mask: np.ndarray
    score: Callable[[], np.ndarray]

    @cached_property
    def scores(self) -> np.ndarray:
        """Probability of every class at every pixel, (classes, height, width) float32; computed when asked for."""
        return self.score()

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
            overlay: also write ``NAME_overlay.jpg``.
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
            written.append(target.with_name(f"{target.stem}_overlay.jpg"))
            with write_atomically(written[-1]) as file:
                self.overlay().save(file, format="JPEG", quality=90)
        if scores:
            written.append(target.with_name(f"{target.stem}_scores.npz"))
            with write_atomically(written[-1]) as file:
                np.savez_compressed(file, scores=self.scores.astype(np.float16), classes=np.array(self.classes))
        return written
