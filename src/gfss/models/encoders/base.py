"""What every encoder is: an image goes in, feature maps of several levels come out. The smallest one, and all by name.

Families of encoders build on :class:`Encoder`, each in a file that is imported when one of its members is built.
"""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from gfss.common.errors import GfssError, unknown
from gfss.models.ops.upsample import upsample

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
Run = Callable[[Tensor], dict[str, Tensor]]
"""From images (batch, 3, size, size) to levels."""

STAGES = {"layer2": (32, 1, (1,)), "layer3": (64, 2, (1, 1)), "layer4": (96, 1, (2, 2))}
STEM = (16, 24)
HUGGING_FACE = "hf:"
# -deep: three-convolution stem; -msra: the stride of the original ResNet, on conv1
RESNETS: dict[str, dict[str, Any]] = {
    "resnet18": {"depth": 18},
    "resnet50": {"depth": 50},
    "resnet50-deep": {"depth": 50, "deep_stem": True},
    "resnet50-msra": {"depth": 50, "stride_on": "conv1"},
    "resnet101": {"depth": 101},
    "resnet101-deep": {"depth": 101, "deep_stem": True},
    "resnet101-msra": {"depth": 101, "stride_on": "conv1"},
}


class Encoder(nn.Module):
    """Base of all encoders.

    Attributes:
        name: what ``build_encoder`` takes to make this architecture again; empty if it was made by hand.
        channels: level name -> number of channels, from fine to coarse. The names are those of the
            paper for every family: ``layer2``, ``layer3``, ``layer4``.
        stride: input pixels per position of the coarsest level.
        on_pixels: position i of its maps lies on input pixel i * stride, so sides of a multiple and one fit.
        traced_is_faster: on a CPU, see :func:`fast_form`.
    """

    name: str = ""
    channels: dict[str, int]
    stride: int
    on_pixels: bool = True
    traced_is_faster: bool = False
    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float] = IMAGENET_MEAN, std: Sequence[float] = IMAGENET_STD) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Features of images.

        Args:
            images: (batch, 3, height, width), RGB in [0, 1].

        Returns:
            Level name -> (batch, channels, h, w), all levels of one size.
        """
        if images.ndim != 4 or images.shape[1] != 3:
            raise GfssError(f"an encoder takes (batch, 3, height, width); got {tuple(images.shape)}")
        levels = self.levels((images - self.mean) / self.std)
        size = levels[next(reversed(self.channels))].shape[-2:]
        return {name: to_size(level, size) for name, level in levels.items()}

    def levels(self, images: Tensor) -> dict[str, Tensor]:
        """Feature maps of normalised images, each at its own resolution."""
        raise NotImplementedError

    @property
    def fine_channels(self) -> dict[str, int]:
        """Level name -> channels of :meth:`fine_levels`, from fine to coarse."""
        return self.channels

    def fine_levels(self, images: Tensor) -> dict[str, Tensor]:
        """All levels at their own resolution, among them finer ones than ``channels`` names where there are any.

        Args:
            images: (batch, 3, height, width), RGB in [0, 1].
        """
        return self.levels((images - self.mean) / self.std)

    def levels_from(self, name: str, level: Tensor) -> dict[str, Tensor]:
        """A level and those after it, computed from the level alone; for training only the last stages."""
        raise GfssError("this encoder cannot be entered at an inner level; train it whole or keep it frozen")

    def stages_after(self, name: str) -> list[nn.Module]:
        """The parts that come after a level."""
        raise GfssError("this encoder cannot be entered at an inner level; train it whole or keep it frozen")

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return self.mean.device

    def map_size(self, size: int) -> int:
        """Side of the feature maps for a square input; encoders on a patch grid refuse sizes that do not fit."""
        return -(-size // self.stride)

    @torch.inference_mode()
    def level_sizes(self, size: int) -> dict[str, tuple[int, int]]:
        """Height and width of all levels at their own resolution for a square input, by trying it."""
        blank = torch.zeros(1, 3, size, size, device=self.device)
        return {name: (level.shape[-2], level.shape[-1]) for name, level in self.fine_levels(blank).items()}

    def weights_hash(self) -> str:
        """Hash of all weights; the key of a feature bank."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().float().numpy().tobytes())
        return digest.hexdigest()[:16]


