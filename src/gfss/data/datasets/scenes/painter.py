"""Paints one embedded scene: background, clutter and objects under one light, with its exact mask.

Everything is painted hard-edged on a canvas ``OVERSAMPLING`` times finer. Averaging it gives the image
with smooth edges; a pixel whose samples disagree on the class has no honest label and becomes void, a
border of about one pixel as in PASCAL VOC.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from gfss.data.catalog import BACKGROUND, VOID
from gfss.data.datasets.scenes.shapes import CLUTTER, DETAIL, SHAPES, UPRIGHT, Outline
from gfss.data.datasets.scenes.surfaces import TEXTURES, Colour, clouds, pattern, random_colour

SIDE = 112
OVERSAMPLING = 2
FINE = SIDE * OVERSAMPLING
MIN_VISIBLE = 130  # labelled pixels every object's class keeps: above 2 * 32 * 32 * (112 / 500)^2 = 102
RADIUS = (20.0, 31.0)  # half the size of an object, in pixels of the image
TYPICAL_TEXTURE = 0.7  # how often a class wears its own texture instead of any
TYPICAL_HUE = 0.2  # how often it has its own hue: a weak hint only


@dataclass(frozen=True)
class Item:
    """An object or a piece of clutter, placed: ``fine = matrix @ local + centre``, in fine pixels (x, y)."""

    outline: Outline
    matrix: np.ndarray
    centre: np.ndarray
    label: int
    texture: str
    colours: tuple[Colour, Colour, Colour]


def paint_scene(class_ids: Sequence[int], rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """An image of objects of the given classes, later ones in front.

    Args:
        class_ids: one class id (1..12) per object, possibly repeated.
        rng: the only source of chance.

    Returns:
        Image (112, 112, 3) uint8 and mask (112, 112) uint8: class ids, 0 background, 255 void.
    """
    while True:
        canvas = _background(rng)
        labels = np.full((FINE, FINE), BACKGROUND, dtype=np.uint8)
        tint = canvas.mean(axis=(1, 2))
        clutter = [_clutter(rng, 5, 16) for _ in range(rng.integers(2, 6))]
        objects = _objects(class_ids, tint, rng)
        front = [_clutter(rng, 4, 8) for _ in range(rng.integers(0, 3))]
        for item in (*clutter, *objects, *front):
            _paint(canvas, labels, item, rng)
        mask = _coarse_labels(labels)
        counts = np.bincount(mask.ravel(), minlength=VOID + 1)
        if all(counts[c] >= MIN_VISIBLE * class_ids.count(c) for c in class_ids):
            return _expose(canvas, rng), mask


def _background(rng: np.random.Generator) -> np.ndarray:
    """Two muted colours in a gradient, clouds and a faint texture, (3, fine, fine) float32 in 0..1."""
    first, second = (random_colour(rng, saturation=(0.05, 0.35), value=(0.2, 0.95)) for _ in range(2))
    y, x = np.mgrid[0:SIDE, 0:SIDE].astype(np.float32) / SIDE - 0.5
    angle = rng.uniform(0, 2 * math.pi)
    mix = 0.5 + 0.6 * (x * math.cos(angle) + y * math.sin(angle))
    mix += rng.uniform(0.1, 0.5) * (clouds(rng, (SIDE, SIDE), int(rng.integers(3, 9))) - 0.5)
    texture = str(rng.choice(TEXTURES))
    mix += rng.uniform(0.03, 0.2) * pattern(texture, 3 * x, 3 * y, rng)
    mix = np.clip(mix, 0, 1)
    coarse = first[:, None, None] + mix * (second - first)[:, None, None]
    return coarse.repeat(OVERSAMPLING, axis=1).repeat(OVERSAMPLING, axis=2)


def _objects(class_ids: Sequence[int], tint: Colour, rng: np.random.Generator) -> list[Item]:
    """Objects at places that touch or overlap a little."""
    radii = rng.uniform(*RADIUS, len(class_ids))
    centres: list[np.ndarray] = []
    for radius in radii:
        best, best_gap = np.zeros(2), -np.inf
        for _ in range(6):
            centre = rng.uniform(0.75 * radius, SIDE - 0.75 * radius, 2)
            gaps = [np.hypot(*(centre - c)) - radius - r for c, r in zip(centres, radii, strict=False)]
            gap = min(gaps, default=0.0)
            if gap > best_gap:
                best, best_gap = centre, gap
            if gap > -0.35 * radius:
                break
        centres.append(best)
    return [_object(c, r, p, tint, rng) for c, r, p in zip(class_ids, radii, centres, strict=True)]


def _object(class_id: int, radius: float, centre: np.ndarray, tint: Colour, rng: np.random.Generator) -> Item:
    name = list(SHAPES)[class_id - 1]
    turn = rng.normal(0, 0.2 if name in UPRIGHT else 0.45)
    typical = rng.random() < TYPICAL_TEXTURE
    texture = TEXTURES[class_id % len(TEXTURES)] if typical else str(rng.choice(TEXTURES))
    hue = (class_id * 0.382 + rng.normal(0, 0.05)) % 1 if rng.random() < TYPICAL_HUE else None
    body = random_colour(rng, saturation=(0.5, 1), value=(0.35, 1), hue=hue, unlike=tint)
    second = random_colour(rng, saturation=(0.1, 1), value=(0.1, 1), unlike=body)
    return Item(
        _bend(SHAPES[name](rng), rng),
        _pose(radius, turn, rng),
        centre * OVERSAMPLING,
        class_id,
        texture,
        (body, body + rng.uniform(0.25, 0.6) * (second - body), second),
    )


def _clutter(rng: np.random.Generator, smallest: float, largest: float) -> Item:
    shape = CLUTTER[rng.integers(len(CLUTTER))]
    body, second = (random_colour(rng, saturation=(0.1, 1), value=(0.15, 1)) for _ in range(2))
    return Item(
        shape(rng),
        _pose(rng.uniform(smallest, largest), rng.uniform(0, 2 * np.pi), rng),
        rng.uniform(0, FINE, 2),
        BACKGROUND,
        str(rng.choice(TEXTURES)),
        (body, body + rng.uniform(0.2, 0.6) * (second - body), second),
    )


def _pose(radius: float, turn: float, rng: np.random.Generator) -> np.ndarray:
    """Mirror, stretch, slant and turn."""
    stretch = np.exp(rng.uniform(-0.16, 0.16))
    shape = np.array([[rng.choice([-1, 1]) * stretch, rng.uniform(-0.15, 0.15)], [0, 1 / stretch]])
    rotation = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    return radius * OVERSAMPLING * rotation @ shape


def _bend(outline: Outline, rng: np.random.Generator) -> Outline:
    """Bend a shape softly along both axes, all parts alike."""
    strength, phase = rng.uniform(0, 0.1, 2), rng.uniform(0, 2 * np.pi, 2)
    return [(p + strength * np.sin(2 * p[:, ::-1] + phase), tone) for p, tone in outline]


def _silhouette(item: Item) -> tuple[np.ndarray, int, int]:
    """Tones of an item (height, width), and top and left of where they lie on the fine canvas."""
    parts = [(polygon @ item.matrix.T + item.centre, tone) for polygon, tone in item.outline]
    corners = np.concatenate([polygon for polygon, _ in parts])
    left, top = (int(low) for low in np.clip(corners.min(axis=0) - 1, 0, FINE - 1))
    right, bottom = (int(high) for high in np.clip(corners.max(axis=0) + 2, 1, FINE))
    drawing = Image.new("L", (right - left, bottom - top))
    pen = ImageDraw.Draw(drawing)
    for polygon, tone in parts:
        pen.polygon([(float(x), float(y)) for x, y in polygon - (left, top)], fill=tone)
    return np.asarray(drawing), top, left


def _paint(canvas: np.ndarray, labels: np.ndarray, item: Item, rng: np.random.Generator) -> None:
    """Paint one item and its shadow into canvas and labels."""
    tones, top, left = _silhouette(item)
    bottom, right = top + tones.shape[0], left + tones.shape[1]
    inside = tones > 0

    if rng.random() < 0.5:  # the light comes from the upper left
        down, across = min(3 * OVERSAMPLING, FINE - bottom), min(2 * OVERSAMPLING, FINE - right)
        shadow = canvas[:, top + down : bottom + down, left + across : right + across]
        shadow *= np.where(inside, np.float32(0.65), np.float32(1))

    x = np.arange(left, right, dtype=np.float32) - np.float32(item.centre[0])
    y = (np.arange(top, bottom, dtype=np.float32) - np.float32(item.centre[1]))[:, None]
    inverse = np.linalg.inv(item.matrix).astype(np.float32)
    u, v = (row[0] * x + row[1] * y for row in inverse)
    mix = pattern(item.texture, u, v, rng)
    light = 1 - rng.uniform(0, 0.35) * np.tanh((x + y) / np.float32(np.abs(item.matrix).max()))
    detail = tones == DETAIL
    for plane, body, other, second in zip(canvas[:, top:bottom, left:right], *item.colours, strict=True):
        colour = np.where(detail, second, body + mix * (other - body)) * light
        np.copyto(plane, colour, where=inside)
    labels[top:bottom, left:right][inside] = item.label


def _samples(fine: np.ndarray) -> list[np.ndarray]:
    """The fine map as several coarse ones: first samples of all pixels, second samples, ..."""
    steps = range(OVERSAMPLING)
    return [fine[..., row::OVERSAMPLING, column::OVERSAMPLING] for row in steps for column in steps]


def _coarse_labels(labels: np.ndarray) -> np.ndarray:
    """Label of each image pixel, void where its samples disagree."""
    first, *others = _samples(labels)
    agree = np.logical_and.reduce([first == other for other in others])
    return np.where(agree, first, VOID).astype(np.uint8)


def _expose(canvas: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Average the fine canvas and take the photograph: uneven light, colour cast, exposure, sensor noise."""
    image = sum(_samples(canvas)) / np.float32(OVERSAMPLING**2)
    x = np.linspace(-0.5, 0.5, SIDE, dtype=np.float32)
    light = 1 + rng.uniform(-0.5, 0.5) * x + rng.uniform(-0.5, 0.5) * x[:, None]
    cast = rng.uniform(0.85, 1.1, (3, 1, 1)).astype(np.float32)
    image = np.clip(image * light * cast, 0, 1) ** float(np.exp(rng.uniform(-0.35, 0.35)))
    image += rng.uniform(0.005, 0.04) * rng.standard_normal(image.shape, dtype=np.float32)
    return (np.clip(image, 0, 1) * 255).astype(np.uint8).transpose(1, 2, 0)
