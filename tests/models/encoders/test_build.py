"""build_encoder: names, options, seeds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from gfss.common.errors import GfssError
from gfss.models.encoders import build_encoder
from gfss.models.encoders.resnet import ResNet

SHARED = Path(__file__).parents[4] / "shared"
MSRA = Path(os.environ.get("GFSS_RESNET50_MSRA") or SHARED / "weights" / "resnet50_msra.safetensors")


def test_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(GfssError, match="did you mean 'resnet50'"):
        build_encoder("resnet5")


@pytest.mark.parametrize(("name", "stride"), [("tiny", 8), ("lite0", 4), ("resnet50", 12)])
def test_impossible_output_stride_is_refused(name: str, stride: int) -> None:
    with pytest.raises(GfssError, match=f"output stride {stride} is not possible"):
        build_encoder(name, output_stride=stride, pretrained=False)


def test_random_weights_follow_the_seed_and_leave_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    hashes = [build_encoder("tiny", seed=seed).weights_hash() for seed in (0, 0, 1)]
    assert hashes[0] == hashes[1] != hashes[2]
    assert torch.equal(torch.get_rng_state(), before)


def test_file_that_says_stride_on_conv1_is_believed(tmp_path: Path) -> None:
    state = build_encoder("resnet50").state_dict()
    save_file(state, tmp_path / "original.safetensors", {"stride": "on conv1 of the first block"})
    save_file(state, tmp_path / "usual.safetensors")
    original = build_encoder("resnet50", tmp_path / "original.safetensors")
    usual = build_encoder("resnet50", tmp_path / "usual.safetensors")
    assert isinstance(original, ResNet)
    assert isinstance(usual, ResNet)
    assert (original.name, original.stride_on) == ("resnet50-msra", "conv1")
    assert (usual.name, usual.stride_on) == ("resnet50", "conv2")
    assert original.weights_hash() != usual.weights_hash(), "other features must mean another feature bank"


@pytest.mark.skipif(not MSRA.exists(), reason="resnet50_msra.safetensors is not at hand (set GFSS_RESNET50_MSRA)")
def test_shared_resnet50_loads_strictly() -> None:
    encoder = build_encoder("resnet50", MSRA, output_stride=16)
    assert encoder.name == "resnet50-msra"
    with torch.inference_mode():
        levels = encoder(torch.rand(1, 3, 65, 65, generator=torch.Generator().manual_seed(0)))
    assert all(level.isfinite().all() and 0.01 < level.mean() < 10 for level in levels.values())
