"""Stage 1: train the pyramid head and base classifier (and the encoder, in the paper's recipe)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from gfss.common.distributed_layers import distribute_dropout
from gfss.common.errors import GfssError, unknown
from gfss.common.options import options
from gfss.data.catalog import VOID
from gfss.data.datasets.base import Dataset
from gfss.data.episodes import Fold
from gfss.data.images import square_image, square_label, to_tensor
from gfss.features.bank import Bank
from gfss.methods.losses import missed_overlap
from gfss.models.base_model import BaseCard, BaseModel, PyramidHead
from gfss.models.encoders.base import Encoder
from gfss.models.ops.upsample import upsample
from gfss.training.batches import augmentations, batch_images, reader, training_images
from gfss.training.checkpoints import save_base
from gfss.training.loop import Iteration, Loss, Schedule, TrainingRun, remove_training_state, train

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
        frozen_until: train the encoder's stages after this level, starting from the level in the bank; the statistics
            of their batch norms stay.
        encoder_rate: highest learning rate of encoder stages that are trained; ``rate`` if 0.
        decoder: inner channels of a decoder that brings the maps to the resolution of ``decoder_level``; none if 0.
        decoder_level: the finer encoder level that the decoder reads.
        novel_pixels: what novel classes are in training images: ``void`` (not trained on) or ``background``, as base
            models of DIaM and BCM are trained; their classifier has a bias.
        overlap: weight of the missed overlap (see :func:`gfss.methods.losses.missed_overlap`) in the loss.
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
    encoder_rate: NonNegativeFloat = 0.0
    decoder: NonNegativeInt = 0
    decoder_level: str = "layer2"
    novel_pixels: Literal["void", "background"] = "void"
    overlap: NonNegativeFloat = 0.0

    @property
    def own_sizes(self) -> bool:
        """Whether the bank must keep every level at its own resolution."""
        return bool(self.decoder or self.frozen_until)

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

# a decoder, and the stages after the level that it reads trained slowly, from what the bank keeps of that level
TUNED = BaseOptions(frozen_until="layer2", encoder_rate=1e-4, decoder=64)


def pixel_loss(base: Tensor, labels: Tensor, smoothing: float = 0.0, overlap: float = 0.0) -> tuple[Tensor, Tensor]:
    """Cross entropy at label resolution as (sum, number of pixels); void ignored.

    Args:
        base: logits (batch, classes, h, w).
        labels: (batch, height, width).
        overlap: weight of the missed overlap, taken for every pixel of an image.
    """
    logits = upsample(base, (labels.shape[-2], labels.shape[-1]))
    target = labels.long()
    total = F.cross_entropy(logits, target, ignore_index=VOID, reduction="sum", label_smoothing=smoothing)
    valid = target != VOID
    if overlap:
        total = total + overlap * (missed_overlap(logits, target) * valid.sum(dim=(1, 2))).sum()
    return total, valid.sum()


@dataclass(frozen=True)
class BaseData:
    """What a base model is trained on.

    Attributes:
        dataset: its train list.
        fold: base and novel classes.
        number: of the fold, if it has one.
        bank: features of ``dataset``; needed unless the encoder is trained too.
        avoid: images that are left out.
    """

    dataset: Dataset
    fold: Fold
    number: int | None = None
    bank: Bank | None = None
    avoid: Sequence[int] | np.ndarray = ()

    @cached_property
    def images(self) -> np.ndarray:
        """Numbers of the training images."""
        return training_images(self.dataset, self.fold, self.avoid)


def train_base(
    data: BaseData,
    encoder: Encoder,
    encoder_name: str,
    options: BaseOptions,
    *,
    size: int,
    run: TrainingRun | None = None,
) -> BaseModel:
    """Train a base model on the base classes of a fold.

    Args:
        encoder: training takes place where it lies.
        size: side of the square images.
    """
    run = run or TrainingRun()
    if data.bank is None and not options.train_encoder:
        raise GfssError("a frozen encoder is read from a feature bank; give its bank or train the encoder too")
    torch.manual_seed(run.seed)
    model = untrained_base(data, encoder, encoder_name, options, size, run.seed)
    if run.workers.world > 1:
        distribute_dropout(model.head)
    model.freeze(keep=lambda name: options.train_encoder or name.startswith("head."))
    trained: nn.Module = model
    if data.bank is not None and not options.train_encoder:
        if options.own_sizes and not data.bank.own_sizes:
            raise GfssError("a decoder or 'frozen_until' needs a feature bank of levels at their own sizes (own_sizes)")
        tail = encoder.stages_after(options.frozen_until) if options.frozen_until else []
        for stage in tail:
            stage.requires_grad_(True)
        _standardise(model, data.bank, data.images, run.seed)
        trained = HeadAndTail(model.head, tail)
    train(
        trained,
        _base_loss(model, data, options, run.seed),
        _base_schedule(options, len(data.images)),
        run,
        slower=(list(encoder.parameters()), options.encoder_rate / options.rate) if options.encoder_rate else None,
        name=f"base model on {model.card.data}",
        settings=[model.card.as_json(), data.fold.base, len(data.images), data.bank and data.bank.folder.name],
        describe=lambda number: (
            "images "
            + ", ".join(data.dataset.ids[i] for i in batch_images(data.images, options.batch, run.seed, number))
        ),
    )
    model.freeze()
    model.eval()
    if options.changes_encoder:
        model.card = replace(model.card, encoder_hash=encoder.weights_hash())
    if run.output:
        save_base(run.output, model)
        remove_training_state(run.output)
    return model


class HeadAndTail(nn.Module):
    """A pyramid head and the stages of a pretrained encoder before it, whose batch norms keep their statistics."""

    def __init__(self, head: PyramidHead, tail: Sequence[nn.Module]) -> None:
        super().__init__()
        self.head = head
        self.tail = nn.ModuleList(tail)

    def train(self, mode: bool = True) -> HeadAndTail:
        super().train(mode)
        self.tail.eval()
        return self


def untrained_base(
    data: BaseData, encoder: Encoder, encoder_name: str, options: BaseOptions, size: int, seed: int
) -> BaseModel:
    """A base model with a fresh pyramid head."""
    dataset, fold = data.dataset, data.fold
    level = options.decoder_level
    if options.decoder and level not in encoder.channels:
        raise unknown("level for the decoder", level, encoder.channels)
    head = PyramidHead(
        {name: encoder.channels[name] for name in options.levels},
        len(fold.base) + 1,
        options.pyramid,
        options.width,
        options.separable,
        options.dropout,
        {"level": level, "channels": encoder.channels[level], "inner": options.decoder} if options.decoder else None,
        bias=options.novel_pixels == "background",
    )
    card = BaseCard(
        encoder=encoder_name,
        output_stride=encoder.stride,
        encoder_hash=encoder.weights_hash(),
        trained_encoder=options.changes_encoder,
        size=size,
        classes=tuple(dataset.classes[c - 1] for c in fold.base),
        novel=tuple(dataset.classes[c - 1] for c in fold.novel),
        data=dataset.name.rsplit(" ", 1)[0],
        fold=data.number,
        training={**asdict(options), "seed": seed},
        files=dataset.fingerprint,
    )
    return BaseModel(encoder, head, card).to(encoder.device)


def _standardise(model: BaseModel, bank: Bank, images: np.ndarray, seed: int) -> None:
    """Mean and spread of the entering features, from some training images."""
    sample = np.random.default_rng(seed).choice(images, min(STATISTICS_IMAGES, len(images)), replace=False)
    model.head.standardise(bank.features(sample.tolist(), model.encoder.device))


def _base_schedule(options: BaseOptions, images: int) -> Schedule:
    iterations = options.epochs * max(1, images // options.batch)
    warmup = min(options.warmup, iterations // 5)
    return Schedule(iterations, options.rate, options.optimiser, options.weight_decay, warmup=warmup)


def _base_loss(model: BaseModel, data: BaseData, options: BaseOptions, seed: int) -> Loss:
    """Stage 1's loss of an iteration (eq. 1): pixel-wise cross entropy of the base classifier."""
    frozen = data.bank is not None and not options.train_encoder
    forward = BankBatches(model, data, options) if frozen else ImageBatches(model, data, options)

    def loss(step: Iteration) -> tuple[Tensor, Tensor]:
        chosen = batch_images(data.images, options.batch, seed, step.number)
        varied = augmentations(seed, step.number, len(chosen), options)
        base, labels = forward(step.share(chosen), varied[step.rank :: step.world])
        return pixel_loss(base, labels, options.smoothing, options.overlap)

    return loss


