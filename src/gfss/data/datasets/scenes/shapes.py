"""Outlines of the objects in the embedded scenes, and of the clutter around them.

An outline is a list of (polygon, tone), painted in order. Polygons are (points, 2) arrays of x, y in a
frame where the object fills about [-1, 1] x [-1, 1] and y points down. Tone 1 is the textured body,
tone 2 a plain second colour, tone 0 a hole that shows what is behind. Parts overlap, because a bent
object would gape where they only touch. Every outline draws its own proportions, so no two objects of a
class are alike.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

HOLE, BODY, DETAIL = 0, 1, 2

Outline = list[tuple[np.ndarray, int]]
Shape = Callable[[np.random.Generator], Outline]


def star(rng: np.random.Generator) -> Outline:
    """Five or six spikes."""
    spikes = int(rng.choice([5, 5, 5, 6]))
    radius = np.tile([1.0, rng.uniform(0.38, 0.52)], spikes)
    angle = np.arange(2 * spikes) * np.pi / spikes - np.pi / 2
    return [(_polar(radius, angle), BODY)]


def ring(rng: np.random.Generator) -> Outline:
    """A disc with a round hole."""
    return [(_ellipse(0, 0, 0.95), BODY), (_ellipse(0, 0, rng.uniform(0.45, 0.65)), HOLE)]


def fish(rng: np.random.Generator) -> Outline:
    """Swims to the left: body, forked tail, back fin, eye."""
    height, fork = rng.uniform(0.42, 0.58), rng.uniform(0.6, 0.8)
    tail = _points((0.25, 0), (1, -rng.uniform(0.45, 0.65)), (fork, 0), (1, rng.uniform(0.45, 0.65)))
    fin = _points((-0.35, -height * 0.8), (0.1, -height - rng.uniform(0.2, 0.35)), (0.3, -height * 0.55))
    body = _ellipse(-0.25, 0, 0.75, height)
    return [(tail, BODY), (fin, BODY), (body, BODY), (_ellipse(-0.65, -0.12, 0.11), DETAIL)]


def flower(rng: np.random.Generator) -> Outline:
    """Round petals about a centre."""
    petals = int(rng.integers(5, 8))
    angle = 2 * np.pi * np.arange(petals) / petals
    width = rng.uniform(1.9, 2.3) / petals
    parts = [(_ellipse(0.62 * np.cos(a), 0.62 * np.sin(a), width), BODY) for a in angle]
    return [*parts, (_ellipse(0, 0, 0.45), BODY), (_ellipse(0, 0, rng.uniform(0.25, 0.36)), DETAIL)]


def moon(rng: np.random.Generator) -> Outline:
    """A crescent, open to the right."""
    tip = np.radians(rng.uniform(32, 52))
    centre = rng.uniform(0.4, 0.6)
    radius = np.hypot(np.cos(tip) - centre, np.sin(tip))
    inner_tip = np.arctan2(np.sin(tip), np.cos(tip) - centre)
    outer = _ellipse(0, 0, 1, start=tip, stop=2 * np.pi - tip)
    inner = _ellipse(centre, 0, radius, start=2 * np.pi - inner_tip, stop=inner_tip)
    return [(np.concatenate([outer, inner]) + np.array([0.2, 0]), BODY)]


def arrow(rng: np.random.Generator) -> Outline:
    """Points to the right."""
    shaft, head, neck = rng.uniform(0.17, 0.3), rng.uniform(0.6, 0.85), rng.uniform(-0.05, 0.25)
    upper = _points((-1, -shaft), (neck, -shaft), (neck, -head), (1, 0))
    return [(np.concatenate([upper, upper[2::-1] * (1, -1)]), BODY)]


def cross(rng: np.random.Generator) -> Outline:
    """Two bars of about equal length."""
    across, along = rng.uniform(0.22, 0.36, 2)
    bars = (_box(-1, -across, 1, across), _box(-along, -1, along, 1))
    return [(bar, BODY) for bar in bars]


def key(rng: np.random.Generator) -> Outline:
    """Bow with a hole, shaft, two teeth."""
    bow, shaft = rng.uniform(0.42, 0.52), rng.uniform(0.11, 0.16)
    teeth = rng.uniform(0.35, 0.5, 2)
    return [
        (_box(-0.3, -shaft, 1, shaft), BODY),
        (_box(0.78, 0, 1, teeth[0]), BODY),
        (_box(0.4, 0, 0.62, teeth[1]), BODY),
        (_ellipse(bow - 1, 0, bow), BODY),
        (_ellipse(bow - 1, 0, bow * rng.uniform(0.42, 0.58)), HOLE),
    ]


def tree(rng: np.random.Generator) -> Outline:
    """A fir: tiers of growing triangles on a trunk."""
    tiers = int(rng.integers(2, 4))
    trunk = rng.uniform(0.1, 0.17)
    parts: Outline = [(_box(-trunk, 0.5, trunk, 1), DETAIL)]
    step = 1.6 / (tiers + 0.6)
    for tier in range(tiers):
        top = -1 + tier * step
        half = (0.5 + 0.32 * (tier + 1) / tiers) * rng.uniform(0.85, 1)
        parts.append((_points((0, top), (half, top + 1.5 * step), (-half, top + 1.5 * step)), BODY))
    return parts


def heart(rng: np.random.Generator) -> Outline:
    """The sign of hearts."""
    t = np.linspace(0, 2 * np.pi, 48, endpoint=False)
    dent = rng.uniform(4.2, 5.8)
    x = 16 * np.sin(t) ** 3
    y = 13 * np.cos(t) - dent * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
    return [(np.stack([x / 17, -(y + 2.5) / 16], axis=1), BODY)]


def house(rng: np.random.Generator) -> Outline:
    """Walls, roof, chimney, door and window."""
    eaves, half = rng.uniform(-0.25, 0), rng.uniform(0.65, 0.78)
    side = rng.choice([-1.0, 1.0])
    door, pane = _box(0.12, 0.35, 0.45, 0.95), _box(-0.48, 0.2, -0.12, 0.52)
    return [
        (_box(0.35, -0.9, 0.58, eaves) * (side, 1), BODY),
        (_box(-half, eaves - 0.15, half, 0.95), BODY),
        (_points((-half - 0.18, eaves), (0, -1), (half + 0.18, eaves)), DETAIL),
        (door * (side, 1), DETAIL),
        (pane * (side, 1), DETAIL),
    ]


def mushroom(rng: np.random.Generator) -> Outline:
    """A spotted half-round cap on a plain stem."""
    rim, stem = rng.uniform(-0.05, 0.15), rng.uniform(0.2, 0.32)
    cap = _ellipse(0, rim, 1, rim + rng.uniform(0.75, 0.9), start=np.pi, stop=2 * np.pi)
    foot = _points((-stem, rim - 0.2), (stem, rim - 0.2), (stem * 1.35, 0.95), (-stem * 1.35, 0.95))
    spots = [(_ellipse(x, rim - y, 0.13), DETAIL) for x, y in ((-0.5, 0.25), (0.05, 0.5), (0.5, 0.22))]
    return [(foot, DETAIL), (cap, BODY), *spots]


def blob(rng: np.random.Generator) -> Outline:
    """Clutter: a smooth random lump."""
    angle = np.linspace(0, 2 * np.pi, 40, endpoint=False)
    lobes = [rng.uniform(0, 0.22) * np.cos(k * angle + rng.uniform(0, 7)) for k in (2, 3)]
    return [(_polar(0.75 + lobes[0] + lobes[1], angle), BODY)]


def ribbon(rng: np.random.Generator) -> Outline:
    """Clutter: a long thin bent stroke."""
    x = np.linspace(-1, 1, 20)
    y = rng.uniform(0, 0.4) * np.sin(rng.uniform(1, 5) * x + rng.uniform(0, 7))
    half = rng.uniform(0.03, 0.09)
    return [(np.concatenate([np.stack([x, y - half], 1), np.stack([x, y + half], 1)[::-1]]), BODY)]


def shard(rng: np.random.Generator) -> Outline:
    """Clutter: a triangle or an uneven four-sided figure."""
    corners = int(rng.integers(3, 5))
    angle = (np.arange(corners) + rng.uniform(-0.25, 0.25, corners)) * 2 * np.pi / corners
    return [(_polar(rng.uniform(0.6, 1, corners), angle), BODY)]


# The order keeps look-alikes (star, flower, cross; ring, moon, key; arrow, tree, house; tree, mushroom)
# in different blocks of three, so that every fold's new classes resemble known ones.
SHAPES: dict[str, Shape] = {
    shape.__name__: shape for shape in (star, ring, fish, flower, moon, arrow, cross, key, tree, heart, house, mushroom)
}
UPRIGHT = ("tree", "heart", "house", "mushroom")  # these lean less than the others
CLUTTER: tuple[Shape, ...] = (blob, ribbon, shard)


def _points(*points: tuple[float, float]) -> np.ndarray:
    return np.array(points, dtype=float)


def _box(left: float, top: float, right: float, bottom: float) -> np.ndarray:
    return _points((left, top), (right, top), (right, bottom), (left, bottom))


def _polar(radius: np.ndarray, angle: np.ndarray) -> np.ndarray:
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)


def _ellipse(
    x: float, y: float, rx: float, ry: float | None = None, start: float = 0, stop: float = 2 * np.pi
) -> np.ndarray:
    angle = np.linspace(start, stop, 36)
    return np.stack([x + rx * np.cos(angle), y + (ry or rx) * np.sin(angle)], axis=1)
