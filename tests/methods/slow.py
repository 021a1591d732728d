"""The building blocks of the compared systems once more, as slow loops; arrays are (channels, h, w), without batch."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn

from gfss.methods.learned import Learned

Array = np.ndarray


def ready(method: Learned, seed: int = 0) -> dict[str, Array]:
    """Make a method count as trained, with every parameter disturbed at random; returns these parameters."""
    assert method.module is not None
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in method.module.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    method.module.requires_grad_(False)
    method.trained = True
    return parameters(method.module)


def parameters(module: nn.Module) -> dict[str, Array]:
    """Parameters and buffers by name."""
    return {name: array(tensor) for name, tensor in module.state_dict().items()}


def array(tensor: torch.Tensor) -> Array:
    return tensor.detach().double().numpy()


def unit(vector: Array) -> Array:
    return vector / math.sqrt(sum(v * v for v in vector))


def cosine(a: Array, b: Array) -> float:
    return float(sum(x * y for x, y in zip(unit(a), unit(b), strict=True)))


def softmax(values: list[float]) -> list[float]:
    powers = [math.exp(v - max(values)) for v in values]
    return [p / sum(powers) for p in powers]


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def relu(maps: Array) -> Array:
    return np.where(maps > 0, maps, 0.0)


def average(maps: Array, size: tuple[int, int]) -> Array:
    """Every output position is the mean of the input positions that it overlaps."""
    out = np.zeros((len(maps), *size))
    for i in range(size[0]):
        for j in range(size[1]):
            rows = range(i * maps.shape[1] // size[0], -(-(i + 1) * maps.shape[1] // size[0]))
            columns = range(j * maps.shape[2] // size[1], -(-(j + 1) * maps.shape[2] // size[1]))
            out[:, i, j] = sum(maps[:, y, x] for y in rows for x in columns) / (len(rows) * len(columns))
    return out


def shares(labels: torch.Tensor, label: int, size: tuple[int, int]) -> Array:
    """Share of a label at every position, (h, w)."""
    return average(np.array([[[float(v == label) for v in row] for row in labels.tolist()]]), size)[0]


def masked_sum(maps: Array, mask: Array) -> Array:
    total = np.zeros(len(maps))
    for y in range(mask.shape[0]):
        for x in range(mask.shape[1]):
            total += mask[y, x] * maps[:, y, x]
    return total


def convolve(maps: Array, weight: Array, bias: Array | None = None, dilation: int = 1) -> Array:
    """Convolution that keeps the size; positions outside are zero."""
    _, height, width = maps.shape
    reach = weight.shape[-1] // 2
    out = np.zeros((len(weight), height, width))
    for y in range(height):
        for x in range(width):
            for down in range(-reach, reach + 1):
                for right in range(-reach, reach + 1):
                    yy, xx = y + down * dilation, x + right * dilation
                    if 0 <= yy < height and 0 <= xx < width:
                        out[:, y, x] += weight[:, :, down + reach, right + reach] @ maps[:, yy, xx]
            if bias is not None:
                out[:, y, x] += bias
    return out


def resize(maps: Array, size: tuple[int, int]) -> Array:
    """Bilinear with aligned corners."""
    out = np.zeros((len(maps), *size))
    for i in range(size[0]):
        for j in range(size[1]):
            y = i * (maps.shape[1] - 1) / (size[0] - 1) if size[0] > 1 else 0.0
            x = j * (maps.shape[2] - 1) / (size[1] - 1) if size[1] > 1 else 0.0
            top, left = min(int(y), maps.shape[1] - 1), min(int(x), maps.shape[2] - 1)
            bottom, right = min(top + 1, maps.shape[1] - 1), min(left + 1, maps.shape[2] - 1)
            upper = (1 - (x - left)) * maps[:, top, left] + (x - left) * maps[:, top, right]
            lower = (1 - (x - left)) * maps[:, bottom, left] + (x - left) * maps[:, bottom, right]
            out[:, i, j] = (1 - (y - top)) * upper + (y - top) * lower
    return out


def classify(maps: Array, rows: list[Array]) -> Array:
    """Inner product of every position with every row."""
    return np.array(
        [[[row @ maps[:, y, x] for x in range(maps.shape[2])] for y in range(maps.shape[1])] for row in rows]
    )


def cross_entropy(scores: Array, labels: torch.Tensor) -> tuple[float, int]:
    """Sum over the pixels that are not void, and their number."""
    truth = labels.tolist()
    full = resize(scores, (len(truth), len(truth[0])))
    total, count = 0.0, 0
    for y, row in enumerate(truth):
        for x, label in enumerate(row):
            if label != 255:
                total -= math.log(softmax(full[:, y, x].tolist())[label])
                count += 1
    return total, count
