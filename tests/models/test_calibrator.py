"""Calibrators against the paper's formulas, written with all channels projected and all branches upsampled."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from gfss.errors import GfssError
from gfss.models.calibrator import PRESETS, PRINTED, Calibrator, CalibratorOptions, cosine_basis
from gfss.models.maps import upsample
from gfss.models.pspnet import BINS, Features

SIZE = (7, 8)
DEFAULT = CalibratorOptions()


def make_features(size: tuple[int, int] = SIZE, dtype: torch.dtype = torch.float64) -> Features:
    """Post-ReLU features of two images: 5 and 6 channels in levels, 3 in each branch, 4 in the bottleneck."""
    generator = torch.Generator().manual_seed(0)

    def maps(channels: int, shape: tuple[int, int]) -> Tensor:
        return torch.randn(2, channels, *shape, generator=generator, dtype=torch.float64).relu().to(dtype)

    levels = {"layer3": maps(5, size), "layer4": maps(6, size)}
    return Features(levels, tuple(maps(3, (n, n)) for n in BINS), maps(4, size), maps(4, size))


def make_scores(
    base: int = 3, novel: int = 1, size: tuple[int, int] = SIZE, dtype: torch.dtype = torch.float64
) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(2, 1 + base + novel, *size, generator=generator, dtype=torch.float64)
    return torch.cat([logits[:, : 1 + base].softmax(dim=1), logits[:, 1 + base :].sigmoid()], dim=1).to(dtype)


def make_calibrator(options: CalibratorOptions, dtype: torch.dtype = torch.float64) -> Calibrator:
    """A calibrator whose weights are all random: zero layers would hide what comes before them."""
    options = replace(options, dimension=min(options.dimension, 12))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        calibrator = Calibrator(options, SIZE).to(dtype).eval()
    generator = torch.Generator().manual_seed(2)
    for weight in calibrator.parameters():
        noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        weight.data += (0.3 * noise).to(dtype)
    return calibrator


def attention_reference(calibrator: Calibrator, scores: Tensor, channels: Tensor) -> Tensor:
    """Equations 4 to 6 as printed: Q, K and V of every class and every channel; the offset (batch, classes, h, w).

    Args:
        channels: (batch, channels, h, w), branches upsampled.
    """
    module, options = calibrator.attention, calibrator.options
    assert module is not None
    tokens, channels = scores.flatten(2), channels.flatten(2)
    positions, d = tokens.shape[2], options.dimension
    if options.normalise:
        tokens, channels = centred(tokens), centred(channels)
    q, k, v = tokens @ module.query.T, channels @ module.key.T, channels @ module.value.T
    outputs: list[Tensor] = []
    for head in range(options.heads):
        columns = slice(head * d // options.heads, (head + 1) * d // options.heads)
        sigma = q[..., columns] @ k[..., columns].transpose(1, 2)
        if module.temperature is not None:
            sigma = sigma * module.temperature.exp()
        elif options.scaling == "inside":
            sigma = sigma / math.sqrt(d / options.heads)
        outputs.append(sigma.softmax(dim=2) @ v[..., columns])
    value = torch.cat(outputs, dim=2)
    if options.normalise:
        value = value * math.sqrt(positions)
    if options.scaling == "after":
        value = value / math.sqrt(d)
    return (value @ module.head.weight.T + module.head.bias).view_as(scores)


def centred(rows: Tensor) -> Tensor:
    """Mean zero and length one, but nearly constant rows are not blown up."""
    rows = rows - rows.mean(dim=2, keepdim=True)
    return rows / rows.norm(dim=2, keepdim=True).clamp_min(1e-3)


def plain_channels(features: Features, names: tuple[str, ...]) -> Tensor:
    """Maps by name with branches upsampled by torch."""
    maps: list[Tensor] = []
    for name in names:
        if name == "pooled":
            maps += [F.interpolate(b, features.size, mode="bilinear", align_corners=True) for b in features.pooled]
        else:
            maps.append(features.bottleneck if name == "bottleneck" else features.levels[name])
    return torch.cat(maps, dim=1)


VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "printed": {"scaling": "after", "normalise": False, "start": "random", "scale": None},
    "inside": {"normalise": False},
    "two heads": {"heads": 2},
    "two heads inside": {"heads": 2, "normalise": False},
    "three heads after": {"heads": 3, "normalise": False, "scaling": "after"},
    "all features": {"features": ("bottleneck", "layer3", "pooled", "layer4")},
}


def both_forms(name: str, dtype: torch.dtype) -> tuple[Calibrator, Tensor, Tensor]:
    """A calibrator, its output, and the output of the plain form."""
    options = replace(DEFAULT, **{"features": ("layer4", "pooled"), "exchange": False, **VARIANTS[name]})
    calibrator = make_calibrator(options, dtype)
    fused, features = make_scores(dtype=dtype), make_features(dtype=dtype)
    offset = attention_reference(calibrator, fused, plain_channels(features, options.features))
    expected = offset + (fused if calibrator.scale is None else calibrator.scale * fused)
    return calibrator, calibrator(fused, features, 1), expected


@pytest.mark.parametrize("name", VARIANTS)
def test_fast_form_equals_the_plain_form_forward_and_backward(name: str) -> None:
    calibrator, ours, expected = both_forms(name, torch.float64)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-10)
    weights = list(calibrator.parameters())
    gradients = torch.autograd.grad(ours.square().sum(), weights)
    references = torch.autograd.grad(expected.square().sum(), weights)
    for mine, other in zip(gradients, references, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", VARIANTS)
def test_fast_form_equals_the_plain_form_in_single_precision(name: str) -> None:
    calibrator, ours, expected = both_forms(name, torch.float32)
    # the branch of one bin is constant: once centred, only rounding is left of it, and that is scaled up in both forms
    tolerance = 1e-3 if calibrator.options.normalise else 1e-5
    torch.testing.assert_close(ours, expected, rtol=tolerance, atol=tolerance)


def test_printed_preset_is_the_formula_of_the_paper() -> None:
    calibrator, fused, features = make_calibrator(PRINTED), make_scores(), make_features()
    module = calibrator.attention
    assert module is not None
    assert PRINTED.features == ("layer4", "pooled")
    for image in range(2):
        y = fused[image].flatten(1)  # c x hw
        f = plain_channels(features, PRINTED.features)[image].flatten(1)  # m x hw
        sigma = (y @ module.query.T) @ (f @ module.key.T).T
        v = sigma.softmax(dim=1) / math.sqrt(calibrator.options.dimension) @ (f @ module.value.T)
        expected = y + module.head(v)
        torch.testing.assert_close(calibrator(fused, features, 1)[image].flatten(1), expected, rtol=0, atol=1e-10)


def test_self_attention_takes_the_scores_as_channels() -> None:
    calibrator, fused = make_calibrator(PRESETS["self-attention"]), make_scores()
    expected = fused + attention_reference(calibrator, fused, fused)
    torch.testing.assert_close(calibrator(fused, make_features(), 1), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("name", "residual"), [("linear", 1), ("linear-no-residual", 0)])
def test_linear_ablations_are_one_matrix_over_positions(name: str, residual: int) -> None:
    calibrator, fused = make_calibrator(PRESETS[name]), make_scores()
    assert calibrator.linear is not None
    ours = calibrator(fused, make_features(), 1)
    for image in range(2):
        for label in range(fused.shape[1]):
            row = fused[image, label].flatten()
            expected = residual * row + calibrator.linear.weight @ row + calibrator.linear.bias
            torch.testing.assert_close(ours[image, label].flatten(), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["default", "pixel"])
def test_exchange_is_added_to_scaled_scores(name: str) -> None:
    calibrator, fused, features = make_calibrator(PRESETS[name]), make_scores(novel=2), make_features()
    assert calibrator.exchange is not None
    evidence = None
    if name == "default":
        evidence = attention_reference(calibrator, fused, plain_channels(features, calibrator.options.features))
    assert calibrator.scale is not None
    expected = calibrator.scale * fused + calibrator.exchange(fused, evidence, 2)
    torch.testing.assert_close(calibrator(fused, features, 2), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "options",
    [DEFAULT, PRESETS["pixel"], replace(PRINTED, zero_head=True), replace(PRINTED, zero_head=True, scale=3.0)],
)
def test_an_untrained_calibrator_with_a_zero_head_gives_the_fused_scores(options: CalibratorOptions) -> None:
    fused, features = make_scores(dtype=torch.float32), make_features(dtype=torch.float32)
    ours = Calibrator(replace(options, dimension=12), SIZE)(fused, features, 1)
    assert torch.equal(ours, fused if options.scale is None else options.scale * fused)
    assert torch.equal(ours.argmax(dim=1), fused.argmax(dim=1))


@settings(max_examples=10, deadline=None)
@given(st.sampled_from(sorted(PRESETS)), st.permutations(range(1, 5)))
def test_permuting_base_classes_permutes_the_output(name: str, base: list[int]) -> None:
    calibrator, fused, features = make_calibrator(PRESETS[name]), make_scores(base=4), make_features()
    order = [0, *base, 5]
    expected = calibrator(fused, features, 1)[:, order]
    torch.testing.assert_close(calibrator(fused[:, order], features, 1), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", PRESETS)
def test_the_number_of_classes_is_free(name: str) -> None:
    calibrator, features = make_calibrator(PRESETS[name]), make_features()
    for base, novel in ((1, 1), (3, 2), (9, 4)):
        fused = make_scores(base, novel)
        result = calibrator(fused, features, novel)
        assert result.shape == fused.shape
        assert result.isfinite().all()


def test_without_exchange_a_class_does_not_depend_on_the_others() -> None:
    calibrator, fused, features = make_calibrator(PRINTED), make_scores(base=5), make_features()
    few = calibrator(fused[:, :3], features, 1)
    torch.testing.assert_close(calibrator(fused, features, 1)[:, :3], few, rtol=0, atol=1e-10)


def test_images_of_a_batch_do_not_touch_each_other() -> None:
    calibrator, fused, features = make_calibrator(DEFAULT), make_scores(), make_features()
    alone = calibrator(fused[1:], features[1:], 1)
    torch.testing.assert_close(calibrator(fused, features, 1)[1:], alone, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["default", "printed", "self-attention", "pixel"])
@pytest.mark.parametrize("size", [(9, 11), (6, 6), (14, 5)])
def test_maps_of_another_size_are_taken(name: str, size: tuple[int, int]) -> None:
    calibrator = make_calibrator(PRESETS[name])
    fused = make_scores(size=size)
    result = calibrator(fused, make_features(size), 1)
    assert result.shape == fused.shape
    assert result.isfinite().all()


@pytest.mark.parametrize("normalise", [False, True])
def test_larger_maps_of_the_same_image_are_calibrated_alike(normalise: bool) -> None:
    trained, larger = (12, 12), (24, 24)
    options = replace(DEFAULT, normalise=normalise, dimension=6, exchange=False, scale=None, features=("layer4",))
    calibrator = Calibrator(options, trained).double()
    assert calibrator.attention is not None
    calibrator.attention.head.weight.data = calibrator.attention.query.data.T.clone()
    scores, features = make_scores(size=(3, 3)), make_features((3, 3))

    def offset(size: tuple[int, int]) -> Tensor:
        fused = upsample(scores, size)
        level = upsample(features.levels["layer4"], size)
        return calibrator(fused, Features({"layer4": level}, (), level, level), 1) - fused

    expected = upsample(offset(trained), larger)
    error = (offset(larger) - expected).norm() / expected.norm()
    assert error < 0.15


def test_attention_dropout_acts_in_training_alone() -> None:
    options = replace(DEFAULT, dropout=0.5)
    calibrator, fused, features = make_calibrator(options), make_scores(), make_features()
    certain = calibrator(fused, features, 1)
    torch.testing.assert_close(certain, make_calibrator(DEFAULT)(fused, features, 1), rtol=0, atol=1e-12)
    assert not torch.allclose(calibrator.train()(fused, features, 1), certain)


def test_weight_names_that_checkpoints_hold() -> None:
    attention = {f"attention.{name}" for name in ("query", "key", "value", "head.weight", "head.bias")}
    exchange = {f"exchange.{layer}.{part}" for layer in ("first", "second") for part in ("weight", "bias")}
    assert Calibrator(DEFAULT, SIZE).state_dict().keys() == attention | exchange | {"scale", "attention.temperature"}
    assert Calibrator(PRINTED, SIZE).state_dict().keys() == attention


def test_cosine_patterns_are_orthonormal_and_smooth_first() -> None:
    basis = cosine_basis(SIZE, 20).double()
    torch.testing.assert_close(basis @ basis.T, torch.eye(20, dtype=torch.float64), rtol=0, atol=1e-6)
    maps = basis.view(20, *SIZE)
    roughness = maps.diff(dim=1).square().sum(dim=(1, 2)) + maps.diff(dim=2).square().sum(dim=(1, 2))
    assert roughness[0] < 1e-12  # the first pattern is constant
    assert roughness[:5].max() < roughness[-5:].min()


def test_more_patterns_than_positions_are_zero() -> None:
    basis = cosine_basis((2, 3), 8)
    assert basis.shape == (8, 6)
    assert (basis[6:] == 0).all()
    assert (basis[:6].norm(dim=1) - 1).abs().max() < 1e-6


def test_wrong_options_and_sizes_are_refused() -> None:
    with pytest.raises(GfssError, match=r"^d = 12 cannot be split into 5 heads$"):
        Calibrator(replace(DEFAULT, dimension=12, heads=5), SIZE)
    with pytest.raises(GfssError, match=r"unknown calibrator 'pixels'; did you mean 'pixel'\?.*cross-covariance"):
        Calibrator(replace(DEFAULT, kind="pixels"), SIZE)  # type: ignore[arg-type]
    with pytest.raises(GfssError, match=r"^a linear calibrator works on 7 x 8 maps only, these are 9 x 9"):
        make_calibrator(PRESETS["linear"])(make_scores(size=(9, 9)), make_features((9, 9)), 1)
    with pytest.raises(GfssError, match="unknown feature 'layer5'"):
        make_calibrator(replace(DEFAULT, features=("layer5",)))(make_scores(), make_features(), 1)
