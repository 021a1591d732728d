"""Large images in overlapping tiles, their probabilities blended."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from gfss.app.geometry import Guide, square_scores
from gfss.data.images import MULTIPLE, mirrored_image

OVERLAP = 0.25  # of a tile, at least


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
