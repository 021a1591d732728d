"""ImageNet weights of EfficientNet-Lite4 as they are published: batch norms folded into the convolutions.

Two files are understood: the ONNX model zoo's ``efficientnet-lite4-11.onnx``, whose convolutions are read in the order
of the graph, and a ``.safetensors`` file of the same arrays named ``block{i}_conv{j}_w`` and ``_b`` (``conv0`` is the
last convolution, ``dense0`` the classifier).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from gfss.common.errors import GfssError
from gfss.models.encoders.efficientnet_lite import EfficientNetLite

CLASSES = 1000
FIRST = "block0_conv0_w"  # by this name a table of folded arrays is known


def is_folded(state: Mapping[str, Tensor]) -> bool:
    """Whether a table of weights is one of folded convolutions."""
    return FIRST in state


def unfolded(encoder: EfficientNetLite, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Folded weights under the encoder's own names.

    A bias becomes the shift of the batch norm after its convolution, whose statistics are mean 0 and variance 1.
    """
    convolutions = [name for name, module in encoder.named_modules() if isinstance(module, nn.Conv2d)]
    names = _folded_names(len(convolutions))
    missing = [f"{one}_{kind}" for one in (*names, "dense0") for kind in "wb" if f"{one}_{kind}" not in state]
    if missing:
        raise GfssError(
            f"these weights of EfficientNet-Lite4 lack {', '.join(missing[:5])}; give the whole ImageNet network"
        )
    found: dict[str, Tensor] = {}
    norms = {name: module for name, module in encoder.named_modules() if isinstance(module, nn.BatchNorm2d)}
    for convolution, (norm, module), one in zip(convolutions, norms.items(), names, strict=True):
        bias = state[f"{one}_b"].float()
        found |= {
            f"{convolution}.weight": state[f"{one}_w"],
            f"{norm}.weight": torch.full_like(bias, (1 + module.eps) ** 0.5),
            f"{norm}.bias": bias,
            f"{norm}.running_mean": torch.zeros_like(bias),
            f"{norm}.running_var": torch.ones_like(bias),
        }
    return found | {"_fc.weight": state["dense0_w"].T, "_fc.bias": state["dense0_b"]}


def _folded_names(count: int) -> list[str]:
    """Names of all convolutions in a folded file, in the encoder's order: stem, blocks, last convolution."""
    return [*(f"block{i // 3}_conv{i % 3}" for i in range(count - 1)), "conv0"]


def read_onnx(path: Path) -> dict[str, Tensor]:
    """Arrays of an ONNX file of EfficientNet-Lite4, named as in the folded ``.safetensors`` file."""
    try:
        import onnx
        from onnx import numpy_helper
    except ModuleNotFoundError:
        raise GfssError(f"reading {path} needs the package onnx; run: pip install 'gfss[export]'") from None
    try:
        graph = onnx.load(path).graph
    except Exception as error:  # protobuf's own exceptions have no common base that is public
        raise GfssError(f"{path} is not a readable ONNX file ({error}); fetch it again") from None
    arrays = {one.name: torch.from_numpy(numpy_helper.to_array(one).copy()) for one in graph.initializer}
    convolutions = [_weights(node.input, arrays) for node in graph.node if node.op_type == "Conv"]
    dense = _dense(arrays)
    names = [*_folded_names(len(convolutions)), "dense0"]
    return {
        f"{name}_{kind}": array
        for name, pair in zip(names, [*convolutions, dense], strict=True)
        for kind, array in zip("wb", pair, strict=True)
    }


def _weights(inputs: Sequence[str], arrays: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Weight and bias of a convolution."""
    given = [arrays[name] for name in inputs if name in arrays]
    if len(given) != 2:
        raise GfssError(
            "this ONNX file has a convolution without a bias; give the model zoo's efficientnet-lite4-11.onnx"
        )
    return given[0], given[1]


def _dense(arrays: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Weight (channels, classes) and bias of the classifier, by their shapes."""
    weights = [one for one in arrays.values() if one.ndim == 2 and CLASSES in one.shape]
    biases = [one for one in arrays.values() if tuple(one.shape) == (CLASSES,)]
    if len(weights) != 1 or len(biases) != 1:
        raise GfssError(
            "this ONNX file has no classifier of 1,000 classes; give the model zoo's efficientnet-lite4-11.onnx"
        )
    weight = weights[0]
    return (weight.T if weight.shape[0] == CLASSES else weight), biases[0]
