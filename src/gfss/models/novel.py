"""Novel classifier: a small head fitted on the support set (G_novel), conv3x3 -> ReLU -> conv1x1.

Fitting is a pure function of (maps, labels, seed). There are two exact ways to run the same gradient descent:

* plain: convolve, differentiate, step;
* dual: the first layer starts at W_0 and every gradient is U^T G, where U (positions x 9 channels) holds the
  3x3 patches. So W_t = a_t W_0 + U^T C_t, and the hidden maps are Z_t = a_t U W_0 + (U U^T) C_t: one
  product with a positions x positions matrix per step instead of two with 9 x channels columns.

:func:`fit_novel` takes the way with fewer operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from gfss.data.catalog import VOID
from gfss.errors import GfssError
from gfss.models.maps import upsample
from gfss.models.pspnet import Features

KERNEL = 9  # positions of a 3x3 patch
HALVINGS = 6  # a fit that diverges is repeated with half the step, at most so often


@dataclass(frozen=True)
class NovelOptions:
    """How the novel classifier is fitted; the defaults are our best, :data:`PAPER` is the paper's way.

    Attributes:
        features: maps it reads (see :meth:`Features.named`); the paper: ``("bottleneck",)``.
        normalise: L2-normalise each of these maps over its channels.
        hidden: channels between the two layers.
        steps: gradient steps.
        rate: fixed learning rate.
        momentum: momentum of SGD.
        weight_decay: weight decay.
        label_stride: the loss is taken at every so many pixels.
    """

    features: tuple[str, ...] = ("layer3", "layer4", "bottleneck")
    normalise: bool = True
    hidden: int = 64
    steps: int = 50
    rate: float = 0.5
    momentum: float = 0.0
    weight_decay: float = 0.0
    label_stride: int = 4


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
        hidden = F.relu(F.conv2d(maps, self.first[episode], self.first_bias[episode], padding=1))
        return F.conv2d(hidden, self.second[episode][..., None, None], self.second_bias[episode])


def novel_maps(features: Features, options: NovelOptions) -> Tensor:
    """What the novel classifier reads, (batch, channels, h, w)."""
    if not options.normalise:
        return features.named(options.features)
    return torch.cat([F.normalize(features.named([name]), dim=1) for name in options.features], dim=1)


@torch.inference_mode(False)
@torch.enable_grad()
def fit_novel(
    maps: Tensor, labels: Tensor, classes: int, options: NovelOptions, seed: int = 0, form: str | None = None
) -> NovelClassifier:
    """Fit one head per episode on its supports.

    Args:
        maps: (episodes, supports, channels, h, w).
        labels: (episodes, supports, height, width): 0 none, 1..classes-1 novel classes, 255 ignored.
        classes: outputs, the "none" class included.
        seed: of the initial weights; the same for every episode.
        form: ``plain`` or ``dual``; the cheaper one if left out.
    """
    if not torch.isfinite(maps).all():
        raise GfssError("the support features hold NaN or infinite values; rebuild the feature bank or check the image")
    weights = class_weights(labels, classes, maps.dtype)
    start = _initial(maps.shape[2], options.hidden, classes, seed, maps)
    fit = {"plain": _fit_plain, "dual": _fit_dual}[form or cheaper_form(maps, options.hidden, options.steps)]
    rate, todo = options.rate, torch.arange(len(maps))
    result: list[Tensor] | None = None
    for _ in range(HALVINGS + 1):
        fitted = fit(maps[todo], labels[todo], weights[todo], start, options, rate)
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


def cheaper_form(maps: Tensor, hidden: int, steps: int = 50) -> str:
    """Whichever of the two exact forms needs fewer multiplications."""
    _, supports, channels, height, width = maps.shape
    positions = supports * height * width
    plain = steps * 2 * positions * KERNEL * channels * hidden
    gram = positions**2 * (channels + KERNEL)
    dual = gram + steps * positions**2 * hidden + 2 * positions * KERNEL * channels * hidden
    return "dual" if dual < plain else "plain"


def _initial(channels: int, hidden: int, classes: int, seed: int, like: Tensor) -> list[Tensor]:
    """Initial weights as torch initialises convolutions: uniform within 1 / sqrt(inputs)."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(shape: tuple[int, ...], inputs: int) -> Tensor:
        values = torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1
        return (values / inputs**0.5).to(like)

    return [
        uniform((hidden, channels, 3, 3), channels * KERNEL),
        uniform((hidden,), channels * KERNEL),
        uniform((classes, hidden), hidden),
        uniform((classes,), hidden),
    ]


