"""A small residual encoder, trained from scratch on the generated scenes."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from gfss.common.errors import GfssError
from gfss.models.encoders.base import Encoder
from gfss.models.ops.upsample import upsample

# level -> (channels, stride of the first block, dilation of each block)
STAGES = {"layer2": (32, 1, (1,)), "layer3": (64, 2, (1, 1)), "layer4": (96, 1, (2, 2))}
STEM = (16, 24)


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
