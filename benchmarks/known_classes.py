"""What teaching foreign classes one after another costs the known ones.

    python benchmarks/known_classes.py ROOT --pascal PASCAL --sets SET,SET,SET,SET,SET

Classes of data sets under ROOT (as of ``own_data.py``), five images each, are taught to the embedded model; its mIoU
on PASCAL val images is measured before and after each.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from benchmarks.own_data import Images, tasks

import gfss
from gfss.app.network import Network, Taught
from gfss.data.catalog import VOID
from gfss.data.datasets.base import read_class_names
from gfss.data.datasets.pascal import read_pascal
from gfss.data.images import mirrored_image, square_label
from gfss.models.ops.upsample import class_map

SHOTS = 5


Labelled = tuple[dict[str, torch.Tensor], np.ndarray]  # maps of an image and its labels


def known_miou(network: Network, taught: Taught | None, maps: list[Labelled]) -> float:
    """mIoU in percent of the known classes, background left out, accumulated over images."""
    classes = len(network.card.classes)
    both, either = np.zeros(classes + 1), np.zeros(classes + 1)
    for levels, truth in maps:
        found = class_map(network.scores(levels, taught), (network.size, network.size))[0].numpy()
        valid = truth != VOID
        for label in np.unique(truth[valid]):
            both[label] += ((found == label) & (truth == label) & valid).sum()
        for label in range(classes + 1):
            either[label] += (((found == label) | (truth == label)) & valid).sum()
    return float(100 * np.mean(both[1:] / np.maximum(1, either[1:])))


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, help="folder of data sets")
    parser.add_argument("--pascal", type=Path, required=True)
    parser.add_argument("--sets", required=True, help="names of data sets, separated by commas")
    parser.add_argument("--model", default="voc20-lite0")
    parser.add_argument("--every", type=int, default=8, help="one image of so many of the val list is taken")
    options = parser.parse_args()
    model = gfss.load(options.model)
    network = model.network
    pascal = read_pascal(options.pascal, "val")
    maps: list[Labelled] = []
    for number in range(0, len(pascal), options.every):
        square = mirrored_image(pascal.image(number), network.size)
        maps.append((network.levels(square), square_label(pascal.mask(number), network.size)))
    print(f"before: {known_miou(network, model.state, maps):.2f}", flush=True)
    for name in options.sets.split(","):
        images = Images(options.root / name, model)
        task = next(tasks(images, read_class_names(options.root / name), 1, 1))
        supports = task.supports[:SHOTS]
        masks = [images.mask(i, task.label) for i in supports]
        model.teach(f"{name} {task.name}", [images.image(i) for i in supports], masks)
        print(f"after {name}: {known_miou(network, model.state, maps):.2f}", flush=True)


if __name__ == "__main__":
    main()