def _support_loss(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
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


class _Sgd:
    """SGD with momentum and weight decay on a list of tensors."""

    def __init__(self, values: Sequence[Tensor], options: NovelOptions, rate: float) -> None:
        self.values = [value.clone() for value in values]
        self.speed = [torch.zeros_like(value) for value in values]
        self.options, self.rate = options, rate

    def step(self, grads: Sequence[Tensor]) -> None:
        for value, speed, grad in zip(self.values, self.speed, grads, strict=True):
            speed.mul_(self.options.momentum).add_(grad)
            if self.options.weight_decay:
                speed.add_(value, alpha=self.options.weight_decay)
            value.sub_(speed, alpha=self.rate)


def _fit_plain(
    maps: Tensor, labels: Tensor, weights: Tensor, start: Sequence[Tensor], options: NovelOptions, rate: float
) -> list[Tensor]:
    """Gradient descent as written: convolution, loss, gradient, step."""
    episodes = len(maps)
    sgd = _Sgd([value.expand(episodes, *value.shape) for value in start], options, rate)
    for _ in range(options.steps):
        first, first_bias, second, second_bias = leaves = [value.detach().requires_grad_() for value in sgd.values]
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
        sgd.step(torch.autograd.grad(_support_loss(logits, labels, weights), leaves))
    return sgd.values


def _fit_dual(
    maps: Tensor, labels: Tensor, weights: Tensor, start: Sequence[Tensor], options: NovelOptions, rate: float
) -> list[Tensor]:
    """The same descent with the first layer's weights kept as coefficients of the support's patches."""
    episodes, supports, channels, height, width = maps.shape
    positions = supports * height * width
    gram = patch_gram(maps)
    hidden = start[0].shape[0]
    begin = torch.stack([F.conv2d(maps[e], start[0], padding=1) for e in range(episodes)])
    begin = begin.transpose(2, 3).transpose(3, 4).reshape(episodes, positions, hidden)
    coefficients = maps.new_zeros(episodes, positions, hidden)
    speed = torch.zeros_like(coefficients)
    scale, scale_speed = 1.0, 0.0  # of W_0 within W_t
    sgd = _Sgd([value.expand(episodes, *value.shape) for value in start[1:]], options, rate)
    for step in range(options.steps):
        z = scale * begin if step == 0 else torch.baddbmm(begin, gram, coefficients, beta=scale)
        leaves = [value.detach().requires_grad_() for value in (z, *sgd.values)]
        z, first_bias, second, second_bias = leaves
        logits = F.relu(z + first_bias[:, None]) @ second.transpose(1, 2) + second_bias[:, None]
        logits = logits.view(episodes, supports, height, width, -1).permute(0, 1, 4, 2, 3)
        grad, *grads = torch.autograd.grad(_support_loss(logits, labels, weights), leaves)
        speed.mul_(options.momentum).add_(grad)
        if options.weight_decay:
            speed.add_(coefficients, alpha=options.weight_decay)
        scale_speed = options.momentum * scale_speed + options.weight_decay * scale
        coefficients.sub_(speed, alpha=rate)
        scale -= rate * scale_speed
        sgd.step(grads)
    grid = coefficients.view(episodes * supports, height, width, hidden).permute(0, 3, 1, 2)
    moved = _patch_products(maps.flatten(0, 1), grid).view(episodes, supports, hidden, channels, 3, 3).sum(dim=1)
    return [scale * start[0] + moved, *sgd.values]


def patch_gram(maps: Tensor) -> Tensor:
    """Inner products of all 3x3 patches, (episodes, positions, positions).

    A patch product is the sum of nine position products, all shifted alike, so only the position products
    need multiplications with all channels.

    Args:
        maps: (episodes, supports, channels, h, w).
    """
    episodes, supports, channels, height, width = maps.shape
    rows = maps.transpose(1, 2).reshape(episodes, channels, -1)
    products = (rows.transpose(1, 2) @ rows).view(episodes, supports, height, width, supports, height, width)
    total = products.clone()
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            if (down, right) == (0, 0):
                continue
            to_y, from_y = _shifted(down, height)
            to_x, from_x = _shifted(right, width)
            total[:, :, to_y, to_x, :, to_y, to_x] += products[:, :, from_y, from_x, :, from_y, from_x]
    positions = supports * height * width
    return total.view(episodes, positions, positions)


def _patch_products(maps: Tensor, coefficients: Tensor) -> Tensor:
    """U^T C of every image: (images, hidden, channels, 3, 3), the weights that coefficients stand for."""
    images, channels, height, width = maps.shape
    padded = F.pad(maps, (1, 1, 1, 1))
    flat = coefficients.flatten(2)
    out = maps.new_empty(images, coefficients.shape[1], channels, 3, 3)
    for y in range(3):
        for x in range(3):
            window = padded[:, :, y : y + height, x : x + width].reshape(images, channels, -1)
            out[..., y, x] = flat @ window.transpose(1, 2)
    return out


def _shifted(offset: int, length: int) -> tuple[slice, slice]:
    """Slices (to, from) with from = to + offset inside a length."""
    low, high = max(0, -offset), min(length, length - offset)
    return slice(low, high), slice(low + offset, high + offset)
