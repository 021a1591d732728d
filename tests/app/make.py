"""A small model with random weights, and pictures to teach it from."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image

from gfss.app.network import DESCRIPTORS, Network
from gfss.app.segmenter import Segmenter
from gfss.models.base_model import BaseCard, BaseModel, PyramidHead
from gfss.models.calibrators.mask_refiner import MaskRefiner
from gfss.models.encoders import build_encoder
from gfss.models.novel.descriptors import DenseDescriptors

SIZE = 65  # side of the model's square input: maps of 17 x 17
BASE = ("cat", "dog", "tree")


def network(
    size: int = SIZE,
    classes: tuple[str, ...] = BASE,
    spread: float = 0.3,
    encoder: str = "tiny",
    refined: bool = False,
) -> Network:
    """A network with random weights (lite0 has its own); a larger spread makes base classes surer.

    Args:
        refined: with mask refiner and descriptors.
    """
    trunk = build_encoder(encoder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        channels = {name: trunk.channels[name] for name in ("layer3", "layer4")}
        head = PyramidHead(channels, len(classes) + 1, pyramid=8, width=24)
        torch.nn.init.normal_(head.classifier.weight, std=spread)
        descriptors = DenseDescriptors(trunk.fine_channels, width=6, mid=8, context=4)
        described = {**trunk.fine_channels, DESCRIPTORS: descriptors.width}
        refiner = MaskRefiner(described, list(described)[:1:-1], width=8, fine_width=4)
        refiner.spread.fill_(0.1)  # about as wide as unit vectors of many channels
        torch.nn.init.normal_(refiner.out.weight, std=0.3)
    card = BaseCard(
        encoder=encoder,
        output_stride=trunk.stride,
        encoder_hash=trunk.weights_hash(),
        trained_encoder=encoder == "tiny",
        size=size,
        classes=classes,
        novel=(),
        data="noise",
        fold=None,
    )
    base = BaseModel(trunk, head, card)
    return Network(base, refiner, descriptors.eval()) if refined else Network(base)


def model(refined: bool = False) -> Segmenter:
    """A model that was not taught anything yet."""
    return Segmenter(network(refined=refined))


def picture(seed: int = 0, height: int = 48, width: int = 64) -> np.ndarray:
    """Coloured patches with some noise, (height, width, 3) uint8."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (4, 5, 3), dtype=np.uint8))
    large = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC)).astype(np.int64)
    return np.clip(large + rng.integers(-12, 13, large.shape), 0, 255).astype(np.uint8)


def labelled(seed: int = 0, height: int = 48, width: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """A picture with a bright striped square in it, and the square's mask (1 inside)."""
    image = picture(seed, height, width)
    mask = np.zeros((height, width), dtype=np.uint8)
    rng = np.random.default_rng((seed, 1))
    side = min(height, width) // 2
    top, left = int(rng.integers(0, height - side)), int(rng.integers(0, width - side))
    mask[top : top + side, left : left + side] = 1
    image[mask == 1] = np.array([250, 40, 230], dtype=np.uint8)
    image[(mask == 1) & (np.arange(height)[:, None] % 6 < 2)] = 255
    return image, mask
