"""Novel classifier: a small head fitted on the support set (G_novel), conv3x3 -> ReLU -> conv1x1.

Fitting is a pure function of (maps, labels, seed): gradient descent, many heads at once. Weights are lists of four
tensors: first layer, its bias, second layer, its bias. The plain form is :func:`fit_plain`; :func:`fit_dual` is the
same descent, the same numbers up to rounding: the first layer starts at W_0 and every gradient is U^T G, where U
(positions x 9 channels) holds the 3x3 patches. So W_t = a_t W_0 + U^T C_t, and the hidden maps are
Z_t = a_t U W_0 + (U U^T) C_t: one product with a positions x positions matrix per step instead of two with 9 x channels
columns. What is left of a step is small, so its gradient is written out by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor
from torch.nn import functional as F

from gfss.common.errors import GfssError
from gfss.common.options import options
from gfss.data.catalog import VOID
from gfss.models.base_model import Features
from gfss.models.ops.upsample import interpolation_weights, upsample

Form = Literal["plain", "dual", "fast"]
HALVINGS = 6  # a fit that diverges is repeated with half the step, at most so often
KERNEL = 9  # positions of a 3x3 patch


@dataclass(frozen=True)
class GradientDescent:
    """Stochastic gradient descent on whole support sets: steps, learning rate, momentum, weight decay."""

    steps: int
    rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0

    def move(self, value: Tensor, speed: Tensor, grad: Tensor) -> None:
        """One step, in place."""
        if not self.momentum and not self.weight_decay:
            value.sub_(grad, alpha=self.rate)
            return
        speed.mul_(self.momentum).add_(grad)
        if self.weight_decay:
            speed.add_(value, alpha=self.weight_decay)
        value.sub_(speed, alpha=self.rate)


def fit_plain(
    maps: Tensor, labels: Tensor, weights: Tensor, start: Sequence[Tensor], descent: GradientDescent
) -> list[Tensor]:
    """Gradient descent as written: convolution, loss, gradient, step.

    Args:
        maps: (episodes, supports, channels, h, w).
        labels: (episodes, supports, height, width).
        weights: of the classes in the loss, (episodes, classes).
        start: initial weights of every head.
    """
    episodes = len(maps)
    values = [value.expand(episodes, *value.shape).clone() for value in start]
    speeds = [torch.zeros_like(value) for value in values]
    for _ in range(descent.steps):
        first, first_bias, second, second_bias = leaves = [value.detach().requires_grad_() for value in values]
        logits = torch.stack(
            [
                F.conv2d(
                    F.relu(F.conv2d(maps[e], first[e], first_bias[e], padding=1)),
                    second[e][..., None, None],
                    second_bias[e],
                )
                for e in range(episodes)
            ]
        )
        grads = torch.autograd.grad(support_loss(logits, labels, weights), leaves)
        for value, speed, grad in zip(values, speeds, grads, strict=True):
            descent.move(value, speed, grad)
    return values


def support_loss(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Weighted cross entropy per episode, summed over episodes (they share no parameters).

    Args:
        logits: (episodes, supports, classes, h, w).
        labels: (episodes, supports, height, width).
        weights: (episodes, classes).
    """
    episodes, supports = labels.shape[:2]
    full = upsample(logits.flatten(0, 1), (labels.shape[-2], labels.shape[-1]))
    target = labels.flatten(0, 1).long()
    valid = target != VOID
    target = target.where(valid, torch.zeros_like(target))
    loss = F.cross_entropy(full, target, reduction="none")
    image_weights = weights.repeat_interleave(supports, dim=0)
    pixel_weights = image_weights.gather(1, target.flatten(1)).view_as(loss) * valid
    per_episode = (loss * pixel_weights).view(episodes, -1).sum(dim=1) / pixel_weights.view(episodes, -1).sum(dim=1)
    return per_episode.sum()


@options
class NovelOptions:
    """How the novel classifier is fitted; :data:`PAPER` is the paper's way, :data:`FROZEN` that of the frozen recipes.

    Attributes:
        features: maps it reads (see :meth:`Features.named`); the paper: ``("bottleneck",)``.
        normalise: L2-normalise each of these maps over its channels.
        hidden: channels between the two layers.
        steps: gradient steps.
        rate: fixed learning rate.
        momentum: momentum of SGD.
        weight_decay: weight decay.
        label_stride: the loss is taken at every so many pixels.
        low_rank: changes of the first layer are kept along directions whose singular value is at least this share of
            the largest; 0 keeps all of them (exact). See :mod:`gfss.models.novel.low_rank`.
    """

    features: tuple[str, ...] = ("layer3", "layer4", "bottleneck")
    normalise: bool = True
    hidden: PositiveInt = 64
    steps: PositiveInt = 50
    rate: PositiveFloat = 0.5
    momentum: NonNegativeFloat = 0.0
    weight_decay: NonNegativeFloat = 0.0
    label_stride: PositiveInt = 4
    low_rank: NonNegativeFloat = 0.0

    def optimiser(self, rate: float) -> GradientDescent:
        """The optimiser's part, at a learning rate."""
        return GradientDescent(self.steps, rate, self.momentum, self.weight_decay)


FROZEN = NovelOptions(low_rank=0.02)
PAPER = NovelOptions(features=("bottleneck",), normalise=False, hidden=512, rate=0.1, label_stride=1)


