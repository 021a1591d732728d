"""Hugging Face backbones (DINOv2, ConvNeXt, Swin, ResNet ...) as encoders; needs the extra ``hf``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gfss.common.errors import GfssError
from gfss.models.encoders.base import IMAGENET_MEAN, IMAGENET_STD, Encoder

LEVELS = ("layer2", "layer3", "layer4")
FRESH_NORMS = "hidden_states_norms"  # plain norms that the library adds to the stages given out; no file has them


class HuggingFaceEncoder(Encoder):
    """A backbone of the ``transformers`` library.

    Three levels come from evenly spread stages: stages 2, 3 and 4 of four, blocks 4, 8 and 12 of twelve.

    Args:
        name: name on the Hugging Face hub, or a folder written by ``save_pretrained``.
        pretrained: load the weights; otherwise only the architecture, with random weights.
    """

    on_pixels = False

    def __init__(self, name: str, pretrained: bool = True) -> None:
        backbone = _load_backbone(name, pretrained)
        super().__init__(*_normalisation(name))
        self.backbone = backbone
        self.channels = dict(zip(LEVELS, self.backbone.channels, strict=True))
        self.stride, self.pads = _probe(self.backbone, name)

    def levels(self, images: Tensor) -> dict[str, Tensor]:
        for side in images.shape[-2:]:
            self.map_size(side)
        return dict(zip(self.channels, self.backbone(images).feature_maps, strict=True))

    def map_size(self, size: int) -> int:
        if not self.pads and size % self.stride:
            nearest = max(round(size / self.stride), 1) * self.stride
            raise GfssError(
                f"this encoder takes sides that are multiples of {self.stride} px; got {size}, "
                f"the nearest that fits is {nearest}"
            )
        return super().map_size(size)


def _load_backbone(name: str, pretrained: bool) -> Any:
    """The backbone, giving out the three chosen stages.

    The class is looked up here because ``AutoBackbone.from_pretrained`` asks the hub even for a local folder.
    """
    transformers = _transformers()
    place, revision = _place(name)
    try:
        config = transformers.AutoConfig.from_pretrained(place, revision=revision, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise GfssError(f"there is no encoder '{name}' on the hub or as a folder here ({_first_line(error)})") from None
    if type(config) not in transformers.MODEL_FOR_BACKBONE_MAPPING:
        raise GfssError(
            f"'{name}' is a {config.model_type} model, which transformers does not offer as a backbone; "
            "take DINOv2, ConvNeXt, Swin or another with backbone support"
        )
    kind = transformers.MODEL_FOR_BACKBONE_MAPPING[type(config)]
    config.out_indices = _evenly(len(config.stage_names) - 1, name)
    if not pretrained:
        return kind(config).eval()
    try:
        backbone, report = kind.from_pretrained(
            place,
            revision=revision,
            config=config,
            output_loading_info=True,
            use_safetensors=True,  # other weight files can run code
        )
    except (OSError, RuntimeError) as error:
        raise GfssError(f"the weights of '{name}' cannot be loaded: {_first_line(error)}") from None
    missing = sorted(key for key in report["missing_keys"] if FRESH_NORMS not in key)
    if missing:
        raise GfssError(f"the weights of '{name}' do not fit its architecture: missing {', '.join(missing[:20])}")
    return backbone.eval()


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".")


def _normalisation(name: str) -> tuple[list[float], list[float]]:
    """Mean and deviation the model was trained with; ImageNet's where its files do not say."""
    from transformers.image_processing_base import ImageProcessingMixin

    place, revision = _place(name)
    try:
        settings, _ = ImageProcessingMixin.get_image_processor_dict(place, revision=revision)
    except OSError:
        settings = {}
    return settings.get("image_mean") or list(IMAGENET_MEAN), settings.get("image_std") or list(IMAGENET_STD)


def _place(name: str) -> tuple[str, str]:
    """Where an encoder is, and its revision: ``organisation/name@revision``, the newest without one, or a folder.

    >>> _place("facebook/dinov2-small@ed25f3a")
    ('facebook/dinov2-small', 'ed25f3a')
    """
    place, _, revision = name.partition("@")
    return (name, "main") if Path(name).exists() or not revision else (place, revision)


def _transformers() -> Any:
    try:
        import transformers
    except ModuleNotFoundError:
        raise GfssError("Hugging Face encoders need the extra 'hf'; run: pip install 'gfss[hf]'") from None
    return transformers


def _evenly(count: int, name: str) -> list[int]:
    """Indices of three stages out of ``count``, the last included; index 0 is the stem."""
    if count < len(LEVELS):
        raise GfssError(f"the encoder '{name}' has {max(count, 0)} stages; at least {len(LEVELS)} are needed")
    return [math.ceil(count * part / len(LEVELS)) for part in range(1, len(LEVELS) + 1)]


def _probe(backbone: Any, name: str) -> tuple[int, bool]:
    """Stride of the coarsest level, and whether sides that are no multiple of it are padded (or cut off).

    Found by running the backbone on two small empty images: configurations do not say it in a common way.
    """
    patch = getattr(backbone.config, "patch_size", 1)
    patch = patch if isinstance(patch, int) else patch[0]
    size = math.lcm(32, patch)
    try:
        stride = size // _last_side(backbone, size)
    except (ValueError, RuntimeError) as error:
        raise GfssError(f"the encoder '{name}' takes images of its own size only ({_first_line(error)})") from None
    try:
        return stride, _last_side(backbone, size + 1) == -(-(size + 1) // stride)
    except (ValueError, RuntimeError):
        return stride, False


@torch.inference_mode()
def _last_side(backbone: Any, size: int) -> int:
    return backbone(torch.zeros(1, 3, size, size)).feature_maps[-1].shape[-1]
