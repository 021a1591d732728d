"""An ONNX network in 8-bit integers, its ranges taken from typical images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gfss.app.export import INPUT
from gfss.app.exported import network_input
from gfss.app.inputs import as_image
from gfss.data.images import mirrored_image

MOST_IMAGES = 32


def quantize(source: Path, size: int, images: Sequence[Path]) -> Path:
    """Write a network whose convolutions compute in integers, beside the source; returns the file.

    Only convolutions on maps at most half as fine as the scores: with integers in the first ones alone, one pixel in
    ten changes its class.

    Args:
        size: side of the square input.
        images: from which ranges are taken, at most 32 of them.
    """
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    prepared, out = source.with_name("prepared.onnx"), source.with_name("int8.onnx")
    quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
    quantization.quantize_static(
        str(prepared),
        str(out),
        _reader(size, images[:MOST_IMAGES]),
        quant_format=quantization.QuantFormat.QDQ,
        per_channel=True,
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
        nodes_to_quantize=_coarse_convolutions(prepared),
    )
    return out


def _reader(size: int, images: Sequence[Path]) -> Any:
    """Gives the inputs of the network one after another, as the quantizer asks for them."""
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.inputs = ({INPUT: network_input(mirrored_image(as_image(image), size))} for image in images)

        def get_next(self) -> Any:
            return next(self.inputs, None)

    return Reader()


def _coarse_convolutions(path: Path) -> list[str]:
    """Names of the convolutions on maps at most half as fine as the scores."""
    import onnx

    graph = onnx.shape_inference.infer_shapes(onnx.load(path)).graph
    sides = {value.name: _side(value) for value in (*graph.input, *graph.value_info, *graph.output)}
    largest = (sides[graph.output[0].name] + 1) // 2
    return [
        node.name
        for node in graph.node
        if node.op_type == "Conv" and max(sides[node.input[0]], sides[node.output[0]]) <= largest
    ]


def _side(value: Any) -> int:
    dimensions = value.type.tensor_type.shape.dim
    return int(dimensions[-1].dim_value) if len(dimensions) == 4 else 0
