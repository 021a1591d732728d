"""Between a model in memory and the parts and words that are written to its folder."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from gfss.app.model_checks import build_part, refuse_other_shapes
from gfss.app.model_folder import Parts
from gfss.app.network import Knowledge, Network
from gfss.app.support import Example, TaughtClass
from gfss.common.errors import GfssError
from gfss.models.base_model import BaseCard, BaseModel
from gfss.models.calibrators.calibrator import Calibrator
from gfss.models.calibrators.options import stored_options
from gfss.models.encoders import build_encoder
from gfss.models.encoders.base import Encoder
from gfss.models.novel.classifier import NovelClassifier, NovelOptions
from gfss.models.pspnet import PyramidHead


def network_parts(network: Network, half: bool) -> tuple[Parts, dict[str, Any]]:
    """Weights of a network, in fp16 if wanted, and what it takes to build it again."""
    card = network.card
    modules: dict[str, nn.Module] = {"head": network.base.head}
    if card.trained_encoder:
        modules["encoder"] = network.base.encoder
    if network.calibrator is not None:
        modules["calibrator"] = network.calibrator
    parts = {
        name: {key: _stored(t, half) for key, t in module.state_dict().items()} for name, module in modules.items()
    }
    calibrator = network.calibrator
    return parts, {
        "precision": "fp16" if half else "fp32",
        "base": card.as_json(),
        "head": network.base.head.config,
        "calibrator": calibrator and {"options": asdict(calibrator.options), "map_size": list(calibrator.map_size)},
        "novel": asdict(network.options),
    }


def build_network(parts: Parts, about: dict[str, Any], weights: Path | None, source: str) -> Network:
    """A network from what :func:`network_parts` gave.

    Args:
        weights: file with the encoder's weights, where the model does not carry them.
        source: name of the model, for messages.
    """
    card = BaseCard.from_json(about["base"])
    if card.trained_encoder:
        encoder = build_encoder(card.encoder, output_stride=card.output_stride, pretrained=False)
        refuse_other_shapes(encoder, parts["encoder"], source)
        _fill(encoder, parts["encoder"])
        card = replace(card, encoder_hash=encoder.weights_hash())
    else:
        encoder = build_encoder(card.encoder, weights, card.output_stride)
        refuse_other_weights(encoder, card, source)
    head = build_part(lambda: PyramidHead(**about["head"]), parts["head"], source)
    if head.classifier.out_channels != len(card.classes) + 1:
        raise GfssError(
            f"the head of {source} has {head.classifier.out_channels} outputs for {len(card.classes)} classes"
        )
    calibrator = None
    if about["calibrator"]:
        options = stored_options(about["calibrator"]["options"])
        height, width = about["calibrator"]["map_size"]
        calibrator = build_part(lambda: Calibrator(options, (height, width), fast=True), parts["calibrator"], source)
    novel = NovelOptions(**{**about["novel"], "features": tuple(about["novel"]["features"])})
    return Network(BaseModel(encoder, head, card), calibrator, novel)


def refuse_other_weights(encoder: Encoder, card: BaseCard, source: str) -> None:
    """Raise if an encoder's weights are not those that a model was trained on."""
    if encoder.weights_hash() != card.encoder_hash:
        raise GfssError(
            f"the model {source} was trained on other weights of {card.encoder} ({card.encoder_hash}) than those at "
            f"hand ({encoder.weights_hash()}); give the matching file with --encoder-weights"
        )


def taught_parts(
    taught: Sequence[TaughtClass], knowledge: Knowledge | None, keep_images: bool
) -> tuple[Parts, list[dict[str, Any]]]:
    """Support features and the fitted classifier, and the list of what was taught."""
    parts: Parts = {}
    if knowledge is not None:
        parts["novel classifier"] = {
            key: getattr(knowledge.classifier, key) for key in NovelClassifier.__dataclass_fields__
        }
    listing: list[dict[str, Any]] = []
    for number, one in enumerate(taught):
        part: dict[str, Tensor] = {}
        for i, example in enumerate(one.examples):
            part |= {f"{i}.{name}": level for name, level in example.levels.items()}
            part[f"{i}.labels"] = _png(example.labels)
            if example.image is not None and (keep_images or example.kept):
                part[f"{i}.image"] = _png(example.image)
        parts[_support_part(number)] = part
        supports = [{"id": e.id, "sha256": e.sha256, "lesson": e.lesson} for e in one.examples]
        listing.append({"name": one.name, "supports": supports})
    return parts, listing


def build_taught(
    parts: Parts, listing: Sequence[dict[str, Any]], levels: Sequence[str]
) -> tuple[list[TaughtClass], NovelClassifier | None]:
    """Taught classes and their classifier from what :func:`taught_parts` gave."""
    taught: list[TaughtClass] = []
    for number, entry in enumerate(listing):
        part = parts[_support_part(number)]
        examples = [
            Example(
                **about,
                levels={name: part[f"{i}.{name}"] for name in levels},
                labels=_from_png(part[f"{i}.labels"]),
                image=_from_png(part[f"{i}.image"]) if f"{i}.image" in part else None,
                kept=f"{i}.image" in part,
            )
            for i, about in enumerate(entry["supports"])
        ]
        taught.append(TaughtClass(entry["name"], tuple(examples)))
    return taught, NovelClassifier(**parts["novel classifier"]) if taught else None


def _support_part(number: int) -> str:
    return f"support of class {number + 1}"


def _stored(tensor: Tensor, half: bool) -> Tensor:
    return tensor.half() if half and tensor.is_floating_point() else tensor


def _fill(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    own = module.state_dict()
    module.load_state_dict({name: tensor.to(own[name].dtype) for name, tensor in tensors.items()})


def _png(pixels: np.ndarray) -> Tensor:
    """Pixels as the bytes of a PNG file, so that labels and images stay small."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


def _from_png(content: Tensor) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(content.numpy().tobytes()), formats=("PNG",)))
