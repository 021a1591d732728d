"""The fastest exact form of a frozen encoder on a CPU, as measured in ``benchmarks/encoder_forms.py``.

Batch norms are folded into convolutions and maps lie channels last; where the encoder says that it pays, the result is
traced too, which joins each convolution with the activation after it.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from gfss.models.encoders.base import Encoder

Run = Callable[[Tensor], dict[str, Tensor]]
"""From images (batch, 3, size, size) to levels."""


def fast_form(encoder: Encoder, size: int, fine: bool = False) -> Run:
    """An encoder, frozen, in the form that is fastest on a CPU for square images of one size.

    Args:
        fine: give all levels at their own resolution (:meth:`Encoder.fine_levels`), not those of one size.
    """
    if encoder.traced_is_faster:
        return traced(encoder, size, fine)
    return fused(encoder).fine_levels if fine else fused(encoder)


def traced(encoder: Encoder, size: int, fine: bool = False) -> Run:
    """The fused encoder, traced for square images of one size and optimised for inference."""
    names = list(encoder.fine_channels if fine else encoder.channels)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # shapes become constants, as they should
        ordered = _InOrder(fused(encoder), fine).eval()
        recorded = torch.jit.trace(ordered, torch.zeros(1, 3, size, size), check_trace=False)
        network = torch.jit.optimize_for_inference(torch.jit.freeze(recorded))
    return lambda images: dict(zip(names, network(images), strict=True))


class _InOrder(nn.Module):
    """An encoder whose levels come as a tuple."""

    def __init__(self, encoder: Encoder, fine: bool) -> None:
        super().__init__()
        self.encoder = encoder
        self.fine = fine

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        if self.fine:
            return tuple(self.encoder.fine_levels(images).values())
        levels = self.encoder(images)
        return tuple(levels[name] for name in self.encoder.channels)


def fused(encoder: Encoder) -> Encoder:
    """A copy in evaluation mode whose batch norms are folded into the convolutions before them.

    Pairs are found by order of definition: every encoder here defines a convolution and right after it
    its batch norm.
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
