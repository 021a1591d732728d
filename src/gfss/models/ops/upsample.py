"""From small maps to large ones and back: bilinear upsampling, class maps, pyramid pooling, upsampling along colours.

Upsampling along colours gives score maps the fine structure of the image. Around every position of a coarse map, the
score is fitted as a linear function of the colour, as the guided filter does (He, Sun, Tang 2010; its fast form fits on
the coarse grid and applies the fit at full resolution, He and Sun 2015). Unlike there, the map itself is not smoothed:
only what a pixel's colour differs from the mean around it is added, so that at the positions of the coarse map nothing
changes on average, and a map that does not follow the colours is upsampled bilinearly.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

TIED = 1e-6  # relative difference below which scores may change places by rounding
RADIUS = 1  # positions around each that the linear function is fitted on
EVENNESS = 1e-4  # variance of a colour, in [0, 1], below which it is taken for even
LIMIT = 6.0  # scores beyond do not steer the fit


def upsample(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Bilinear, corners aligned: position i of a map is pixel i * stride of the image.

    Written as two matrix products, one per axis: on a CPU that is several times faster than the resampling
    kernel, forward and backward.

    Args:
        maps: (batch, channels, h, w).
        size: height and width of the result.
    """
    if tuple(maps.shape[-2:]) == tuple(size):
        return maps
    down = interpolation_weights(maps.shape[-2], size[0], maps.dtype, maps.device)
    across = interpolation_weights(maps.shape[-1], size[1], maps.dtype, maps.device)
    return (down @ maps.contiguous()) @ across.T


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # a cached tensor of inference mode could never take part in training
def interpolation_weights(length: int, target: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Linear interpolation with aligned corners along one axis, (target, length)."""
    place = torch.linspace(0, length - 1, target, dtype=torch.float64)
    low = place.floor().long().clamp(0, max(0, length - 2))
    share = place - low
    weights = torch.zeros(target, length, dtype=torch.float64)
    rows = torch.arange(target)
    weights[rows, low] += 1 - share
    if length > 1:
        weights[rows, low + 1] += share
    return weights.to(device=device, dtype=dtype)


def class_map(scores: Tensor, size: tuple[int, int]) -> Tensor:
    """The best class of every pixel: argmax of the upsampled scores, (batch, height, width) uint8.

    Exact, but only classes that can win are upsampled: inside a cell of four positions a class that is below another
    one at all four stays below it. Where cells are whole pixels wide, most of them have one possible winner and need no
    interpolation at all.

    Args:
        scores: (batch, classes, h, w), at most 256 classes.
        size: height and width of the result.
    """
    sides = list(zip(scores.shape[-2:], size, strict=True))
    if all(length > 1 and target > length and (target - 1) % (length - 1) == 0 for length, target in sides):
        return _cell_by_cell(scores, size)
    return torch.stack([_class_map(image, size) for image in scores])


def _cell_by_cell(scores: Tensor, size: tuple[int, int]) -> Tensor:
    batch, classes, height, width = scores.shape
    down, across = (size[0] - 1) // (height - 1), (size[1] - 1) // (width - 1)
    rows = F.pad(scores, (0, 1, 0, 1), mode="replicate").permute(0, 2, 3, 1)  # the last row and column are cells too
    corners = torch.stack([rows[:, :-1, :-1], rows[:, :-1, 1:], rows[:, 1:, :-1], rows[:, 1:, 1:]]).flatten(1, 3)
    able = _able(corners)  # (cells, classes)
    winner = able.to(torch.uint8).argmax(dim=1).to(torch.uint8)[:, None].repeat(1, down * across)
    number = able.sum(dim=1)
    open_cells = (number > 1).nonzero()[:, 0]
    if len(open_cells):
        candidates, first = number[open_cells].sort(descending=True)  # cells with a k-th candidate are the first ones
        open_cells = open_cells[first]
        order = torch.where(able[open_cells], torch.arange(classes, 0, -1, device=scores.device), 0)
        label = order.topk(int(candidates[0]), dim=1).indices  # candidates of every cell in class order, then others
        values = corners[:, open_cells].gather(2, label.expand(4, -1, -1))
        weights = _corner_weights(down, across, scores.dtype, scores.device)
        label = label.to(torch.uint8)
        best = values[:, :, 0].T @ weights
        winning = label[:, :1].repeat(1, down * across)
        for k in range(1, label.shape[1]):
            cells = slice(int((candidates > k).sum()))
            score = values[:, cells, k].T @ weights
            winning[cells] = torch.where(score > best[cells], label[cells, k : k + 1], winning[cells])
            torch.maximum(score, best[cells], out=best[cells])
        winner[open_cells] = winning
    blocks = winner.view(batch, height, width, down, across).transpose(2, 3)
    return blocks.reshape(batch, height * down, width * across)[:, : size[0], : size[1]].contiguous()


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def _corner_weights(down: int, across: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Shares of a cell's four corners in each of its pixels, (4, down * across)."""
    y = (torch.arange(down, dtype=torch.float64) / down)[:, None]
    x = torch.arange(across, dtype=torch.float64) / across
    shares = torch.stack([(1 - y) * (1 - x), (1 - y) * x, y * (1 - x), y * x])
    return shares.flatten(1).to(device=device, dtype=dtype)


def _class_map(scores: Tensor, size: tuple[int, int]) -> Tensor:
    cell = (min(2, scores.shape[-2]), min(2, scores.shape[-1]))
    largest, smallest = F.max_pool2d(scores, cell, stride=1), -F.max_pool2d(-scores, cell, stride=1)
    surely_reached = smallest.amax(dim=0)  # in every cell
    able = largest >= surely_reached - TIED * surely_reached.abs()
    candidates = able.flatten(1).any(dim=1).nonzero().squeeze(1)
    if len(candidates) == 1:
        return candidates.to(torch.uint8).expand(size[0] * size[1]).reshape(size)
    first, *others = upsample(scores[candidates][None], size)[0]
    winner = torch.full(size, int(candidates[0]), dtype=torch.uint8, device=scores.device)
    for label, score in zip(candidates[1:].tolist(), others, strict=True):  # argmax over a few maps, one by one
        winner.masked_fill_(score > first, label)
        first = torch.maximum(first, score)
    return winner


def _able(corners: Tensor) -> Tensor:
    """Which classes can win in a cell: those that somewhere reach the one with the highest lowest corner.

    Args:
        corners: scores at the corners of cells, (4, cells, classes).

    Returns:
        (cells, classes).
    """
    leader = corners.amin(dim=0).argmax(dim=1)[:, None]
    lead = corners.gather(2, leader.expand(4, -1, -1))
    return (corners >= lead - TIED * lead.abs().amax(dim=0)).any(dim=0)


def pool_bins(maps: Tensor, bins: tuple[int, ...]) -> list[Tensor]:
    """``F.adaptive_avg_pool2d(maps, b)`` for every b of ``bins``: (batch, channels, b, b) each."""
    size = (maps.shape[-2], maps.shape[-1])
    means = maps.flatten(2) @ pooling_weights(size, bins, maps.dtype, maps.device)
    parts = means.split([count * count for count in bins], dim=2)
    return [part.unflatten(2, (count, count)) for part, count in zip(parts, bins, strict=True)]


def mix_upsampled(weight: Tensor, maps: Tensor, branches: Sequence[Tensor]) -> Tensor:
    """A 1x1 convolution of maps and upsampled branches, all concatenated: (batch, width, h, w).

    A 1x1 convolution and upsampling commute, so the branches go through it at their own resolution, and all of them
    are upsampled by one product.

    Args:
        weight: (width, channels of maps and branches).
        maps: (batch, channels, h, w).
        branches: (batch, channels, bins, bins) each.
    """
    size = (maps.shape[-2], maps.shape[-1])
    own, *others = weight.split([maps.shape[1], *(branch.shape[1] for branch in branches)], dim=1)
    small = torch.cat([rows @ branch.flatten(2) for rows, branch in zip(others, branches, strict=True)], dim=2)
    bins = tuple(branch.shape[-1] for branch in branches)
    upsampled = small @ upsampling_weights(size, bins, maps.dtype, maps.device)
    mixed = torch.baddbmm(upsampled, own.expand(len(maps), -1, -1), maps.flatten(2)).unflatten(2, size)
    return mixed.contiguous(memory_format=torch.channels_last)


@lru_cache(maxsize=16)
@torch.inference_mode(False)  # a cached tensor of inference mode could never take part in training
def pooling_weights(size: tuple[int, int], bins: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Average pooling to all bins of a pyramid as one matrix, (h w, sum of bins squared)."""
    each = torch.eye(size[0] * size[1], dtype=torch.float64).view(-1, 1, *size)
    return torch.cat([F.adaptive_avg_pool2d(each, count).flatten(1) for count in bins], dim=1).to(device, dtype)


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def upsampling_weights(
    size: tuple[int, int], bins: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Bilinear upsampling from all bins of a pyramid as one matrix, (sum of bins squared, h w)."""
    each = (torch.eye(count**2, dtype=torch.float64).view(-1, 1, count, count) for count in bins)
    return torch.cat([upsample(maps, size).flatten(1) for maps in each]).to(device, dtype)


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


def mask_shares(labels: Tensor, label: int, size: tuple[int, int]) -> Tensor:
    """Share of a class at every position of the maps: its mask averaged to map size, (supports, h, w)."""
    mask = (labels == label).float()[:, None]
    return F.interpolate(mask, size=size, mode="area")[:, 0]


def grid_colours(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Mean colour around every position of a grid, less a half, (batch, 3, h, w).

    Args:
        images: (batch, 3, height, width) in [0, 1]; the corners of grid and image coincide.
    """
    step = (images.shape[-1] - 1) // (size[1] - 1)
    half = step // 2
    padded = F.pad(images - 0.5, (half, half, half, half), mode="replicate")
    return F.avg_pool2d(padded, step + 1, step)[..., : size[0], : size[1]]
