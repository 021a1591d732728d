"""Base models on disk."""

from __future__ import annotations

from pathlib import Path

from gfss.common.errors import GfssError
from gfss.models.base_model import BaseCard, BaseModel, PyramidHead
from gfss.models.encoders import build_encoder
from gfss.models.encoders.base import Encoder
from gfss.training.checkpoints import load_checkpoint, save_checkpoint


def save_base(folder: Path, model: BaseModel) -> None:
    """Write a base model; a frozen encoder's weights are not copied, only their hash."""
    parts = (
        model.state_dict()
        if model.card.trained_encoder
        else {f"head.{k}": v for k, v in model.head.state_dict().items()}
    )
    save_checkpoint(folder, parts, {"card": model.card.as_json(), "head": model.head.config}, "base")


def load_base(folder: Path, encoder: Encoder | None = None, weights: Path | None = None) -> BaseModel:
    """Read a base model back.

    Args:
        encoder: the frozen encoder, if it is at hand already.
        weights: file with the encoder's pretrained weights, where they do not come with a package.
    """
    tensors, about = load_checkpoint(folder, "base")
    card = BaseCard.from_json(about["card"])
    encoder = encoder or build_encoder(card.encoder, weights, card.output_stride, pretrained=not card.trained_encoder)
    head = PyramidHead(**about["head"])
    model = BaseModel(encoder, head, card)
    if card.trained_encoder:
        model.load_state_dict(tensors)
    else:
        head.load_state_dict({k.removeprefix("head."): v for k, v in tensors.items()})
        if encoder.weights_hash() != card.encoder_hash:
            raise GfssError(
                f"the base model in {folder} was trained on encoder weights {card.encoder_hash}, but the weights of "
                f"{card.encoder} at hand are {encoder.weights_hash()}; give the matching file with --encoder-weights"
            )
    model.freeze()
    return model.to(encoder.device).eval()
