"""Stage 1: train the pyramid head and base classifier (and the encoder, in the paper's recipe)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from gfss.common.distributed import Workers
from gfss.common.distributed_layers import distribute_dropout
from gfss.common.errors import GfssError
from gfss.common.options import options
from gfss.data.catalog import VOID, Fold
from gfss.data.datasets.base import Dataset
from gfss.data.transforms import square_image, square_label, to_tensor
from gfss.features.bank import Bank
from gfss.models.base_model import BaseCard, BaseModel
from gfss.models.encoders.base import Encoder
from gfss.models.ops.upsample import upsample
from gfss.models.pspnet import PyramidHead
from gfss.training.base_checkpoints import save_base
from gfss.training.batches import augmentations, batch_images, reader, training_images
from gfss.training.loop import Iteration, Schedule, remove_training_state, train

STATISTICS_IMAGES = 256  # sample for the standardisation of frozen features


@options
class BaseOptions:
    """Options of stage 1; the defaults are the frozen recipe, :data:`PAPER` is the paper's.

    Attributes:
        levels: encoder levels that enter the pyramid.
        pyramid: channels of each pyramid branch.
        width: channels of the bottleneck.
        separable: depthwise bottleneck.
        dropout: channel dropout before the classifier.
        epochs: passes over the training images.
        batch: images per iteration (over all processes).
        rate: highest learning rate.
        warmup: iterations in which it grows to that; a fifth of the training at most.
        optimiser: ``sgd`` or ``adamw``.
        weight_decay: weight decay.
        smoothing: label smoothing.
        flip: random horizontal flips (of maps when the encoder is frozen).
        flip_vertical: random vertical flips.
        shuffle_colours: random order of the colour channels (only where the encoder is trained).
        label_stride: the loss is taken at every so many pixels.
        train_encoder: train the encoder too.
        frozen_until: train the encoder's stages after this level, starting from the level in the bank.
    """

    levels: tuple[str, ...] = ("layer3", "layer4")
    pyramid: PositiveInt = 64
    width: PositiveInt = 256
    separable: bool = True
    dropout: float = 0.1
    epochs: PositiveInt = 6
    batch: PositiveInt = 16
    rate: PositiveFloat = 1e-3
    warmup: NonNegativeInt = 0
    optimiser: Literal["sgd", "adamw"] = "adamw"
    weight_decay: float = 1e-2
    smoothing: float = 0.0
    flip: bool = True
    flip_vertical: bool = False
    shuffle_colours: bool = False
    label_stride: PositiveInt = 4
    train_encoder: bool = False
    frozen_until: str = ""

    @property
    def changes_encoder(self) -> bool:
        """Whether the encoder's weights after training are not the pretrained ones."""
        return self.train_encoder or bool(self.frozen_until)


PAPER = BaseOptions(
    levels=("layer4",),
    pyramid=512,
    width=512,
    separable=False,
    epochs=100,
    batch=12,
    rate=2.5e-3,
    optimiser="sgd",
    weight_decay=1e-4,
    flip_vertical=True,
    label_stride=1,
    train_encoder=True,
)


