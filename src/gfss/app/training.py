"""A base model of a user's own labelled data set, ready to be taught further."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from gfss.app.model_folder import ASSETS, find_model
from gfss.app.network import Network
from gfss.app.segmenter import Segmenter, load
from gfss.common.errors import GfssError
from gfss.common.files import cache_folder
from gfss.data.datasets.folder import read_own
from gfss.data.episodes import fold_of_names
from gfss.evaluation.base_model import base_miou
from gfss.features.bank import build_bank
from gfss.models.calibrators.mask_refiner import MaskRefiner
from gfss.models.encoders import build_encoder
from gfss.models.encoders.base import Encoder
from gfss.models.novel.descriptors import DenseDescriptors
from gfss.training.base import BaseData, BaseOptions, train_base
from gfss.training.loop import TrainingRun

ENCODER, SIZE = "lite0", 417
ITERATIONS = 600  # that a small data set is trained for, within the epochs below
EPOCHS = (6, 40)


def train_model(
    source: Path,
    *,
    weights: Path | None = None,
    epochs: int = 0,
    seed: int = 0,
    name: str | None = None,
    label: str | None = None,
    void: int | None = None,
) -> tuple[Segmenter, dict[str, float | None]]:
    """Train a model on all classes of a labelled data set, on frozen EfficientNet-Lite0 features.

    An interrupted training goes on where it was.

    Args:
        source: data in any of the label formats; every fifth image is kept for the figures where there is no list.
        weights: file with the encoder's weights, where they are not installed.
        epochs: passes over the images; chosen by their number if 0.
        name: of the class, where masks of one class have none.
        label: what the labels call this class, or its mask value.
        void: the mask value that is neither class nor background, where it is not 255.

    Returns:
        The model, and its IoU in percent on the images kept for that: per class, and ``base`` as their mean.
    """
    train_set, val_set = (read_own(source, split, name=name, label=label, void=void) for split in ("train", "val"))
    if len(train_set) < 2:
        raise GfssError(f"{source} has {len(train_set)} image to train on; label more images, some dozens if possible")
    encoder = build_encoder(ENCODER, weights)
    options = BaseOptions()
    options = replace(options, epochs=epochs or usual_epochs(len(train_set), options.batch))
    fold = fold_of_names(train_set.classes, ())
    bank = build_bank(encoder, train_set, SIZE, options.levels)
    folder = cache_folder("training") / f"{train_set.fingerprint}-{options.epochs}-{seed}"
    run = TrainingRun(seed, folder, resume=True)
    base = train_base(BaseData(train_set, fold, bank=bank), encoder, ENCODER, options, size=SIZE, run=run)
    figures = base_miou(base, build_bank(encoder, val_set, SIZE, options.levels), val_set, fold)
    return Segmenter(Network(base, *shipped_parts(encoder))), figures


def usual_epochs(images: int, batch: int) -> int:
    """Passes over a data set by its size.

    >>> usual_epochs(100, 16), usual_epochs(1000, 16), usual_epochs(10000, 16)
    (40, 10, 6)
    """
    return min(EPOCHS[1], max(EPOCHS[0], math.ceil(ITERATIONS * batch / max(1, images))))


def shipped_parts(encoder: Encoder) -> tuple[MaskRefiner | None, DenseDescriptors | None]:
    """The mask refiner and the descriptors that the package has for an encoder; they have no weight of a class."""
    for folder in sorted(ASSETS.glob(f"*-{encoder.name}")):
        network = load(find_model(folder)).network
        if network.refiner is not None and network.card.encoder_hash == encoder.weights_hash():
            return network.refiner, network.descriptors
    return None, None