def load_strictly(module: nn.Module, state: Mapping[str, Tensor], source: str, ignore: Sequence[str] = ()) -> None:
    """Load weights; everything missing, unexpected or of another shape is named.

    Args:
        ignore: prefixes of entries of the file that the module has no use for (a classifier, say).
    """
    own = module.state_dict()
    given = {k: v for k, v in state.items() if not k.startswith(tuple(ignore))}
    needed = {k for k in own if not k.endswith("num_batches_tracked")}
    problems = [f"missing {k}" for k in sorted(needed - given.keys())]
    problems += [f"unexpected {k}" for k in sorted(given.keys() - own.keys())]
    problems += [
        f"{k} has shape {tuple(v.shape)} instead of {tuple(own[k].shape)}"
        for k, v in sorted(given.items())
        if k in own and v.shape != own[k].shape
    ]
    if problems:
        shown = "; ".join(problems[:20]) + (f"; and {len(problems) - 20} more" if len(problems) > 20 else "")
        raise GfssError(f"the weights in {source} do not fit this network: {shown}")
    module.load_state_dict({k: v.to(own[k].dtype) for k, v in given.items()}, strict=False)


def select_levels(levels: Mapping[str, Tensor], names: Sequence[str]) -> list[Tensor]:
    """Levels by name."""
    for name in names:
        if name not in levels:
            raise unknown("feature level", name, levels)
    return [levels[name] for name in names]


def to_size(level: Tensor, size: torch.Size) -> Tensor:
    """A level (batch, channels, h, w) brought to another height and width, bilinearly with aligned corners."""
    if level.shape[-2:] == size:
        return level
    return nn.functional.interpolate(level, size=size, mode="bilinear", align_corners=True)


def fast_form(encoder: Encoder, size: int, fine: bool = False) -> Run:
    """An encoder, frozen, in the form that is fastest on a CPU for square images of one size.

    Args:
        fine: give all levels at their own resolution (:meth:`Encoder.fine_levels`), not those of one size.
    """
    if encoder.traced_is_faster:
        return traced(encoder, size, fine)
    return fused(encoder).fine_levels if fine else fused(encoder)


def traced(encoder: Encoder, size: int, fine: bool = False) -> Run:
    """The fused encoder, traced for square images of one size and optimised for inference."""
    names = list(encoder.fine_channels if fine else encoder.channels)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # shapes become constants, as they should
        ordered = _InOrder(fused(encoder), fine).eval()
        recorded = torch.jit.trace(ordered, torch.zeros(1, 3, size, size), check_trace=False)
        network = torch.jit.optimize_for_inference(torch.jit.freeze(recorded))
    return lambda images: dict(zip(names, network(images), strict=True))


class _InOrder(nn.Module):
    """An encoder whose levels come as a tuple."""

    def __init__(self, encoder: Encoder, fine: bool) -> None:
        super().__init__()
        self.encoder = encoder
        self.fine = fine

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        if self.fine:
            return tuple(self.encoder.fine_levels(images).values())
        levels = self.encoder(images)
        return tuple(levels[name] for name in self.encoder.channels)


def fused(encoder: Encoder) -> Encoder:
    """A copy in evaluation mode whose batch norms are folded into the convolutions before them.

    Pairs are found by order of definition: every encoder here defines a convolution and right after it
    its batch norm.
    """
    copied = copy.deepcopy(encoder).eval()
    for module in list(copied.modules()):
        _fuse_children(module)
    return copied.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue] missing in torch's types


def _fuse_children(module: nn.Module) -> None:
    previous: tuple[str, nn.Conv2d] | None = None
    for name, child in list(module.named_children()):
        if isinstance(child, nn.BatchNorm2d) and previous and previous[1].out_channels == child.num_features:
            setattr(module, previous[0], fuse_conv_bn_eval(previous[1], child))
            setattr(module, name, nn.Identity())
        previous = (name, child) if isinstance(child, nn.Conv2d) else None


# level -> (channels, stride of the first block, dilation of each block)


