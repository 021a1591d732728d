"""From small score maps to class maps at image size."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

TIED = 1e-6  # relative difference below which scores may change places by rounding


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
