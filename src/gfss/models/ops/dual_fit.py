"""A 3x3 convolution as one product, and the novel classifier's descent in dual form.

The dual form is the descent of :func:`gfss.models.novel.classifier.fit_plain`: the same numbers up to rounding.
The first layer starts at W_0 and every gradient is U^T G, where U (positions x 9 channels) holds the 3x3 patches. So
W_t = a_t W_0 + U^T C_t, and the hidden maps are Z_t = a_t U W_0 + (U U^T) C_t: one product with a positions x positions
matrix per step instead of two with 9 x channels columns. What is left of a step is small, so its gradient is written
out by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from gfss.models.ops.upsample import interpolation_weights, upsample

if TYPE_CHECKING:
    from gfss.models.novel.classifier import GradientDescent

KERNEL = 9  # positions of a 3x3 patch


def convolve(maps: Tensor, weights: Tensor) -> Tensor:
    """``F.conv2d(maps, weights, padding=1)``, (images, hidden, h, w).

    One matrix product for all nine taps, then their results are shifted and added. With many channels and few results
    that is faster on a CPU than a convolution; as a part of an exported network it is one.

    Args:
        maps: (images, channels, h, w).
        weights: (hidden, channels, 3, 3).
    """
    if torch.compiler.is_exporting():
        return F.conv2d(maps, weights, padding=1)
    images, channels, height, width = maps.shape
    taps = weights.permute(2, 3, 0, 1).reshape(-1, channels) @ maps.flatten(2)
    taps = taps.view(images, 3, 3, len(weights), height, width)
    out = taps[:, 1, 1].clone()
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            if (down, right) != (0, 0):
                to_y, from_y = shifted(down, height)
                to_x, from_x = shifted(right, width)
                out[:, :, to_y, to_x] += taps[:, 1 + down, 1 + right, :, from_y, from_x]
    return out


def shifted(offset: int, length: int) -> tuple[slice, slice]:
    """Slices (to, from) with from = to + offset inside a length."""
    low, high = max(0, -offset), min(length, length - offset)
    return slice(low, high), slice(low + offset, high + offset)


def dual_is_cheaper(maps: Tensor, hidden: int, steps: int = 50) -> bool:
    """Whether the dual form needs fewer multiplications than the plain one on maps as in :func:`fit_dual`."""
    _, supports, channels, height, width = maps.shape
    positions = supports * height * width
    plain = steps * 2 * positions * KERNEL * channels * hidden
    gram = positions**2 * (channels + KERNEL)
    dual = gram + steps * positions**2 * hidden + 2 * positions * KERNEL * channels * hidden
    return dual < plain


def fit_dual(
    maps: Tensor, labels: Tensor, weights: Tensor, start: Sequence[Tensor], descent: GradientDescent
) -> list[Tensor]:
    """The descent with the first layer's weights as coefficients of the support's patches.

    Arguments are those of ``fit_plain``. Positions that no labelled pixel reads, such as those of the frame around an
    image that is not square, never get a coefficient, so they are left out.
    """
    episodes, supports, channels, height, width = maps.shape
    hidden = start[0].shape[0]
    loss_gradient = _LossGradient(labels, weights, (height, width))
    read = loss_gradient.read_positions()
    maps, near = _cut(maps, read)
    here, wide = maps.shape[-2] * maps.shape[-1], maps.shape[-1]
    gram = patch_gram(maps)
    begin = convolve(maps.flatten(0, 1), start[0]).view(episodes, supports, hidden, here)
    begin = begin.transpose(2, 3).reshape(episodes, supports * here, hidden)
    if len(near) < supports * here:
        gram, begin = gram[:, near[:, None], near], begin[:, near]
    coefficients = torch.zeros_like(begin)
    scale, scale_speed = 1.0, 0.0  # of W_0 within W_t
    first_bias, second, second_bias = small = [value.expand(episodes, *value.shape).clone() for value in start[1:]]
    speed, *small_speeds = [torch.zeros_like(value) for value in (coefficients, *small)]
    logits = maps.new_zeros(episodes, second.shape[1], supports * height * width)
    for step in range(descent.steps):
        z = scale * begin if step == 0 else torch.baddbmm(begin, gram, coefficients, beta=scale)
        active = z.add_(first_bias[:, None]).relu_()
        logits[..., read] = second @ active.transpose(1, 2) + second_bias[..., None]
        grad = loss_gradient(logits.view(episodes, -1, supports, height, width)).flatten(2)[..., read]
        grad_second = grad @ active
        grad_hidden = (grad.transpose(1, 2) @ second).mul_(active.sign_())  # nothing flows back where ReLU gave 0
        grads = (grad_hidden.sum(dim=1), grad_second, grad.sum(dim=2))
        scale_speed = descent.momentum * scale_speed + descent.weight_decay * scale
        scale -= descent.rate * scale_speed
        descent.move(coefficients, speed, grad_hidden)
        for value, its_speed, its_grad in zip(small, small_speeds, grads, strict=True):
            descent.move(value, its_speed, its_grad)
    every = maps.new_zeros(episodes, supports * here, hidden).index_copy_(1, near, coefficients)
    grid = every.view(episodes * supports, -1, wide, hidden).permute(0, 3, 1, 2)
    moved = _patch_products(maps.flatten(0, 1), grid).view(episodes, supports, 3, 3, hidden, channels).sum(dim=1)
    first = moved.add_(start[0].permute(2, 3, 0, 1), alpha=scale)
    return [first.permute(0, 3, 4, 1, 2), *small]  # its taps lie one after the other, as convolve reads them


def _cut(maps: Tensor, read: Tensor) -> tuple[Tensor, Tensor]:
    """Maps (..., h, w) without the rows below and the columns right of all that patches around some positions read.

    Args:
        read: numbers of these positions among all of the supports.

    Returns:
        The maps, and the numbers that these positions have there.
    """
    height, width = maps.shape[-2:]
    support, row, column = read // (height * width), read // width % height, read % width
    tall, wide = min(height, int(row.max()) + 2), min(width, int(column.max()) + 2)
    return maps[..., :tall, :wide].contiguous(), (support * tall + row) * wide + column


class _LossGradient:
    """Gradient of :func:`gfss.models.novel.classifier.support_loss` by the logits (episodes, classes, supports, h, w).

    At a pixel it is (softmax - truth) times the pixel's share in the weighted mean; the transposed interpolation brings
    it back to the positions.
    """

    def __init__(self, labels: Tensor, weights: Tensor, size: tuple[int, int]) -> None:
        classes = weights.shape[1]
        truth = torch.stack([labels == c for c in range(classes)], dim=1) * weights[:, :, None, None, None]
        self.truth = truth / truth.sum(dim=(1, 2, 3, 4), keepdim=True)  # void pixels have no share in any class
        self.shares = self.truth.sum(dim=1, keepdim=True)
        self.pixels = (labels.shape[-2], labels.shape[-1])
        self.down, self.across = (
            interpolation_weights(length, pixels, weights.dtype, weights.device)
            for length, pixels in zip(size, self.pixels, strict=True)
        )

    def read_positions(self) -> Tensor:
        """Numbers of the positions that any pixel with a share reads, in any episode."""
        shares = (self.shares > 0).any(dim=0)[0].to(self.down.dtype)  # (supports, height, width)
        return ((self.down.T @ shares @ self.across) > 0).flatten().nonzero()[:, 0]

    def __call__(self, logits: Tensor) -> Tensor:
        full = upsample(logits, self.pixels)
        grad = full.softmax(dim=1).mul_(self.shares).sub_(self.truth)
        return self.down.T @ grad @ self.across


def patch_gram(maps: Tensor) -> Tensor:
    """Inner products of all 3x3 patches, (episodes, positions, positions).

    A patch product is the sum of nine position products, all shifted alike, so only the position products
    need multiplications with all channels. Two supports at a time: their products stay in the processor's cache.

    Args:
        maps: (episodes, supports, channels, h, w).
    """
    episodes, supports, _, height, width = maps.shape
    rows, here = maps.flatten(3), height * width
    gram = maps.new_empty(episodes, supports, here, supports, here)
    for one in range(supports):
        for other in range(one + 1):
            products = rows[:, one].transpose(1, 2) @ rows[:, other]
            block = _sum_of_shifts(products.view(episodes, height, width, height, width)).flatten(3).flatten(1, 2)
            gram[:, one, :, other] = block
            gram[:, other, :, one] = block.transpose(1, 2)
    return gram.view(episodes, supports * here, supports * here)


def _sum_of_shifts(products: Tensor) -> Tensor:
    """Products (episodes, h, w, h, w) of positions, each with those of its eight neighbours added."""
    height, width = products.shape[-2:]
    total = products.clone()
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            if (down, right) != (0, 0):
                to_y, from_y = shifted(down, height)
                to_x, from_x = shifted(right, width)
                total[:, to_y, to_x, to_y, to_x] += products[:, from_y, from_x, from_y, from_x]
    return total


def _patch_products(maps: Tensor, coefficients: Tensor) -> Tensor:
    """U^T C of every image, the weights that coefficients stand for: (images, 9 x hidden, channels), by tap."""
    height, width = maps.shape[-2:]
    padded = F.pad(coefficients, (1, 1, 1, 1))  # hidden maps are fewer than channels: these are the ones to shift
    taps = [padded[..., 2 - y : 2 - y + height, 2 - x : 2 - x + width] for y in range(3) for x in range(3)]
    return torch.stack(taps, dim=1).flatten(3).flatten(1, 2) @ maps.flatten(2).transpose(1, 2)
