"""Train the mask refiner that models with EfficientNet-Lite0 carry.

    python tools/train_refiner.py MODEL OUT FOLDER[:EPISODES] [FOLDER[:EPISODES] ...] --steps 1500

Every FOLDER is a data set (``images/``, ``masks/``, ``classes.txt``); the first two show ordinary scenes. An episode is
a class of one of them with 1 to 10 support images, taught as ``gfss teach`` does it, and some queries with and without
the class, others from other data sets. Episodes are kept in ``OUT/episodes``, so that an interrupted run goes on;
``OUT/model`` is the model with the new refiner.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

import gfss
from gfss.app.inputs import Labelled
from gfss.app.network import COLOURS, Network, encoder_maps
from gfss.app.segmenter import Segmenter
from gfss.app.support import Example, grid_labels, make_example
from gfss.app.teaching import STRENGTHS, fit_row, memory_of
from gfss.common.errors import GfssError
from gfss.data.catalog import VOID
from gfss.data.datasets.base import read_class_names
from gfss.data.images import mirrored_image, square_label
from gfss.models.calibrators.mask_refiner import MaskRefiner
from gfss.models.novel.logistic import LogisticHead, LogisticOptions, features_at, finest_grid

SHOTS, SHOT_WEIGHTS = (1, 2, 3, 5, 10), (4, 1, 2, 2, 1)
EPISODES = 40  # of a folder
SHOWN, FREE, FOREIGN = 3, 2, 2  # queries of an episode with and without the class, and from other data sets
ORDINARY_FOLDERS = 2  # the first folders show ordinary scenes
ORDINARY = (400, 2)  # images, and positions of each, that rows take for what is not a class
LEAST_SHARE = 0.005  # of an image that a class must cover to count as shown
STATISTICS = (200, 50)  # images, and positions of each, that the usual mean and spread of features are taken from
RATE, WARMUP, WEIGHT_DECAY = 2e-3, 30, 1e-3
EPISODES_PER_STEP = 3
COMPARED = 4  # levels, from the last, that positions are compared on
KEYS = ("coarse", "fine", "truth")  # of an episode


class Folder:
    """A data set on disk."""

    def __init__(self, given: str) -> None:
        name, _, episodes = given.partition(":")
        self.path = path = Path(name)
        self.episodes = int(episodes or EPISODES)
        self.files = {file.stem: file for file in sorted((path / "images").iterdir())}
        self.shares: dict[str, np.ndarray] = {}
        for name in self.files:
            counts = np.bincount(self._values(name).ravel(), minlength=256)[:VOID]
            self.shares[name] = counts / max(1, counts.sum())
        names = read_class_names(path)
        self.classes = [c for c in range(1, len(names) + 1) if len(self.showing(c)) >= SHOWN + 1]

    def showing(self, label: int) -> list[str]:
        return [name for name, shares in self.shares.items() if shares[label] >= LEAST_SHARE]

    def without(self, label: int) -> list[str]:
        return [name for name, shares in self.shares.items() if shares[label] == 0]

    def labelled(self, name: str, label: int) -> Labelled:
        values = self._values(name)
        mask = np.where(values == VOID, VOID, values == label).astype(np.uint8)
        return Labelled(name, np.asarray(Image.open(self.files[name]).convert("RGB")), mask)

    def _values(self, name: str) -> np.ndarray:
        return np.asarray(Image.open(self.path / "masks" / f"{name}.png"))


def positions(network: Network, folders: Sequence[Folder], images: int, each: int, rng: random.Random) -> Tensor:
    """Features of random positions of random images, (positions, channels)."""
    rows: list[Tensor] = []
    for _ in range(images):
        folder = rng.choice(folders)
        image = np.asarray(Image.open(folder.files[rng.choice(list(folder.files))]).convert("RGB"))
        maps = encoder_maps(network.levels(mirrored_image(image, network.size)))
        height, width = finest_grid(maps)
        places = torch.tensor([[rng.randrange(height), rng.randrange(width)] for _ in range(each)])
        rows.append(features_at(maps, places[:, 0], places[:, 1]))
    return torch.cat(rows)


def describe_usual(network: Network, refiner: MaskRefiner, folders: Sequence[Folder], rng: random.Random) -> None:
    """Set what a refiner knows of usual features: mean and spread over all folders, positions of ordinary images."""
    features = positions(network, folders, *STATISTICS, rng)
    refiner.mean.copy_(features.mean(dim=0))
    refiner.spread.copy_(features.std(dim=0))
    refiner.ordinary.copy_(positions(network, folders[:ORDINARY_FOLDERS], *ORDINARY, rng))


@torch.inference_mode()
def make_episode(
    network: Network, folder: Folder, others: Sequence[Folder], rng: random.Random
) -> dict[str, Tensor] | None:
    """Inputs of the refiner and the truth for the queries of one episode; None if its class cannot be learned.

    Args:
        others: data sets that do not have the class; some of the queries come from these.
    """
    label = rng.choice(folder.classes)
    shown = folder.showing(label)
    rng.shuffle(shown)
    shots = min(rng.choices(SHOTS, SHOT_WEIGHTS)[0], len(shown) - SHOWN)
    free = folder.without(label)
    try:
        examples = [make_example(network, folder.labelled(name, label), 1) for name in shown[:shots]]
    except GfssError:
        return None
    queries = shown[shots : shots + SHOWN] + rng.sample(free, min(FREE, len(free)))
    options = LogisticOptions(l2=rng.choice(STRENGTHS) if shots > 1 else LogisticOptions.l2)
    labelled = [folder.labelled(name, label) for name in queries]
    for other in rng.sample(list(others), min(FOREIGN, len(others))):
        name = rng.choice(list(other.files))
        image = np.asarray(Image.open(other.files[name]).convert("RGB"))
        labelled.append(Labelled(name, image, np.zeros(image.shape[:2], dtype=np.uint8)))
    return _inputs(network, examples, options, labelled)


def _inputs(
    network: Network, examples: Sequence[Example], options: LogisticOptions, queries: Sequence[Labelled]
) -> dict[str, Tensor]:
    refiner = network.refiner
    assert refiner is not None
    weight, bias, fitted_iou = fit_row(examples, refiner, options=options)
    memory, row = memory_of(examples, refiner, fitted_iou), LogisticHead(weight[None], bias[None])
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for query in queries:
        levels = network.levels(mirrored_image(query.image, network.size))
        coarse, fine = refiner.inputs(row, memory, encoder_maps(levels), levels[COLOURS].float())
        truth = torch.from_numpy(grid_labels(levels, square_label(query.mask, network.size)))
        parts.append((coarse[0].half(), fine[0].half(), truth))
    return {key: torch.stack([part[i] for part in parts]) for i, key in enumerate(KEYS)}


def episodes(network: Network, folders: Sequence[Folder], out: Path) -> Iterator[dict[str, Tensor]]:
    """The episodes of every folder, made where they are not there yet."""
    for folder in folders:
        for number in range(folder.episodes):
            path = out / f"{folder.path.name}-{number}.safetensors"
            if not path.exists():
                seeded = random.Random(f"{folder.path.name} {number}")
                episode = make_episode(network, folder, foreign_to(folder, folders), seeded)
                if episode is None:
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                save_file({key: value.contiguous() for key, value in episode.items()}, path)
            yield load_file(path)


def foreign_to(folder: Folder, folders: Sequence[Folder]) -> list[Folder]:
    """Data sets whose images show none of a folder's classes: scenes for special sets, special sets for scenes."""
    scenes = folders[:ORDINARY_FOLDERS]
    return list(folders[ORDINARY_FOLDERS:]) if folder in scenes else list(scenes)