class ConvNorm(nn.Sequential):
    """Convolution without bias and its batch norm."""

    def __init__(self, width: int, out: int, kernel: int, stride: int = 1, dilation: int = 1) -> None:
        padding = dilation * (kernel // 2)
        super().__init__(
            nn.Conv2d(width, out, kernel, stride, padding, dilation=dilation, bias=False), nn.BatchNorm2d(out)
        )


class ResidualBlock(nn.Module):
    """Residual block of two 3x3 convolutions."""

    def __init__(self, width: int, out: int, stride: int, dilation: int) -> None:
        super().__init__()
        self.first = ConvNorm(width, out, 3, stride, dilation)
        self.second = ConvNorm(out, out, 3, dilation=dilation)
        self.shortcut = nn.Identity() if width == out and stride == 1 else ConvNorm(width, out, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first(x))
        return F.relu(self.second(y) + self.shortcut(x))


class TinyEncoder(Encoder):
    """Three levels given at a quarter of the input: 29 x 29 maps for 113 px.

    The deep levels work at an eighth, where most of the computation is, and are upsampled at the end.
    """

    def __init__(self, output_stride: int = 4) -> None:
        super().__init__()
        if output_stride != 4:
            raise GfssError(f"output stride {output_stride} is not possible with the tiny encoder; take 4")
        self.stride = output_stride
        self.stem = nn.Sequential(
            ConvNorm(3, STEM[0], 3, stride=2), nn.ReLU(), ConvNorm(STEM[0], STEM[1], 3, stride=2), nn.ReLU()
        )
        width = STEM[1]
        self.channels = {}
        for name, (out, stride, dilations) in STAGES.items():
            blocks: list[ResidualBlock] = []
            for dilation in dilations:
                blocks.append(ResidualBlock(width, out, stride, dilation))
                width, stride = out, 1
            self.add_module(name, nn.Sequential(*blocks))
            self.channels[name] = out

    def levels(self, images: Tensor) -> dict[str, Tensor]:
        x = self.stem(images)
        levels: dict[str, Tensor] = {}
        for name in self.channels:
            levels[name] = x = self.get_submodule(name)(x)
        size = levels["layer2"].shape[-2:]
        return {name: upsample(level, (size[0], size[1])) for name, level in levels.items()}


def encoder_names() -> list[str]:
    """What :func:`build_encoder` takes."""
    from gfss.models.encoders.efficientnet_lite import DEPTH

    return ["tiny", *DEPTH, *RESNETS, f"{HUGGING_FACE}NAME"]


def usual_stride(name: str) -> int | None:
    """The output stride of an encoder where none is asked for; None where it cannot be chosen.

    >>> usual_stride("lite0"), usual_stride("resnet50")
    (16, 8)
    """
    if name.startswith(HUGGING_FACE):
        return None
    from gfss.models.encoders.efficientnet_lite import DEPTH, EfficientNetLite
    from gfss.models.encoders.resnet import ResNet

    kind = TinyEncoder if name == "tiny" else EfficientNetLite if name in DEPTH else ResNet
    return signature(kind).parameters["output_stride"].default


def build_encoder(
    name: str,
    weights: Path | None = None,
    output_stride: int | None = None,
    *,
    pretrained: bool = True,
    seed: int = 0,
) -> Encoder:
    """An encoder in evaluation mode.

    Args:
        name: one of :func:`encoder_names`; ``hf:`` is followed by a name on the Hugging Face hub or a folder.
        weights: file with weights. Without it EfficientNet-Lite takes those of the installed package, a
            Hugging Face encoder its own, the others random ones.
        output_stride: input pixels per position of the coarsest level; the encoder's usual one if not given.
        pretrained: load weights at all; ``False`` for a caller that fills them in itself.
        seed: of random weights.

    Returns:
        The encoder; its ``name`` is the one that builds the same architecture again without the weight file.
    """
    from gfss.models.encoders.efficientnet_lite import EfficientNetLite
    from gfss.models.encoders.lite4_weights import is_folded, unfolded
    from gfss.models.encoders.resnet import ResNet
    from gfss.models.encoders.weights import read_weights

    state, metadata = read_weights(weights) if weights and pretrained else ({}, {})
    if name == "resnet50" and metadata.get("stride", "").startswith("on conv1"):
        name = "resnet50-msra"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = _architecture(name, output_stride, pretrained and not weights)
    encoder.name = name
    if isinstance(encoder, EfficientNetLite) and is_folded(state):
        state = unfolded(encoder, state)
    if weights and pretrained:
        load_strictly(encoder, state, str(weights), ignore=("fc.",) if isinstance(encoder, ResNet) else ())
    elif pretrained and isinstance(encoder, EfficientNetLite):
        encoder.load_package()
    return encoder.eval()


def _architecture(name: str, output_stride: int | None, hub_weights: bool) -> Encoder:
    from gfss.models.encoders.efficientnet_lite import DEPTH, EfficientNetLite
    from gfss.models.encoders.huggingface import HuggingFaceEncoder
    from gfss.models.encoders.resnet import ResNet

    if name.startswith(HUGGING_FACE):
        if output_stride is not None:
            raise GfssError(f"the output stride of {name} is fixed; leave it out")
        return HuggingFaceEncoder(name.removeprefix(HUGGING_FACE), pretrained=hub_weights)
    options: dict[str, Any] = {} if output_stride is None else {"output_stride": output_stride}
    if name == "tiny":
        return TinyEncoder(**options)
    if name in DEPTH:
        return EfficientNetLite(name, **options)
    if name in RESNETS:
        return ResNet(**RESNETS[name], **options)
    raise unknown("encoder", name, encoder_names())
