"""The fastest exact form of a frozen encoder on a CPU: batch norm folded into convolutions, channels last."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from gfss.models.encoders.base import Encoder


def fused(encoder: Encoder) -> Encoder:
    """A copy in evaluation mode whose batch norms are folded into the convolutions before them.

    Pairs are found by order of definition: every encoder here defines a convolution and right after it
    its batch norm. Measured in ``benchmarks/encoder_forms.py``.
    """
    copied = copy.deepcopy(encoder).eval()
    for module in list(copied.modules()):
        _fuse_children(module)
    return copied.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue] missing in torch's types


def _fuse_children(module: nn.Module) -> None:
    previous: tuple[str, nn.Conv2d] | None = None
    for name, child in list(module.named_children()):
        if isinstance(child, nn.BatchNorm2d) and previous and previous[1].out_channels == child.num_features:
            setattr(module, previous[0], fuse_conv_bn_eval(previous[1], child))
            setattr(module, name, nn.Identity())
        previous = (name, child) if isinstance(child, nn.Conv2d) else None