def pixel_loss(base: Tensor, labels: Tensor, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
    """Cross entropy at label resolution as (sum, number of pixels); void ignored.

    Args:
        base: logits (batch, classes, h, w).
        labels: (batch, height, width).
    """
    logits = upsample(base, (labels.shape[-2], labels.shape[-1]))
    target = labels.long()
    total = F.cross_entropy(logits, target, ignore_index=VOID, reduction="sum", label_smoothing=smoothing)
    return total, (target != VOID).sum()


def train_base(
    dataset: Dataset,
    fold: Fold,
    encoder: Encoder,
    encoder_name: str,
    options: BaseOptions,
    *,
    size: int,
    fold_number: int | None = None,
    bank: Bank | None = None,
    seed: int = 0,
    folder: Path | None = None,
    resume: bool = False,
    workers: Workers | None = None,
    avoid: Sequence[int] | np.ndarray = (),
) -> BaseModel:
    """Train a base model on the base classes of a fold.

    Args:
        encoder: training takes place where it lies.
        bank: features of ``dataset``; needed unless the encoder is trained too.
        avoid: images that are left out.
    """
    if bank is None and not options.train_encoder:
        raise GfssError("a frozen encoder is read from a feature bank; give its bank or train the encoder too")
    torch.manual_seed(seed)
    channels = {name: encoder.channels[name] for name in options.levels}
    head = PyramidHead(channels, len(fold.base) + 1, options.pyramid, options.width, options.separable, options.dropout)
    card = BaseCard(
        encoder=encoder_name,
        output_stride=encoder.stride,
        encoder_hash=encoder.weights_hash(),
        trained_encoder=options.changes_encoder,
        size=size,
        classes=tuple(dataset.classes[c - 1] for c in fold.base),
        novel=tuple(dataset.classes[c - 1] for c in fold.novel),
        data=dataset.name.rsplit(" ", 1)[0],
        fold=fold_number,
        training={**asdict(options), "seed": seed},
        files=dataset.fingerprint,
    )
    model = BaseModel(encoder, head, card).to(encoder.device)
    if workers and workers.world > 1:
        distribute_dropout(head)
    model.freeze(keep=lambda name: options.train_encoder or name.startswith("head."))
    tail = encoder.stages_after(options.frozen_until) if options.frozen_until else []
    for stage in tail:
        stage.requires_grad_(True)
    images = training_images(dataset, fold, avoid)
    table = fold.label_table()
    stride = options.label_stride

    def from_bank(chosen: Sequence[int], varied: np.ndarray) -> tuple[Tensor, Tensor]:
        assert bank is not None
        levels = bank.features(chosen, encoder.device)
        labels = bank.labels(chosen, table, stride).to(encoder.device)
        for axis, which in ((-1, varied[:, 0]), (-2, varied[:, 1])):
            rows = torch.from_numpy(np.flatnonzero(which))
            labels[rows] = labels[rows].flip(axis)
            for level in levels.values():
                level[rows] = level[rows].flip(axis)
        if options.frozen_until:
            levels = encoder.levels_from(options.frozen_until, levels[options.frozen_until])
        return head(levels).base, labels

    read = reader(dataset)

    def from_images(chosen: Sequence[int], varied: np.ndarray) -> tuple[Tensor, Tensor]:
        pixels: list[np.ndarray] = []
        labels: list[np.ndarray] = []
        for i, (across, down, *colours) in zip(chosen, varied.tolist(), strict=True):
            steps = (slice(None, None, -1 if down else 1), slice(None, None, -1 if across else 1))
            image, mask = read(i)
            pixels.append(square_image(image[steps][..., colours], size))
            labels.append(table[square_label(mask[steps], size)][::stride, ::stride])
        images = to_tensor(np.stack(pixels)).to(encoder.device)
        return model(images).base, torch.from_numpy(np.stack(labels)).to(encoder.device)

    frozen_bank = None if options.train_encoder else bank
    forward = from_images if frozen_bank is None else from_bank
    if frozen_bank is not None:
        sample = np.random.default_rng(seed).choice(images, min(STATISTICS_IMAGES, len(images)), replace=False)
        head.standardise(frozen_bank.features(sample.tolist(), encoder.device))
        trained = nn.ModuleList([head, *tail])
    else:
        trained = model

    def loss(step: Iteration) -> tuple[Tensor, Tensor]:
        chosen = batch_images(images, options.batch, seed, step.number)
        varied = augmentations(seed, step.number, len(chosen), options)
        base, labels = forward(step.share(chosen), varied[step.rank :: step.world])
        return pixel_loss(base, labels, options.smoothing)

    iterations = options.epochs * max(1, len(images) // options.batch)
    warmup = min(options.warmup, iterations // 5)
    train(
        trained,
        loss,
        Schedule(iterations, options.rate, options.optimiser, options.weight_decay, warmup=warmup),
        seed=seed,
        folder=folder,
        resume=resume,
        workers=workers,
        name=f"base model on {card.data}",
        settings=[card.as_json(), fold.base, len(images), None if bank is None else bank.folder.name],
        describe=lambda number: (
            "images " + ", ".join(dataset.ids[i] for i in batch_images(images, options.batch, seed, number))
        ),
    )
    model.freeze()
    model.eval()
    if options.changes_encoder:
        model.card = replace(card, encoder_hash=encoder.weights_hash())
    if folder and (workers is None or workers.rank == 0):
        save_base(folder, model)
        remove_training_state(folder)
    return model
