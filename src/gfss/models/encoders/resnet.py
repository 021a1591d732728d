"""Dilated ResNet-18, 50 and 101 with the parameter names of the usual ImageNet files."""

from __future__ import annotations

import hashlib

from torch import Tensor, nn
from torch.nn import functional as F

from gfss.common.errors import GfssError, unknown
from gfss.models.encoders.base import Encoder

BLOCKS = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}
WIDTHS = (64, 128, 256, 512)
STRIDES_ON = ("conv1", "conv2")
DEEP_STEM = 128  # channels of the three-convolution stem


def conv3x3(width: int, out: int, stride: int = 1, dilation: int = 1) -> nn.Conv2d:
    """3x3 convolution that keeps the size at stride 1."""
    return nn.Conv2d(width, out, 3, stride, padding=dilation, dilation=dilation, bias=False)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions. The first carries the stride, so only the second feels a removed stride at once."""

    expansion = 1

    def __init__(self, width: int, inner: int, stride: int, before: int, dilation: int, stride_on: str) -> None:
        super().__init__()
        self.conv1 = conv3x3(width, inner, stride, before)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = conv3x3(inner, inner, dilation=dilation)
        self.bn2 = nn.BatchNorm2d(inner)
        self.downsample = _shortcut(width, inner, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """1x1 reduction, 3x3 convolution, 1x1 expansion; the stride on the first or the second of them."""

    expansion = 4

    def __init__(self, width: int, inner: int, stride: int, before: int, dilation: int, stride_on: str) -> None:
        super().__init__()
        out = inner * self.expansion
        first = stride_on == "conv1"
        self.conv1 = nn.Conv2d(width, inner, 1, stride if first else 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = conv3x3(inner, inner, 1 if first else stride, dilation if first else before)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.downsample = _shortcut(width, out, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(Encoder):
    """ResNet as a dense feature extractor.

    A stride beyond the output stride becomes dilation, so the dense map read at every second position is the
    map of the undilated network. The deep-stem form is the paper's network instead, where a dilated layer
    is dilated in its first block too.

    Args:
        depth: 18, 50 or 101.
        output_stride: 8 (layer3 and layer4 dilated), 16 (layer4 dilated) or 32.
        deep_stem: three 3x3 convolutions (3 -> 64 -> 64 -> 128) in place of one 7x7.
        stride_on: ``conv2`` (usual files) or ``conv1`` (the original ResNet) of a layer's first block;
            without effect on ResNet-18.
    """

    def __init__(
        self, depth: int = 50, output_stride: int = 8, deep_stem: bool = False, stride_on: str = "conv2"
    ) -> None:
        super().__init__()
        if depth not in BLOCKS:
            raise unknown("ResNet depth", depth, BLOCKS)
        if output_stride not in (8, 16, 32):
            raise GfssError(f"output stride {output_stride} is not possible; take 8, 16 or 32")
        if stride_on not in STRIDES_ON:
            raise unknown("place of the stride", stride_on, STRIDES_ON)
        self.stride = output_stride
        self.deep_stem = deep_stem
        self.stride_on = stride_on
        if deep_stem:
            self.conv1, self.bn1 = conv3x3(3, 64, stride=2), nn.BatchNorm2d(64)
            self.conv2, self.bn2 = conv3x3(64, 64), nn.BatchNorm2d(64)
            self.conv3, self.bn3 = conv3x3(64, DEEP_STEM), nn.BatchNorm2d(DEEP_STEM)
        else:
            self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, padding=3, bias=False), nn.BatchNorm2d(64)
        block = BasicBlock if depth == 18 else Bottleneck
        width, reached, dilation = DEEP_STEM if deep_stem else 64, 4, 1
        self.channels = {}
        for number, (repeats, inner) in enumerate(zip(BLOCKS[depth], WIDTHS, strict=True), start=1):
            stride, before = (1 if number == 1 else 2), dilation
            if stride == 2 and reached == output_stride:
                stride, dilation = 1, dilation * 2
            reached *= stride
            first = block(width, inner, stride, dilation if deep_stem else before, dilation, stride_on)
            width = inner * block.expansion
            rest = [block(width, inner, 1, dilation, dilation, stride_on) for _ in range(repeats - 1)]
            self.add_module(f"layer{number}", nn.Sequential(first, *rest))
            if number > 1:
                self.channels[f"layer{number}"] = width
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    @property
    def fine_channels(self) -> dict[str, int]:
        return {"layer1": self.channels["layer2"] // 2, **self.channels}

    def fine_levels(self, images: Tensor) -> dict[str, Tensor]:
        return self._all_levels((images - self.mean) / self.std)

    def levels(self, images: Tensor) -> dict[str, Tensor]:
        found = self._all_levels(images)
        return {name: found[name] for name in self.channels}

    def _all_levels(self, images: Tensor) -> dict[str, Tensor]:
        x = F.relu(self.bn1(self.conv1(images)))
        if self.deep_stem:
            x = F.relu(self.bn2(self.conv2(x)))
            x = F.relu(self.bn3(self.conv3(x)))
        x = self.get_submodule("layer1")(F.max_pool2d(x, 3, stride=2, padding=1))
        levels: dict[str, Tensor] = {"layer1": x}
        for name in self.channels:
            levels[name] = x = self.get_submodule(name)(x)
        return levels

    def weights_hash(self) -> str:
        """Hash of weights and place of the stride: the same file means other features in the other form."""
        return hashlib.sha256(f"{super().weights_hash()} {self.stride_on}".encode()).hexdigest()[:16]


def _shortcut(width: int, out: int, stride: int) -> nn.Sequential | None:
    """1x1 convolution on the way around a block that changes size or width."""
    if stride == 1 and width == out:
        return None
    return nn.Sequential(nn.Conv2d(width, out, 1, stride, bias=False), nn.BatchNorm2d(out))
