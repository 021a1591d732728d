"""Novel classifier: a small head fitted on the support set (G_novel), conv3x3 -> ReLU -> conv1x1.

Fitting is a pure function of (maps, labels, seed): gradient descent, many heads at once. Its plain form is
:func:`fit_plain`, a faster one of the same descent :mod:`gfss.models.ops.dual_fit`. Weights are lists of four tensors:
first layer, its bias, second layer, its bias.
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
from gfss.models.ops.dual_fit import convolve, dual_is_cheaper, fit_dual
from gfss.models.ops.upsample import upsample

Form = Literal["plain", "dual", "fast"]
HALVINGS = 6  # a fit that diverges is repeated with half the step, at most so often


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
