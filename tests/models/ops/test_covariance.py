"""The fast order of the cross-covariance's products against the plain one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.models.calibrators.cases import ATTENTION, SIZE, make_features, make_scores, make_similarity

from gfss.models.calibrators.calibrator import PRESETS, Calibrator, CalibratorOptions

OPTIONS = {
    "pcn": PRESETS["pcn"],
    "as printed": PRESETS["pcn-as-printed"],
    "two heads": replace(PRESETS["pcn-as-printed"], heads=2, scaling="inside"),
    "normalised": replace(ATTENTION, features=("layer4", "pooled"), dimension=8),
    "self-attention": PRESETS["self-attention"],
}


@pytest.mark.parametrize("size", [SIZE, (9, 11)])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_both_orders_give_the_same(options: CalibratorOptions, size: tuple[int, int]) -> None:
    plain, fast = Calibrator(options, SIZE).double(), Calibrator(options, SIZE, fast=True).double()
    generator = torch.Generator().manual_seed(0)
    for weight in plain.parameters():  # zero layers would hide what comes before them
        weight.data += 0.1 * torch.randn(weight.shape, generator=generator, dtype=torch.float64)
    fast.load_state_dict(plain.state_dict())
    given = make_scores(size=size), make_features(size), 1, make_similarity(size=size)
    torch.testing.assert_close(fast(*given), plain(*given), rtol=0, atol=1e-9)