def training_table(data: BaseData, options: BaseOptions) -> np.ndarray:
    """From mask values to training labels; classes that are not base are void or background."""
    table = data.fold.label_table()
    if options.novel_pixels == "background":
        classes = table[1 : len(data.dataset.classes) + 1]
        classes[classes == VOID] = 0
    return table


class BankBatches:
    """Base logits (images, classes, h, w) and labels of training images, from the features of a bank."""

    def __init__(self, model: BaseModel, data: BaseData, options: BaseOptions) -> None:
        assert data.bank is not None
        self.model, self.bank, self.options = model, data.bank, options
        self.table = training_table(data, options)

    def __call__(self, chosen: Sequence[int], varied: np.ndarray) -> tuple[Tensor, Tensor]:
        encoder, entry = self.model.encoder, self.options.frozen_until
        levels = self.bank.features(chosen, encoder.device)
        labels = self.bank.labels(chosen, self.table, self.options.label_stride).to(encoder.device)
        for axis, which in ((-1, varied[:, 0]), (-2, varied[:, 1])):
            rows = torch.from_numpy(np.flatnonzero(which))
            labels[rows] = labels[rows].flip(axis)
            for level in levels.values():
                level[rows] = level[rows].flip(axis)
        if entry:
            levels |= encoder.levels_from(entry, levels[entry])
        return self.model.head.logits(levels), labels


class ImageBatches:
    """Base logits (images, classes, h, w) and labels of training images, from their pixels."""

    def __init__(self, model: BaseModel, data: BaseData, options: BaseOptions) -> None:
        self.model, self.options = model, options
        self.table, self.read = training_table(data, options), reader(data.dataset)

    def __call__(self, chosen: Sequence[int], varied: np.ndarray) -> tuple[Tensor, Tensor]:
        size, stride, device = self.model.card.size, self.options.label_stride, self.model.encoder.device
        pixels: list[np.ndarray] = []
        labels: list[np.ndarray] = []
        for i, (across, down, *colours) in zip(chosen, varied.tolist(), strict=True):
            steps = (slice(None, None, -1 if down else 1), slice(None, None, -1 if across else 1))
            image, mask = self.read(i)
            pixels.append(square_image(image[steps][..., colours], size))
            labels.append(self.table[square_label(mask[steps], size)][::stride, ::stride])
        images = to_tensor(np.stack(pixels)).to(device)
        return self.model.logits(images), torch.from_numpy(np.stack(labels)).to(device)
