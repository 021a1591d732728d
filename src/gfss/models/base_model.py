"""The base model: encoder, pyramid head and base classifier, with what is needed to use it again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor, nn

from gfss.models.encoders.base import Encoder
from gfss.models.pspnet import Features, PyramidHead


@dataclass(frozen=True)
class BaseCard:
    """What a base model is, in words and numbers.

    Attributes:
        encoder: name of the encoder.
        output_stride: input pixels per position of the maps.
        encoder_hash: hash of the encoder's weights.
        trained_encoder: whether the encoder's weights belong to the model (else they are the pretrained ones).
        size: side of the square input.
        classes: names of the base classes, in label order (label 1 first).
        novel: names of the classes that were held out.
        data: name of the data set.
        fold: fold number, or None for a model of all classes.
        training: how it was trained.
        files: fingerprint of the training images, empty where it was not written down.
    """

    encoder: str
    output_stride: int
    encoder_hash: str
    trained_encoder: bool
    size: int
    classes: tuple[str, ...]
    novel: tuple[str, ...]
    data: str
    fold: int | None
    training: dict[str, Any] = field(default_factory=dict)
    files: str = ""

    def as_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "files" or value}

    @staticmethod
    def from_json(content: dict[str, Any]) -> BaseCard:
        return BaseCard(**{**content, "classes": tuple(content["classes"]), "novel": tuple(content["novel"])})


class BaseModel(nn.Module):
    """G_base over F: images in, features and base scores out."""

    def __init__(self, encoder: Encoder, head: PyramidHead, card: BaseCard) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.card = card

    def forward(self, images: Tensor) -> Features:
        """Features of images (batch, 3, size, size), RGB in [0, 1]."""
        return self.head(self.levels(images))

    def logits(self, images: Tensor) -> Tensor:
        """Base logits of images alone, (batch, classes, h, w)."""
        return self.head.logits(self.levels(images))

    def levels(self, images: Tensor) -> dict[str, Tensor]:
        """Encoder levels of images, at their own resolutions where the head has a decoder."""
        if self.head.decoder is None:
            return self.encoder(images)
        levels = self.encoder.fine_levels(images)
        return {name: levels[name] for name in self.encoder.channels}

    @property
    def map_size(self) -> tuple[int, int]:
        """Height and width of the feature maps."""
        if self.head.decoder is None:
            side = self.encoder.map_size(self.card.size)
            return side, side
        level = self.encoder.level_sizes(self.card.size)[self.head.decoder.level]
        return level[0], level[1]

    def freeze(self, keep: Callable[[str], bool] = lambda name: False) -> None:
        """Stop gradients of all parameters but those whose name is kept."""
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(keep(name))