@dataclass(frozen=True)
class NovelClassifier:
    """Fitted heads, one per episode.

    Attributes:
        first: (episodes, hidden, channels, 3, 3).
        first_bias: (episodes, hidden).
        second: (episodes, classes, hidden); class 0 is "none of the novel ones".
        second_bias: (episodes, classes).
    """

    first: Tensor
    first_bias: Tensor
    second: Tensor
    second_bias: Tensor

    def logits(self, maps: Tensor, episode: int = 0) -> Tensor:
        """Scores of query maps (queries, channels, h, w) under one head: (queries, classes, h, w)."""
        if maps.shape[1] != self.first.shape[2]:
            raise GfssError(
                f"the novel classifier was fitted on {self.first.shape[2]} channels, these features have "
                f"{maps.shape[1]}; use the features it was fitted on"
            )
        return self.decide(convolve(maps, self.first[episode]), episode)

    def decide(self, first: Tensor, episode: int = 0) -> Tensor:
        """Scores from the results of the first layer without bias (queries, hidden, h, w), which are overwritten."""
        hidden = first.add_(self.first_bias[episode][:, None, None]).relu_()
        logits = self.second[episode] @ hidden.flatten(2) + self.second_bias[episode][:, None]
        return logits.unflatten(2, (first.shape[-2], first.shape[-1]))


def novel_maps(features: Features, options: NovelOptions) -> Tensor:
    """What the novel classifier reads, (batch, channels, h, w)."""
    if not options.normalise:
        return features.named(options.features)
    return features.unit(*options.features)


@torch.inference_mode(False)
@torch.enable_grad()
def fit_novel(
    maps: Tensor, labels: Tensor, classes: int, options: NovelOptions, seed: int = 0, form: Form = "plain"
) -> NovelClassifier:
    """Fit one head per episode on its supports.

    Args:
        maps: (episodes, supports, channels, h, w).
        labels: (episodes, supports, height, width): 0 none, 1..classes-1 novel classes, 255 ignored.
        classes: outputs, the "none" class included.
        seed: of the initial weights; the same for every episode.
        form: ``plain``, ``dual`` (the same up to rounding) or ``fast``, whichever needs fewer operations.
    """
    if not torch.isfinite(maps).all():
        raise GfssError("the support features hold NaN or infinite values; rebuild the feature bank or check the image")
    weights = class_weights(labels, classes, maps.dtype)
    start = initial_weights(maps.shape[2], options.hidden, classes, seed, maps.dtype, maps.device)
    dual = form == "dual" or (form == "fast" and dual_is_cheaper(maps, options.hidden, options.steps))
    fit = fit_dual if dual else fit_plain
    rate, todo = options.rate, torch.arange(len(maps))
    result: list[Tensor] | None = None
    for _ in range(HALVINGS + 1):
        fitted = fit(maps[todo], labels[todo], weights[todo], start, options.optimiser(rate))
        if result is None:
            result = fitted
        else:
            for whole, part in zip(result, fitted, strict=True):
                whole[todo] = part
        finite = torch.stack([part.flatten(1).isfinite().all(dim=1) for part in result]).all(dim=0)
        if finite.all():
            return NovelClassifier(*(part.detach() for part in result))
        rate, todo = rate / 2, (~finite).nonzero().squeeze(1)
    raise GfssError("fitting the novel classifier diverges even with tiny steps; check the support features")


def class_weights(labels: Tensor, classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Weights of the cross entropy, (episodes, classes): 1 for "none", (none pixels / own pixels) for a class."""
    flat = labels.flatten(1).long()
    counts = torch.stack([(flat == c).sum(dim=1) for c in range(classes)], dim=1).double()
    if (counts.sum(dim=1) == 0).any():
        raise GfssError("a support mask is void everywhere; label the object in it")
    if (counts[:, 1:] == 0).any():
        raise GfssError("a support mask has no pixel of the class to learn; label the object in it")
    if (counts[:, 0] == 0).any():
        raise GfssError(
            "a support mask shows only the class and nothing else; label it so that some background is left"
        )
    return (counts[:, :1] / counts).to(dtype)


def support_labels(labels: Tensor, classes: Sequence[int]) -> Tensor:
    """Fold labels to those of the novel classifier: ``classes[i]`` becomes i + 1, void stays, all else 0."""
    out = torch.where(labels == VOID, labels, torch.zeros_like(labels))
    for position, label in enumerate(classes, start=1):
        out[labels == label] = position
    return out


@lru_cache(maxsize=4)
@torch.inference_mode(False)
def initial_weights(
    channels: int, hidden: int, classes: int, seed: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, ...]:
    """Initial weights as torch initialises convolutions: uniform within 1 / sqrt(inputs). Not to be written to."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(shape: tuple[int, ...], inputs: int) -> Tensor:
        values = torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1
        return (values / inputs**0.5).to(device=device, dtype=dtype)

    return (
        uniform((hidden, channels, 3, 3), channels * 9),
        uniform((hidden,), channels * 9),
        uniform((classes, hidden), hidden),
        uniform((classes,), hidden),
    )


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
    """Gradient of :func:`support_loss` by the logits (episodes, classes, supports, h, w).

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
