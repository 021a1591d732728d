"""Upsampling that follows the image: score maps get the fine structure of the colours that they vary with.

Around every position of a coarse map, the score is fitted as a linear function of the colour, as the guided filter does
(He, Sun, Tang 2010; its fast form fits on the coarse grid and applies the fit at full resolution, He and Sun 2015).
Unlike there, the map itself is not smoothed: only what a pixel's colour differs from the mean around it is added, so
that at the positions of the coarse map nothing changes on average, and a map that does not follow the colours is
upsampled bilinearly.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

RADIUS = 1  # positions around each that the linear function is fitted on
EVENNESS = 1e-4  # variance of a colour, in [0, 1], below which it is taken for even
LIMIT = 6.0  # scores beyond do not steer the fit


def colour_slopes(maps: Tensor, colours: Tensor) -> Tensor:
    """How much every map changes with each colour around every position, (maps, 3, h, w).

    Args:
        maps: (maps, h, w).
        colours: (3, h, w), mean colours around the positions of the grid.
    """
    values = maps.clamp(-LIMIT, LIMIT)
    mean_colour, mean = _around(colours), _around(values)
    mixed = _around((values[:, None] * colours).flatten(0, 1)).unflatten(0, (len(maps), 3))
    covariance = mixed - mean[:, None] * mean_colour
    r, g, b = colours
    products = _around(torch.stack([r * r, r * g, r * b, g * g, g * b, b * b]))
    mr, mg, mb = mean_colour
    squares = products - torch.stack([mr * mr, mr * mg, mr * mb, mg * mg, mg * mb, mb * mb])
    slopes = torch.einsum("ijhw,njhw->nihw", _inverse(squares, EVENNESS), covariance)
    return _around(slopes.flatten(0, 1)).unflatten(0, (len(maps), 3))


def with_detail(maps: Tensor, slopes: Tensor, colours: Tensor, image: Tensor) -> Tensor:
    """Upsampled maps with what the colours add.

    Args:
        maps: (maps, height, width), upsampled.
        slopes: (maps, 3, height, width), upsampled.
        colours: (3, height, width), the mean colours, upsampled.
        image: (3, height, width), the colours themselves.
    """
    return maps + (slopes * (image - colours)).sum(dim=1)


def _around(maps: Tensor) -> Tensor:
    """Mean of (channels, h, w) over the positions around each."""
    side = 2 * RADIUS + 1
    return F.avg_pool2d(F.pad(maps[None], (RADIUS,) * 4, mode="replicate"), side, 1)[0]


def _inverse(squares: Tensor, added: float) -> Tensor:
    """Inverse (3, 3, h, w) of the symmetric matrices rr, rg, rb, gg, gb, bb (6, h, w), ``added`` on the diagonal."""
    rr, rg, rb, gg, gb, bb = squares
    rr, gg, bb = rr + added, gg + added, bb + added
    first, second, third = gg * bb - gb * gb, rb * gb - rg * bb, rg * gb - rb * gg
    fourth, fifth, sixth = rr * bb - rb * rb, rb * rg - rr * gb, rr * gg - rg * rg
    determinant = rr * first + rg * second + rb * third
    rows = [[first, second, third], [second, fourth, fifth], [third, fifth, sixth]]
    return torch.stack([torch.stack(row) for row in rows]) / determinant