def loss_of(odds: Tensor, truth: Tensor) -> Tensor:
    """Cross entropy plus one minus the soft IoU over the queries of an episode."""
    valid = (truth != VOID)[:, None].float()
    target = (truth == 1)[:, None].float()
    entropy = (F.binary_cross_entropy_with_logits(odds, target, reduction="none") * valid).sum() / valid.sum()
    found = odds.sigmoid() * valid
    both = (found * target).sum()
    return entropy + 1 - (both + 1) / (found.sum() + (target * valid).sum() - both + 1)


def train(refiner: MaskRefiner, made: Sequence[dict[str, Tensor]], steps: int, seed: int = 0) -> list[float]:
    """Optimise the refiner on episodes, mirrored at random; returns the loss of every step."""
    rng = random.Random(seed)
    refiner.requires_grad_(True).train()
    optimiser = torch.optim.AdamW(refiner.parameters(), RATE, weight_decay=WEIGHT_DECAY)
    losses: list[float] = []
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = RATE * min(1, (step + 1) / WARMUP) * 0.5 * (1 + np.cos(np.pi * step / steps))
        total = torch.zeros(())
        for episode in rng.sample(list(made), min(EPISODES_PER_STEP, len(made))):
            flips = [axis for axis, chance in ((-1, 0.5), (-2, 0.3)) if rng.random() < chance]
            coarse, fine, truth = (episode[key].flip(flips) if flips else episode[key] for key in KEYS)
            total = total + loss_of(refiner(coarse.float(), fine.float()), truth) / EPISODES_PER_STEP
        optimiser.zero_grad()
        total.backward()
        optimiser.step()
        losses.append(float(total.detach()))
        if (step + 1) % 100 == 0:
            print(f"step {step + 1} of {steps}: loss {np.mean(losses[-100:]):.3f}", flush=True)
    refiner.requires_grad_(False).eval()
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="model with EfficientNet-Lite0")
    parser.add_argument("out", type=Path)
    parser.add_argument("folders", nargs="+", help=f"data sets, each with its number of episodes (default: {EPISODES})")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    network = gfss.load(options.model).network
    channels = network.channels
    refiner = network.refiner = MaskRefiner(
        channels, list(reversed(channels))[:COMPARED], ordinary=ORDINARY[0] * ORDINARY[1]
    ).eval()
    folders = [Folder(given) for given in options.folders]
    describe_usual(network, refiner, folders, random.Random(options.seed))
    made = list(episodes(network, folders, options.out / "episodes"))
    train(refiner, made, options.steps, options.seed)
    Segmenter(network, half=True).save(options.out / "model")


if __name__ == "__main__":
    main()
