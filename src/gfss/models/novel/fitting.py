"""Fitting of novel heads: gradient descent on conv3x3 -> ReLU -> conv1x1, as written, many heads at once.

A faster form of the same descent is :mod:`gfss.models.ops.dual_fit`. Weights are lists of four tensors: first
layer, its bias, second layer, its bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from gfss.data.catalog import VOID
from gfss.models.ops.upsample import upsample


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
