"""A very small data set and model for the tests of training: noisy squares on grey, one colour per class.

Fold 0 of eight classes: novel 1 and 2, base 3 to 8. Images of 32 px, input of 33 px, feature maps of 9 x 9.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from gfss.data.catalog import VOID
from gfss.data.datasets.base import Dataset
from gfss.data.episodes import Fold, make_fold
from gfss.features.bank import Bank, build_bank
from gfss.features.episodes import EpisodeSampler, FeatureStore
from gfss.methods import Context, build_method
from gfss.methods.pcn import Calibrated, NovelFitter
from gfss.models.base_model import BaseCard, BaseModel, PyramidHead
from gfss.models.encoders import build_encoder
from gfss.models.novel.classifier import NovelOptions

CLASSES = ("red", "green", "blue", "yellow", "pink", "cyan", "white", "black")
COLOURS = ((230, 30, 30), (30, 200, 30), (40, 40, 230), (230, 220, 30), (240, 110, 190), (40, 220, 220),
           (250, 250, 250), (5, 5, 5))  # fmt: skip
SIDE, SIZE = 32, 33
FOLD: Fold = make_fold(len(CLASSES), 0)
LEVELS = ("layer3", "layer4")


def write_data(folder: Path) -> Path:
    """Forty images of each split."""
    for seed, split in enumerate(("train", "val")):
        write_images(folder, split, 40, seed)
    return folder


def write_images(folder: Path, split: str, count: int, seed: int = 0) -> list[str]:
    """Images and masks of a split in the plain folder form, unless they are there; returns their names.

    Image i shows class i mod 8 and often another.
    """
    names = [f"{split}_{i:03d}" for i in range(count)]
    if (folder / f"{split}.txt").exists():
        return names
    for part in ("images", "masks"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / "classes.txt").write_text("\n".join(CLASSES) + "\n")
    rng = np.random.default_rng(seed)
    for i, name in enumerate(names):
        image = np.full((SIDE, SIDE, 3), rng.integers(60, 180))  # images differ as a whole too
        mask = np.zeros((SIDE, SIDE), dtype=np.uint8)
        for place, class_id in enumerate((i % 8 + 1, (3 * i + i // 8) % 8 + 1)):
            top, left = rng.integers(0, 20), 16 * place + rng.integers(0, 5)
            image[top : top + 12, left : left + 11] = COLOURS[class_id - 1]
            mask[top : top + 12, left : left + 11] = class_id
        mask[-1] = VOID
        image = np.clip(image + rng.normal(0, 20, image.shape), 0, 255).astype(np.uint8)
        Image.fromarray(image).save(folder / "images" / f"{name}.png")
        Image.fromarray(mask).save(folder / "masks" / f"{name}.png")
    (folder / f"{split}.txt").write_text("\n".join(names) + "\n")
    return names


def make_dataset(folder: Path, count: int = 40, seed: int = 0, split: str = "train") -> Dataset:
    """A split of the small data set."""
    names = write_images(folder, split, count, seed)
    images = tuple(folder / "images" / f"{name}.png" for name in names)
    masks = tuple(folder / "masks" / f"{name}.png" for name in names)
    return Dataset(f"tiny {split}", CLASSES, tuple(names), images, masks)


def make_model(dataset: Dataset, bank: Bank | None = None, seed: int = 0) -> BaseModel:
    """A base model of fold 0 with random weights, its features standardised if a bank is given."""
    encoder = build_encoder("tiny", seed=seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = PyramidHead({name: encoder.channels[name] for name in LEVELS}, len(FOLD.base) + 1, 4, 8)
    if bank is not None:
        head.standardise(bank.features(range(bank.count)))
    names = [tuple(CLASSES[c - 1] for c in ids) for ids in (FOLD.base, FOLD.novel)]
    card = BaseCard("tiny", 4, encoder.weights_hash(), False, SIZE, *names, "tiny", 0)
    model = BaseModel(encoder, head, card).eval()
    model.freeze()
    return model


def make_source(folder: Path, count: int = 40, seed: int = 0, keep: bool = False) -> EpisodeSampler:
    """Episodes and tasks of the small data set under a model with random weights."""
    dataset = make_dataset(folder / "data", count, seed)
    bank = build_bank(build_encoder("tiny"), dataset, SIZE, LEVELS, root=folder / "banks")
    return EpisodeSampler(FeatureStore(make_model(dataset, bank), bank, keep), dataset, FOLD)


def make_context(source: EpisodeSampler) -> Context:
    """What methods are built from; novel classifiers are fitted in a few steps."""
    fitter = NovelFitter(NovelOptions(hidden=8, steps=10))
    side = source.store.bank.map_size
    return Context(source.store.model, (side, side), fitter)


def make_calibrated(source: EpisodeSampler, name: str = "pcn-support") -> Calibrated:
    """A method with a fresh calibrator, always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        built = build_method(name, make_context(source))
    assert isinstance(built, Calibrated)
    return built
