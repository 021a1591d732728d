"""Encoders by name."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any

import torch

from gfss.common.errors import GfssError, unknown
from gfss.models.encoders.base import Encoder, TinyEncoder, load_strictly
from gfss.models.encoders.efficientnet_lite import DEPTH, EfficientNetLite
from gfss.models.encoders.huggingface import HuggingFaceEncoder
from gfss.models.encoders.lite4_weights import is_folded, unfolded
from gfss.models.encoders.resnet import ResNet
from gfss.models.encoders.weights import read_weights

HUGGING_FACE = "hf:"
# -deep: three-convolution stem; -msra: the stride of the original ResNet, on conv1
RESNETS: dict[str, dict[str, Any]] = {
    "resnet18": {"depth": 18},
    "resnet50": {"depth": 50},
    "resnet50-deep": {"depth": 50, "deep_stem": True},
    "resnet50-msra": {"depth": 50, "stride_on": "conv1"},
    "resnet101": {"depth": 101},
    "resnet101-deep": {"depth": 101, "deep_stem": True},
    "resnet101-msra": {"depth": 101, "stride_on": "conv1"},
}
NAMES = ("tiny", *DEPTH, *RESNETS, f"{HUGGING_FACE}NAME")


def usual_stride(name: str) -> int | None:
    """The output stride of an encoder where none is asked for; None where it cannot be chosen.

    >>> usual_stride("lite0"), usual_stride("resnet50")
    (16, 8)
    """
    if name.startswith(HUGGING_FACE):
        return None
    kind = TinyEncoder if name == "tiny" else EfficientNetLite if name in DEPTH else ResNet
    return signature(kind).parameters["output_stride"].default


def build_encoder(
    name: str,
    weights: Path | None = None,
    output_stride: int | None = None,
    *,
    pretrained: bool = True,
    seed: int = 0,
) -> Encoder:
    """An encoder in evaluation mode.

    Args:
        name: one of ``NAMES``; ``hf:`` is followed by a name on the Hugging Face hub or a folder.
        weights: file with weights. Without it EfficientNet-Lite takes those of the installed package, a
            Hugging Face encoder its own, the others random ones.
        output_stride: input pixels per position of the coarsest level; the encoder's usual one if not given.
        pretrained: load weights at all; ``False`` for a caller that fills them in itself.
        seed: of random weights.

    Returns:
        The encoder; its ``name`` is the one that builds the same architecture again without the weight file.
    """
    state, metadata = read_weights(weights) if weights and pretrained else ({}, {})
    if name == "resnet50" and metadata.get("stride", "").startswith("on conv1"):
        name = "resnet50-msra"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = _architecture(name, output_stride, pretrained and not weights)
    encoder.name = name
    if isinstance(encoder, EfficientNetLite) and is_folded(state):
        state = unfolded(encoder, state)
    if weights and pretrained:
        load_strictly(encoder, state, str(weights), ignore=("fc.",) if isinstance(encoder, ResNet) else ())
    elif pretrained and isinstance(encoder, EfficientNetLite):
        encoder.load_package()
    return encoder.eval()


def _architecture(name: str, output_stride: int | None, hub_weights: bool) -> Encoder:
    if name.startswith(HUGGING_FACE):
        if output_stride is not None:
            raise GfssError(f"the output stride of {name} is fixed; leave it out")
        return HuggingFaceEncoder(name.removeprefix(HUGGING_FACE), pretrained=hub_weights)
    options: dict[str, Any] = {} if output_stride is None else {"output_stride": output_stride}
    if name == "tiny":
        return TinyEncoder(**options)
    if name in DEPTH:
        return EfficientNetLite(name, **options)
    if name in RESNETS:
        return ResNet(**RESNETS[name], **options)
    raise unknown("encoder", name, NAMES)
