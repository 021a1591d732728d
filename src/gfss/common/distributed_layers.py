"""Layers that act on the samples of all processes as one process would on the whole batch.

Torch has such a batch norm for GPUs only, and no such dropout.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class DistributedBatchNorm(nn.BatchNorm2d):
    """Batch norm whose statistics are those of all processes' samples together, on any device."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        mean, variance, count = statistics(input.detach())
        if self.running_mean is not None and self.running_var is not None and self.momentum is not None:
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * (count / max(count - 1, 1)), self.momentum)
            if self.num_batches_tracked is not None:
                self.num_batches_tracked.add_(1)
        return _Normalise.apply(input, self.weight, self.bias, mean, variance, count, self.eps)  # type: ignore[no-any-return]


def statistics(maps: Tensor) -> tuple[Tensor, Tensor, float]:
    """Mean and variance of every channel over all samples of all processes, and their number."""
    sums = maps.sum(dim=(0, 2, 3))
    both = _summed(torch.cat([sums, sums.new_full((1,), maps.numel() / maps.shape[1])]))
    count = float(both[-1])
    mean = both[:-1] / count
    # centred first: E[x^2] - E[x]^2 loses all digits where samples differ little, as in the 1 x 1 pyramid branch
    centred = maps - mean.view(1, -1, 1, 1)
    return mean, _summed(centred.mul_(centred).sum(dim=(0, 2, 3))) / count, count


class _Normalise(torch.autograd.Function):
    """(x - mean) / sqrt(variance + eps) * weight + bias, where mean and variance depend on all samples."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, maps: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, count: float, eps: float
    ) -> Tensor:
        ctx.save_for_backward(maps, weight, mean, variance)
        ctx.count, ctx.eps = count, eps
        return torch.batch_norm(maps, weight, bias, mean, variance, False, 0.0, eps, False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        maps, weight, mean, variance = ctx.saved_tensors
        backward, wanted = torch.ops.aten.native_batch_norm_backward, [True, True, True]
        inverse = torch.rsqrt(variance + ctx.eps)
        # the gradient with mean and variance held fixed, then what comes through them: a x + b in every channel
        own, of_weight, of_bias = backward(grad, maps, weight, mean, variance, mean, inverse, False, ctx.eps, wanted)
        along, level = _summed(torch.stack([of_weight, of_bias])) * (weight * inverse / ctx.count)
        slope = along * inverse
        shape = (1, -1, 1, 1)
        own -= torch.addcmul((level - slope * mean).view(shape), maps, slope.view(shape))
        return own, of_weight, of_bias, None, None, None, None


def _summed(value: Tensor) -> Tensor:
    """The sum over all processes, in place; the value itself where there is only one."""
    if dist.is_initialized():
        dist.all_reduce(value)
    return value


class DistributedDropout(nn.Dropout2d):
    """Channel dropout that draws for all samples and takes this process's part: samples rank, rank + world, ..."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return input
        count = int(_summed(torch.tensor(input.shape[0], device=input.device)))
        drawn = super().forward(input.new_ones(count, input.shape[1], 1, 1))
        return input * drawn[dist.get_rank() :: dist.get_world_size()]


def distribute_batch_norm(module: nn.Module) -> None:
    """Turn every batch norm of a module into the distributed one, in place."""
    _turn(module, nn.BatchNorm2d, DistributedBatchNorm)


def distribute_dropout(module: nn.Module) -> None:
    """Turn every channel dropout of a module into the distributed one, in place.

    For modules that each process calls once per iteration, on its part of the samples.
    """
    _turn(module, nn.Dropout2d, DistributedDropout)


def _turn(module: nn.Module, plain: type[nn.Module], distributed: type[nn.Module]) -> None:
    for child in module.modules():
        if type(child) is plain:
            child.__class__ = distributed
