"""What must hold for every encoder, swept over all of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gfss.common.errors import GfssError
from gfss.models.encoders import build_encoder, encoder_names
from gfss.models.encoders.base import Encoder, fast_form, fused, select_levels, traced

BUILT_IN = [name for name in encoder_names() if not name.startswith(("hf:", "resnet101"))]  # as 50, but longer


def random_encoder(name: str, output_stride: int | None = None) -> Encoder:
    """Random weights and batch norms away from their starting values, so that folding them changes something."""
    encoder = build_encoder(name, output_stride=output_stride, pretrained=False)
    generator = torch.Generator().manual_seed(1)
    for module in encoder.modules():
        if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None and module.running_var is not None:
            module.running_mean.normal_(0, 0.1, generator=generator)
            module.running_var.uniform_(0.5, 2, generator=generator)
            module.weight.data.uniform_(0.5, 1, generator=generator)
            module.bias.data.normal_(0, 0.1, generator=generator)
    return encoder


@pytest.mark.parametrize("name", BUILT_IN)
@torch.inference_mode()
def test_fused_form_gives_the_same_features(name: str) -> None:
    encoder = random_encoder(name)
    fast = fused(encoder)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in fast.modules())
    images = torch.rand(2, 3, 65, 49, generator=torch.Generator().manual_seed(0))
    for plain, quick in zip(encoder(images).values(), fast(images).values(), strict=True):
        torch.testing.assert_close(quick / plain.abs().max(), plain / plain.abs().max(), atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["lite0", "tiny", "resnet18"])
@torch.inference_mode()
def test_traced_form_gives_the_same_features_every_time(name: str) -> None:
    encoder = random_encoder(name)
    images = torch.rand(1, 3, 65, 65, generator=torch.Generator().manual_seed(0))
    fast, again = traced(encoder, 65), traced(encoder, 65)
    first = fast(images)
    assert list(first) == list(encoder.channels)
    for plain, quick in zip(encoder(images).values(), first.values(), strict=True):
        torch.testing.assert_close(quick / plain.abs().max(), plain / plain.abs().max(), atol=1e-4, rtol=0)
    for other in (*(fast(images) for _ in range(3)), again(images)):
        assert all(torch.equal(other[level], first[level]) for level in first)


@pytest.mark.parametrize("name", ["lite0", "tiny", "resnet18"])
@torch.inference_mode()
def test_fine_levels_have_their_own_resolution_in_both_forms(name: str) -> None:
    encoder = random_encoder(name)
    images = torch.rand(1, 3, 65, 65, generator=torch.Generator().manual_seed(0))
    levels, quick = encoder.fine_levels(images), fast_form(encoder, 65, fine=True)(images)
    assert {key: level.shape[1] for key, level in levels.items()} == encoder.fine_channels
    sides = [level.shape[-1] for level in levels.values()]
    assert sides[0] == 17  # stride 4
    assert sides == sorted(sides, reverse=True)
    assert list(quick) == list(levels)
    for key, plain in levels.items():
        torch.testing.assert_close(quick[key] / plain.abs().max(), plain / plain.abs().max(), atol=1e-4, rtol=0)
    for key, level in encoder(images).items():  # what the head reads are the same maps, some of them resized
        if levels[key].shape == level.shape:
            torch.testing.assert_close(levels[key], level)


@pytest.mark.parametrize(("name", "is_traced"), [("lite0", True), ("resnet18", False)])
def test_the_fast_form_is_the_one_that_was_measured(name: str, is_traced: bool) -> None:
    assert isinstance(fast_form(random_encoder(name), 65), Encoder) != is_traced


@pytest.mark.parametrize("name", BUILT_IN)
def test_map_size_and_channels_are_as_announced(name: str) -> None:
    for stride in (4,) if name == "tiny" else (8, 32):
        with torch.device("meta"):
            encoder = build_encoder(name, output_stride=stride, pretrained=False)
        assert encoder.stride == stride
        for size in (65, 112):
            side = encoder.map_size(size)
            levels = encoder(torch.empty(2, 3, size, size, device="meta"))
            assert {key: tuple(level.shape) for key, level in levels.items()} == {
                key: (2, channels, side, side) for key, channels in encoder.channels.items()
            }
            assert list(levels) == ["layer2", "layer3", "layer4"]


@pytest.mark.parametrize("name", ["lite0", "resnet18", "resnet50", "resnet50-msra"])
@torch.inference_mode()
def test_dilation_gives_the_undilated_map_at_every_second_position(name: str) -> None:
    """Odd sides at every stage, so that strided and dense convolutions are centred on the same pixels."""
    coarse, dense = random_encoder(name, 32), random_encoder(name, 16)
    dense.load_state_dict(coarse.state_dict())
    images = torch.rand(1, 3, 97, 65, generator=torch.Generator().manual_seed(0))
    expected = coarse.levels(images)["layer4"]
    got = dense.levels(images)["layer4"][..., ::2, ::2]
    torch.testing.assert_close(got / expected.abs().max(), expected / expected.abs().max(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["tiny", "lite0", "resnet18"])
def test_every_used_weight_learns(name: str) -> None:
    encoder = build_encoder(name, pretrained=False).train()
    torch.stack([level.square().mean() for level in encoder(torch.rand(2, 3, 64, 64)).values()]).sum().backward()
    without = {key.split(".")[0] for key, weight in encoder.named_parameters() if weight.grad is None}
    assert without == ({"_conv_head", "_bn1", "_fc"} if name == "lite0" else set())  # the classifier of lite


def test_wrong_input_is_answered_with_the_expected_shape() -> None:
    with pytest.raises(GfssError, match=r"\(batch, 3, height, width\); got \(1, 1, 8, 8\)"):
        build_encoder("tiny")(torch.rand(1, 1, 8, 8))


def test_unknown_level_is_named() -> None:
    with pytest.raises(GfssError, match="did you mean 'layer4'"):
        select_levels({"layer3": torch.zeros(1), "layer4": torch.zeros(1)}, ["layer5"])
