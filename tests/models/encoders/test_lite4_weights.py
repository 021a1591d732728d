"""EfficientNet-Lite4 from folded weights: the arrays find their places, and real ones name what photographs show."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.models.encoders.test_efficientnet_lite import PHOTOS, central_square
from torch import Tensor
from torch.nn import functional as F

from gfss.common.errors import GfssError
from gfss.models.encoders import build_encoder
from gfss.models.encoders.efficientnet_lite import EfficientNetLite
from gfss.models.encoders.weights import read_weights

SHARED = Path(__file__).resolve().parents[4] / "shared"
LITE4 = Path(os.environ.get("GFSS_LITE4") or SHARED / "weights" / "efficientnet_lite4.safetensors")
KERNELS = (3, 3, 5, 3, 5, 5, 3)  # of the seven stages
WIDTHS = (24, 32, 56, 112, 160, 272, 448)
REPEATS = (1, 4, 4, 6, 6, 8, 1)
STRIDES = (1, 2, 2, 2, 1, 2, 1)


def random_arrays() -> dict[str, Tensor]:
    """Folded arrays of a random EfficientNet-Lite4."""
    generator = torch.Generator().manual_seed(0)
    arrays: dict[str, Tensor] = {}

    def add(name: str, *shape: int) -> None:
        spread = (2 / np.prod(shape[1:])) ** 0.5
        arrays[f"{name}_w"] = spread * torch.randn(*shape, generator=generator)
        arrays[f"{name}_b"] = 0.1 * torch.randn(shape[0], generator=generator)

    add("block0_conv0", 32, 3, 3, 3)
    number, width = 0, 32
    for kernel, out, repeats in zip(KERNELS, WIDTHS, REPEATS, strict=True):
        for _ in range(repeats):
            inner = width if number == 0 else 6 * width
            if number:
                add(f"block{number}_conv0", inner, width, 1, 1)
            add(f"block{number}_conv1", inner, 1, kernel, kernel)
            add(f"block{number}_conv2", out, inner, 1, 1)
            number, width = number + 1, out
    add("conv0", 1280, 448, 1, 1)
    add("dense0", 1000, 1280)
    arrays["dense0_w"] = arrays["dense0_w"].T.contiguous()
    return arrays


def same_padded(x: Tensor, kernel: int, stride: int) -> Tensor:
    """TensorFlow's SAME padding."""
    total = max((-(-x.shape[-1] // stride) - 1) * stride + kernel - x.shape[-1], 0)
    return F.pad(x, (total // 2, total - total // 2) * 2)


def plain_network(arrays: dict[str, Tensor], image: Tensor) -> Tensor:
    """ImageNet logits of EfficientNet-Lite4, written down from the description of the folded file."""

    def convolve(x: Tensor, name: str, stride: int = 1, depthwise: bool = False) -> Tensor:
        weight = arrays[f"{name}_w"]
        groups = x.shape[1] if depthwise else 1
        return F.conv2d(same_padded(x, weight.shape[-1], stride), weight, arrays[f"{name}_b"], stride, groups=groups)

    x = (image * 255 - 127) / 128
    number = 0
    for stride, repeats in zip(STRIDES, REPEATS, strict=True):
        for repeat in range(repeats):
            y = F.relu6(convolve(x, f"block{number}_conv0", 1 if number else 2))
            x = y if number == 0 else x
            y = F.relu6(convolve(y, f"block{number}_conv1", stride if repeat == 0 else 1, depthwise=True))
            y = convolve(y, f"block{number}_conv2")
            x = x + y if x.shape == y.shape else y
            number += 1
    x = F.relu6(convolve(x, "conv0")).mean(dim=(2, 3))
    return x @ arrays["dense0_w"] + arrays["dense0_b"]


@torch.inference_mode()
def test_folded_arrays_give_the_network_they_describe(tmp_path: Path) -> None:
    arrays = random_arrays()
    save_file(arrays, tmp_path / "lite4.safetensors")
    encoder = build_encoder("lite4", tmp_path / "lite4.safetensors", output_stride=32)
    assert isinstance(encoder, EfficientNetLite)
    image = torch.rand(1, 3, 97, 97, generator=torch.Generator().manual_seed(1))
    logits, expected = encoder.classify(image), plain_network(arrays, image)
    torch.testing.assert_close(logits / expected.std(), expected / expected.std(), rtol=1e-3, atol=1e-3)
    assert encoder.channels == {"layer2": 56, "layer3": 160, "layer4": 448}
    assert encoder.level_sizes(97) == {
        "layer1": (25, 25),
        "layer2": (13, 13),
        "stage4": (7, 7),
        "layer3": (7, 7),
        "layer4": (4, 4),
    }


def test_an_onnx_file_of_the_same_network_is_read(tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="reading ONNX files needs the package onnx")
    arrays = random_arrays()
    write_onnx(arrays, tmp_path / "efficientnet-lite4-11.onnx")
    read, _ = read_weights(tmp_path / "efficientnet-lite4-11.onnx")
    assert read.keys() == arrays.keys()
    assert all(torch.equal(read[name], array) for name, array in arrays.items())


def write_onnx(arrays: dict[str, Tensor], path: Path) -> None:
    """A graph with the convolutions in their order; only what reading looks at."""
    from onnx import TensorProto, helper, numpy_helper, save

    names = [name.removesuffix("_w") for name in arrays if name.endswith("_w") and name != "dense0_w"]
    x = helper.make_tensor_value_info("images:0", TensorProto.FLOAT, [1, 224, 224, 3])
    nodes = [helper.make_node("Conv", [f"x{i}", f"{n}_w", f"{n}_b"], [f"x{i + 1}"]) for i, n in enumerate(names)]
    nodes.append(helper.make_node("MatMul", [f"x{len(names)}", "dense0_w"], ["y"]))
    nodes.append(helper.make_node("Add", ["y", "dense0_b"], ["Softmax:0"]))
    stored = [numpy_helper.from_array(array.numpy(), name) for name, array in sorted(arrays.items())]
    y = helper.make_tensor_value_info("Softmax:0", TensorProto.FLOAT, [1, 1000])
    save(helper.make_model(helper.make_graph(nodes, "lite4", [x], [y], stored)), path)


def test_half_a_network_is_refused(tmp_path: Path) -> None:
    arrays = random_arrays()
    del arrays["block7_conv1_b"]
    save_file(arrays, tmp_path / "half.safetensors")
    with pytest.raises(GfssError, match="lack block7_conv1_b"):
        build_encoder("lite4", tmp_path / "half.safetensors")


def test_another_onnx_file_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="reading ONNX files needs the package onnx")
    (tmp_path / "noise.onnx").write_bytes(b"not a graph")
    with pytest.raises(GfssError, match="not a readable ONNX file"):
        read_weights(tmp_path / "noise.onnx")


def test_without_a_file_the_answer_names_one() -> None:
    with pytest.raises(GfssError, match=r"efficientnet-lite4-11\.onnx"):
        build_encoder("lite4")


@torch.inference_mode()
def test_published_weights_name_what_photos_show(pascal_root: Path) -> None:
    if not LITE4.is_file():
        pytest.skip("the weights of EfficientNet-Lite4 are not here; set GFSS_LITE4 to their file")
    encoder = build_encoder("lite4", LITE4, output_stride=32)
    assert isinstance(encoder, EfficientNetLite)
    images = torch.from_numpy(np.stack([central_square(pascal_root / "images" / f"{name}.webp") for name in PHOTOS]))
    best = encoder.classify(images.permute(0, 3, 1, 2) / 255).argmax(dim=1).tolist()
    wrong = [(what, guess) for (what, known), guess in zip(PHOTOS.values(), best, strict=True) if guess not in known]
    assert not wrong, f"named wrongly: {wrong}"
