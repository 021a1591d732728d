"""Calibrators against the paper's formulas, written with all channels projected and all branches upsampled."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.models.calibrators.cases import (
    ATTENTION,
    DEFAULT,
    make_calibrator,
    make_features,
    make_scores,
    make_similarity,
)
from torch import Tensor
from torch.nn import functional as F

from gfss.models.base_model import Features
from gfss.models.calibrators.calibrator import AS_PRINTED, PRESETS, Calibrator


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
    options = replace(ATTENTION, **{"features": ("layer4", "pooled"), "class_interaction": False, **VARIANTS[name]})
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
    calibrator, fused, features = make_calibrator(AS_PRINTED), make_scores(), make_features()
    module = calibrator.attention
    assert module is not None
    assert AS_PRINTED.features == ("layer4", "pooled")
    for image in range(2):
        y = fused[image].flatten(1)  # c x hw
        f = plain_channels(features, AS_PRINTED.features)[image].flatten(1)  # m x hw
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


def test_the_exchange_hears_the_attention_and_both_are_added_to_scaled_scores() -> None:
    calibrator, fused, features = make_calibrator(ATTENTION), make_scores(novel=2), make_features()
    assert calibrator.class_interaction is not None
    assert calibrator.scale is not None
    similarity = make_similarity(novel=2)
    offsets = attention_reference(calibrator, fused, plain_channels(features, calibrator.options.features))
    expected = calibrator.scale * fused + offsets + calibrator.class_interaction(fused, 2, similarity, offsets)
    torch.testing.assert_close(calibrator(fused, features, 2, similarity), expected, rtol=0, atol=1e-9)


def test_without_attention_the_exchange_is_added_to_scaled_scores() -> None:
    calibrator, fused, similarity = make_calibrator(DEFAULT), make_scores(novel=2), make_similarity(novel=2)
    assert calibrator.class_interaction is not None
    assert calibrator.attention is None
    assert calibrator.scale is not None
    expected = calibrator.scale * fused + calibrator.class_interaction(fused, 2, similarity)
    torch.testing.assert_close(calibrator(fused, None, 2, similarity), expected, rtol=0, atol=1e-9)


def test_the_pixel_network_is_added_to_scaled_scores() -> None:
    calibrator, fused = make_calibrator(PRESETS["pixel"]), make_scores(novel=2)
    assert calibrator.pixel is not None
    assert calibrator.scale is not None
    expected = calibrator.scale * fused + calibrator.pixel(fused, 2)
    torch.testing.assert_close(calibrator(fused, None, 2), expected, rtol=0, atol=1e-9)
