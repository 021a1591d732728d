"""Colours and textures of the embedded scenes."""

from __future__ import annotations

import colorsys
import math

import numpy as np
from PIL import Image

TEXTURES = ("plain", "stripes", "dots", "checks", "waves", "grain")

Colour = np.ndarray  # red, green, blue in 0..1, float32


def pattern(texture: str, u: np.ndarray, v: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """How much of the second colour there is at object coordinates u, v: values 0..1."""
    f, phase = rng.uniform(1.6, 3.2), rng.uniform(0, 1)
    if texture == "stripes":
        angle = rng.uniform(0, math.pi)
        along = u * math.cos(angle) + v * math.sin(angle)
        return (np.sin(2 * math.pi * f * (along + phase)) > 0).astype(np.float32)
    if texture == "waves":
        return (np.sin(2 * math.pi * f * (v + phase + 0.15 * np.sin(5 * u))) > 0).astype(np.float32)
    if texture == "checks":
        odd_column, odd_row = (np.floor(f * (axis + phase)).astype(np.int32) & 1 for axis in (u, v))
        return (odd_column ^ odd_row).astype(np.float32)
    if texture == "dots":
        x, y = (f * axis + phase for axis in (u, v))
        return ((x - np.rint(x)) ** 2 + (y - np.rint(y)) ** 2 < 0.09).astype(np.float32)
    if texture == "grain":
        return clouds(rng, u.shape, 12)
    return np.zeros(u.shape, dtype=np.float32)


def clouds(rng: np.random.Generator, shape: tuple[int, ...], cells: int) -> np.ndarray:
    """Smooth noise 0..1 with about ``cells`` lumps along each side."""
    grid = Image.fromarray((rng.random((cells, cells)) * 255).astype(np.uint8))
    return np.asarray(grid.resize((shape[1], shape[0]), Image.Resampling.BICUBIC), dtype=np.float32) / 255


def random_colour(
    rng: np.random.Generator,
    saturation: tuple[float, float],
    value: tuple[float, float],
    hue: float | None = None,
    unlike: Colour | None = None,
) -> Colour:
    """A random colour; with ``unlike`` the one of a few that differs from it enough to be seen."""
    best, best_distance = np.zeros(3), -1.0
    for _ in range(8):
        turn = rng.random() if hue is None else hue
        rgb = np.array(colorsys.hsv_to_rgb(turn, rng.uniform(*saturation), rng.uniform(*value)), dtype=np.float32)
        distance = 1.0 if unlike is None else float(np.linalg.norm(rgb - unlike))
        if distance > best_distance:
            best, best_distance = rgb, distance
        if distance > 0.45:
            break
    return best
