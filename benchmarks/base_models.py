"""Base models trained on a part of PASCAL's train list and evaluated on base classes of other images of that list.

    python benchmarks/base_models.py --encoder lite4 --set decoder=128 --set epochs=4 --json one.json

Options of stage 1 are those of ``base`` in a recipe. Nothing here looks at a novel class or at the val list, so this is
where such options are chosen.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from pydantic import TypeAdapter

from gfss.common.files import write_json
from gfss.data import open_dataset, open_fold
from gfss.data.episodes import Fold
from gfss.evaluation.metrics import Accumulated, image_counts
from gfss.experiments.recipes import find_weights
from gfss.experiments.spec import BASE_PRESETS
from gfss.features.bank import Bank, build_bank
from gfss.models.base_model import BaseModel
from gfss.models.encoders import build_encoder
from gfss.models.ops.upsample import class_map
from gfss.training.base import BaseData, BaseOptions, train_base
from gfss.training.batches import training_images

LEVELS = ("layer2", "layer3", "layer4")
SIZE = 417


def chosen_images(dataset: Any, fold: Fold, among: int, train: int, held_out: int) -> tuple[np.ndarray, np.ndarray]:
    """Images to train on and to evaluate on, out of the first of the list that show a base class."""
    images = training_images(dataset, fold)
    order = np.random.default_rng(0).permutation(images[images < among])
    return np.sort(order[:train]), np.sort(order[train : train + held_out])


def evaluate(model: BaseModel, bank: Bank, images: Sequence[int], fold: Fold) -> dict[str, float]:
    """Base IoU of some images in percent by both metrics; each image is a task of its own for the per-image one."""
    names = list(model.card.classes)
    accumulated = Accumulated(names, ())
    shown: dict[str, list[float]] = {name: [] for name in names}
    for start in range(0, len(images), 16):
        some = images[start : start + 16]
        with torch.no_grad():
            levels = bank.features(some)
            if entry := model.card.training["frozen_until"]:
                levels |= model.encoder.levels_from(entry, levels[entry])
            predicted = class_map(model.head.logits(levels), (SIZE, SIZE))
        counts = image_counts(predicted, bank.labels(some, fold.label_table()), len(names) + 1)
        accumulated.update(counts)
        intersection, found, true = counts.double().unbind(dim=-1)
        iou = intersection / (found + true - intersection).clamp_min(1)
        for image, label in torch.nonzero(true[:, 1:] > 0).tolist():
            shown[names[label]].append(float(iou[image, label + 1]))
    per_image = 100 * float(np.mean([np.mean(values) for values in shown.values() if values]))
    total = accumulated.summary().base or 0.0
    return {"per image": round(per_image, 2), "accumulated": round(total, 2)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Train one base model and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", default="lite0")
    parser.add_argument("--weights", type=Path, help="file with its weights, else found as for a recipe")
    parser.add_argument("--preset", default="frozen", choices=BASE_PRESETS)
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="an option of stage 1")
    parser.add_argument("--fold", type=int, default=0)
    parser.add_argument("--among", type=int, default=2048, help="the images are drawn from so many first of the list")
    parser.add_argument("--train", type=int, default=1400)
    parser.add_argument("--held-out", type=int, default=350)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    changes = {key: yaml.safe_load(value) for key, _, value in (one.partition("=") for one in given.set)}
    options = TypeAdapter(BaseOptions).validate_python(asdict(BASE_PRESETS[given.preset]) | changes)
    dataset = open_dataset("pascal", None, "train")
    fold = open_fold("pascal", len(dataset.classes), given.fold, False)
    encoder = build_encoder(given.encoder, find_weights(given.encoder, given.weights))
    bank = build_bank(encoder, dataset, SIZE, LEVELS, own_sizes=True)
    train, held_out = chosen_images(dataset, fold, given.among, given.train, given.held_out)
    data = BaseData(dataset, fold, given.fold, bank, np.setdiff1d(np.arange(len(dataset)), train))
    start, cpu = time.perf_counter(), time.process_time()
    model = train_base(data, encoder, given.encoder, options, size=SIZE)
    cost = {"seconds": round(time.perf_counter() - start), "cpu seconds": round(time.process_time() - cpu)}
    figures = evaluate(model, bank, held_out.tolist(), fold)
    print(given.encoder, " ".join([given.preset, *given.set]), figures, cost, flush=True)
    if given.json:
        write_json(given.json, {"encoder": given.encoder, "options": asdict(options), **figures, **cost})


if __name__ == "__main__":
    main()
