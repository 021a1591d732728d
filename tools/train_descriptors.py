"""Train the dense descriptors that models with EfficientNet-Lite0 carry.

    python tools/train_descriptors.py MODEL OUT FOLDER --epochs 4

FOLDER is a data set (``images/``, ``masks/``, ``classes.txt``) with many classes of things and stuff. The features of
its images are kept in ``OUT/bank``, so that a second run starts at once; ``OUT/model`` is MODEL with the descriptors.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

import gfss
from gfss.app.network import Network
from gfss.app.segmenter import Segmenter
from gfss.data.catalog import VOID
from gfss.data.datasets.base import read_class_names
from gfss.data.images import mirrored_image, square_label
from gfss.models.novel.descriptors import DenseDescriptors

LEVELS = ("layer2", "stage4", "layer3", "layer4")
SAMPLE = 200  # images that mean and spread are taken from
BATCH, BLOCK = 16, 4  # images of a step; images that are read together
RATE, WARMUP, WEIGHT_DECAY, DROPOUT = 3e-3, 100, 1e-2, 0.1


class Bank:
    """Encoder levels and labels (on the finest level's grid) of the images of a folder, on disk."""

    def __init__(self, network: Network, folder: Path, out: Path) -> None:
        files = sorted((folder / "images").iterdir())
        out.mkdir(parents=True, exist_ok=True)
        done = out / "done"
        probe = self._read(network, folder, files[0])
        mode = "r" if done.exists() else "w+"
        self.arrays = {
            name: np.memmap(out / name, value.dtype, mode, shape=(len(files), *value.shape))
            for name, value in probe.items()
        }
        if not done.exists():
            for i, file in enumerate(files):
                for name, value in self._read(network, folder, file).items():
                    self.arrays[name][i] = value
                if (i + 1) % 500 == 0:
                    print(f"features of {i + 1} of {len(files)} images", flush=True)
            done.touch()

    @staticmethod
    def _read(network: Network, folder: Path, file: Path) -> dict[str, np.ndarray]:
        levels = network.levels(mirrored_image(np.asarray(Image.open(file).convert("RGB")), network.size))
        labels = square_label(np.asarray(Image.open(folder / "masks" / f"{file.stem}.png")), network.size)
        step = (network.size - 1) // (levels[LEVELS[0]].shape[-1] - 1)
        return {**{name: levels[name][0].numpy() for name in LEVELS}, "labels": labels[::step, ::step]}

    def __len__(self) -> int:
        return len(self.arrays["labels"])

    def batch(self, images: np.ndarray) -> tuple[dict[str, Tensor], Tensor]:
        """Levels and labels of some images."""
        levels = {name: torch.from_numpy(self.arrays[name][images]).float() for name in LEVELS}
        return levels, torch.from_numpy(self.arrays["labels"][images]).long()

    def batches(self, epoch: int) -> Iterator[np.ndarray]:
        """Images of every step of an epoch, in blocks that lie together on disk."""
        order = np.random.default_rng(epoch).permutation(len(self) // BLOCK)
        several = BATCH // BLOCK
        for start in range(0, len(order) - several + 1, several):
            yield np.concatenate(
                [np.arange(b * BLOCK, (b + 1) * BLOCK) for b in sorted(order[start : start + several])]
            )


def train(descriptors: DenseDescriptors, classes: int, bank: Bank, epochs: int) -> list[float]:
    """Optimise the descriptors and a linear classifier over them, mirrored at random; the loss of every step.

    Labels are 1..classes; 0 and 255 are left out of the loss.
    """
    classifier = nn.Conv2d(descriptors.width, classes + 1, 1)
    parameters = [*descriptors.parameters(), *classifier.parameters()]
    optimiser = torch.optim.AdamW(parameters, RATE, weight_decay=WEIGHT_DECAY)
    steps = epochs * (len(bank) // BLOCK // (BATCH // BLOCK))
    losses: list[float] = []
    descriptors.requires_grad_(True).train()
    for images in (images for epoch in range(epochs) for images in bank.batches(epoch)):
        step = len(losses)
        for group in optimiser.param_groups:
            group["lr"] = RATE * min(1, (step + 1) / WARMUP) * 0.5 * (1 + math.cos(math.pi * step / steps))
        levels, labels = bank.batch(images)
        labels[labels == 0] = VOID
        mirrored = torch.rand(len(images)) < 0.5
        for maps in (*levels.values(), labels):
            maps[mirrored] = maps[mirrored].flip(-1)
        logits = classifier(F.dropout2d(descriptors(levels), DROPOUT))
        loss = F.cross_entropy(logits, labels, ignore_index=VOID)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
        if (step + 1) % 100 == 0:
            print(f"step {step + 1} of {steps}: loss {np.mean(losses[-100:]):.3f}", flush=True)
    descriptors.requires_grad_(False).eval()
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="model with EfficientNet-Lite0")
    parser.add_argument("out", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    network = gfss.load(options.model).network
    bank = Bank(network, options.folder, options.out / "bank")
    channels = network.base.encoder.fine_channels
    descriptors = DenseDescriptors({name: channels[name] for name in LEVELS})
    sample = np.sort(np.random.default_rng(options.seed).choice(len(bank), min(SAMPLE, len(bank)), replace=False))
    descriptors.standardise(bank.batch(sample)[0])
    train(descriptors, len(read_class_names(options.folder)), bank, options.epochs)
    Segmenter(Network(network.base, descriptors=descriptors), half=True).save(options.out / "model")


if __name__ == "__main__":
    main()
