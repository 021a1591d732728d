"""labelme: one JSON file per image with polygons, rectangles, circles or painted masks."""

from __future__ import annotations

import base64
import binascii
import io
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PureWindowsPath
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from gfss.common.errors import GfssError
from gfss.common.files import is_file, read_json, read_lines
from gfss.common.progress import note
from gfss.data.catalog import BACKGROUND, BACKGROUND_NAMES, VOID
from gfss.data.datasets.base import unique_names
from gfss.data.images import UNREADABLE, image_size
from gfss.data.labels.base import Labels, match
from gfss.data.labels.colours import VOID_NAMES
from gfss.data.labels.outlines import refuse_endless

SLACK = 2.0  # pixels that a point may lie outside the image: a hand at the edge, not an image of another size
POLYGONS = ("polygon", "rotation", "oriented_rectangle")
AREAS = (*POLYGONS, "rectangle", "circle", "mask")  # the other shapes (points, lines) have no area


def read_labelme(files: Sequence[Path], images: dict[str, Path], root: Path, only: bool = False) -> Labels:
    """labelme files and their images: of the same name, or as the file's ``imagePath`` says.

    Classes are those of ``classes.txt`` if there is one, else all labels in alphabetical order.
    """
    contents = {path: _read(path) for path in files}
    named = {path.stem: _beside(path, content) for path, content in contents.items()}
    beside = {} if only else {name: path for name, path in named.items() if is_file(path)}
    paths, found = match({path.stem: path for path in files}, beside | images, root, only)
    labels = {str(shape["label"]) for content in contents.values() for shape in _areas(content)}
    listing = root / "classes.txt"
    candidates = read_lines(listing) if listing.exists() else sorted(labels)
    special = (*BACKGROUND_NAMES, *VOID_NAMES)  # shapes of these have a meaning without being a class
    classes = unique_names([name for name in candidates if name not in special], listing if listing.exists() else root)
    kinds = Counter(_kind(shape) for content in contents.values() for shape in content["shapes"])
    for kind, count in kinds.items():
        if kind not in AREAS:
            note(f"{count} shape(s) of kind '{kind}' in {root} have no area and were left out")

    def draw(i: int) -> np.ndarray:
        return _draw(contents[found[i]], found[i], paths[i], classes)

    return Labels("labelme JSON", classes, paths, found, draw)


def _read(path: Path) -> dict[str, Any]:
    content = read_json(path)
    shapes = content.get("shapes") if isinstance(content, dict) else None
    if not isinstance(shapes, list) or not all(isinstance(s, dict) and "label" in s and "points" in s for s in shapes):
        raise GfssError(f"{path} is not a labelme file: expected 'shapes', a list with 'label' and 'points'")
    return content


def _beside(path: Path, content: dict[str, Any]) -> Path:
    """The image that a labelme file names; the path may have been written on Windows."""
    return path.parent / PureWindowsPath(str(content.get("imagePath") or path.stem)).as_posix()


def _areas(content: dict[str, Any]) -> list[dict[str, Any]]:
    return [shape for shape in content["shapes"] if _kind(shape) in AREAS]


def _kind(shape: dict[str, Any]) -> str:
    return str(shape.get("shape_type", "polygon"))


def _draw(content: dict[str, Any], path: Path, image: Path, classes: tuple[str, ...]) -> np.ndarray:
    """The mask: small shapes on top of large ones."""
    height, width = image_size(image)
    drawn_on = (content.get("imageHeight") or height, content.get("imageWidth") or width)
    if drawn_on != (height, width):
        raise GfssError(
            f"{path} was drawn on an image of {drawn_on[1]} x {drawn_on[0]} but {image.name} is {width} x {height}; "
            "they must have the same size"
        )
    canvas = Image.new("L", (width, height), BACKGROUND)
    shapes = [(shape, _outline(shape, path, width, height)) for shape in _areas(content)]
    refuse_endless((np.array(outline) for _, outline in shapes), str(path))
    for shape, outline in sorted(shapes, key=lambda pair: -_area(pair[1])):
        value = _value(str(shape["label"]), classes, path)
        if shape.get("shape_type") == "mask":
            stamp = _painted(shape, path, (width, height))
            canvas.paste(value, (round(outline[0][0]), round(outline[0][1])), stamp)
        else:
            ImageDraw.Draw(canvas).polygon(outline, fill=value, outline=value)
    return np.asarray(canvas)


def _value(label: str, classes: tuple[str, ...], path: Path) -> int:
    if label in VOID_NAMES:
        return VOID
    if label in BACKGROUND_NAMES:
        return BACKGROUND
    if label not in classes:
        raise GfssError(f"{path} has the label '{label}' that classes.txt does not name; add it or correct the label")
    return classes.index(label) + 1


def _outline(shape: dict[str, Any], path: Path, width: int, height: int) -> list[tuple[float, float]]:
    """Corners of a shape as (x, y); circles become polygons of 64 corners."""
    kind = _kind(shape)
    try:
        corners = np.asarray(shape["points"], dtype=np.float64).reshape(-1, 2)
    except (TypeError, ValueError, OverflowError):
        raise GfssError(f"{path} has a '{shape['label']}' with points that are not numbers; draw it again") from None
    if not np.isfinite(corners).all():
        raise GfssError(f"{path} has a '{shape['label']}' with points that are not numbers; draw it again")
    outside = ~((corners >= -SLACK) & (corners <= (width + SLACK, height + SLACK))).all(axis=1)
    if outside.any():
        x, y = corners[outside][0]
        raise GfssError(
            f"{path} has a '{shape['label']}' {kind} with the point ({x:.0f}, {y:.0f}) outside the image of "
            f"{width} x {height}; it was drawn on an image of another size, label this one"
        )
    refuse_endless([corners], str(path))
    points = [(x, y) for x, y in corners.tolist()]
    if len(points) < 2 or (kind in POLYGONS and len(points) < 3):
        raise GfssError(f"{path} has a '{shape['label']}' {kind} with {len(points)} point(s); draw it again")
    if kind in ("rectangle", "mask"):  # two opposite corners, or all four
        (left, right), (top, bottom) = ((min(values), max(values)) for values in zip(*points, strict=True))
        points = [(left, top), (right, top), (right, bottom), (left, bottom)]
    return _circle(points) if kind == "circle" else points


def _circle(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Corners of a circle given by its centre and a point on it; the circle itself may leave the image."""
    (x, y), (edge_x, edge_y) = points[:2]
    radius = math.hypot(edge_x - x, edge_y - y)
    angles = [2 * math.pi * step / 64 for step in range(64)]
    return [(x + radius * math.cos(angle), y + radius * math.sin(angle)) for angle in angles]


def _area(outline: list[tuple[float, float]]) -> float:
    """Area of a polygon (shoelace formula)."""
    following = outline[1:] + outline[:1]
    return abs(sum(x0 * y1 - x1 * y0 for (x0, y0), (x1, y1) in zip(outline, following, strict=True))) / 2


def _painted(shape: dict[str, Any], path: Path, size: tuple[int, int]) -> Image.Image:
    """The painted mask of a shape: a PNG written into the JSON file, cut out at the shape's box."""
    try:
        with Image.open(io.BytesIO(base64.b64decode(shape["mask"])), formats=("PNG",)) as file:
            if file.width > size[0] or file.height > size[1]:
                raise GfssError(f"{path} has a '{shape['label']}' mask that is larger than the image; paint it again")
            return file.convert("1")
    except (*UNREADABLE, KeyError, TypeError, binascii.Error):
        raise GfssError(f"{path} has a '{shape['label']}' mask that cannot be read; paint it again") from None
