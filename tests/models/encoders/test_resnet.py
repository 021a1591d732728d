"""Dilated ResNet: published sizes, key names, and an independent implementation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gfss.models.encoders.resnet import ResNet


def test_resnet50_has_the_published_sizes() -> None:
    with torch.device("meta"):
        encoder = ResNet(50, output_stride=8)
        levels = encoder(torch.empty(1, 3, 417, 417))
    assert {name: tuple(level.shape) for name, level in levels.items()} == {
        "layer2": (1, 512, 53, 53),
        "layer3": (1, 1024, 53, 53),
        "layer4": (1, 2048, 53, 53),
    }
    assert sum(weight.numel() for weight in encoder.parameters()) == 23_508_032


@pytest.mark.parametrize(("depth", "entries"), [(18, 120), (50, 318), (101, 624)])
def test_key_names_are_those_of_the_usual_files(depth: int, entries: int) -> None:
    with torch.device("meta"):
        state = ResNet(depth).state_dict()
    assert len(state) == entries  # of the usual ImageNet files without fc.weight and fc.bias
    assert {"conv1.weight", "bn1.running_var", "layer1.0.conv1.weight", "layer3.0.downsample.1.bias"} <= state.keys()


def test_deep_stem_has_three_convolutions_and_dilates_whole_layers() -> None:
    with torch.device("meta"):
        encoder = ResNet(50, output_stride=8, deep_stem=True)
    shapes = {key: tuple(value.shape) for key, value in encoder.state_dict().items()}
    assert [shapes[f"conv{i}.weight"] for i in (1, 2, 3)] == [(64, 3, 3, 3), (64, 64, 3, 3), (128, 64, 3, 3)]
    assert shapes["layer1.0.conv1.weight"] == (64, 128, 1, 1)
    for layer, dilation in (("layer2", 1), ("layer3", 2), ("layer4", 4)):
        blocks = list(encoder.get_submodule(layer).children())
        assert {block.get_submodule("conv2").dilation for block in blocks} == {(dilation, dilation)}  # type: ignore[attr-defined]


@pytest.mark.parametrize("stride_on", ["conv1", "conv2"])
@pytest.mark.parametrize("depth", [18, 50])
@torch.inference_mode()
def test_equals_an_independent_implementation(depth: int, stride_on: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(
        depths={18: [2, 2, 2, 2], 50: [3, 4, 6, 3]}[depth],
        hidden_sizes={18: [64, 128, 256, 512], 50: [256, 512, 1024, 2048]}[depth],
        layer_type={18: "basic", 50: "bottleneck"}[depth],
        downsample_in_bottleneck=stride_on == "conv1",
        out_indices=[2, 3, 4],
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        other = transformers.AutoBackbone.from_config(config).eval()
    encoder = ResNet(depth, output_stride=32, stride_on=stride_on).eval()
    encoder.load_state_dict(torchvision_names(other.state_dict()))
    images = torch.rand(1, 3, 97, 65, generator=torch.Generator().manual_seed(1))
    for ours, theirs in zip(encoder.levels(images).values(), other(images).feature_maps, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def torchvision_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """From the key names of transformers' ResNet to the usual ones."""
    renamed: dict[str, Tensor] = {}
    for key, value in state.items():
        *path, kind, entry = key.split(".")
        convolution = kind == "convolution"
        if path[0] == "embedder":
            name = "conv1" if convolution else "bn1"
        else:
            block = f"layer{int(path[2]) + 1}.{path[4]}"
            if path[5] == "shortcut":
                name = f"{block}.downsample.{0 if convolution else 1}"
            else:
                name = f"{block}.{'conv' if convolution else 'bn'}{int(path[6]) + 1}"
        renamed[f"{name}.{entry}"] = value
    return renamed
