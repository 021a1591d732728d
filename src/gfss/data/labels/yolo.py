"""YOLO segment labels: a text file per image, a line per object: class number, then points as shares of the size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image, ImageDraw

from gfss.common.errors import GfssError
from gfss.common.files import read_lines, refuse_special
from gfss.data.catalog import BACKGROUND
from gfss.data.datasets.base import unique_names
from gfss.data.images import image_size
from gfss.data.labels.base import Labels
from gfss.data.labels.outlines import refuse_endless
from gfss.data.labels.trees import image_files, split_of

SLACK = 0.01  # of the size that a point may lie outside the image


def find_yolo(root: Path) -> Path | None:
    """The file with the names of a YOLO data set in a folder, the folder itself if it has none, None if it is none."""
    labels = next((path for path in _label_folders(root) if any(path.glob("*.txt"))), None)
    if labels is None:
        return None
    listing = next((path for path in sorted(root.glob("*.y*ml")) if _names(path, required=False)), None)
    usual = root / "data.yaml"
    return listing or (usual if usual.exists() else root)


def read_yolo(listing: Path, images: Sequence[Path] = ()) -> Labels:
    """Images with YOLO segment labels; images without a label file are unlabelled, an empty one says "nothing here".

    Args:
        listing: ``data.yaml``, or the folder of the data set where there is none.
        images: only these files or folders.
    """
    root = listing if listing.is_dir() else listing.parent
    chosen = [file for path in images or [root] for file in (image_files(path) if path.is_dir() else [path])]
    labelled: list[tuple[Path, Path]] = []
    unlabelled: list[Path] = []
    for image in chosen:
        label = _label_file(image)
        if label is not None:
            labelled.append((image, label))
        elif "images" in image.parts:
            unlabelled.append(image)
    if not labelled:
        raise GfssError(f"no image under {root} has a label; YOLO keeps images/a.jpg beside labels/a.txt")
    names = _names(listing, required=True) if listing.is_file() else _unnamed([label for _, label in labelled], root)
    classes = unique_names(names, listing)
    paths, files = tuple(image for image, _ in labelled), tuple(label for _, label in labelled)

    def draw(i: int) -> np.ndarray:
        return _draw(files[i], image_size(paths[i]), classes)

    splits = tuple(split_of(path, root) for path in paths)
    also = (listing,) if listing.is_file() else ()
    return Labels("YOLO segment labels", classes, paths, files, draw, also, tuple(unlabelled), splits)


def _label_folders(root: Path) -> list[Path]:
    """Folders that would hold label files: ``labels``, with or without splits."""
    tops = [*root.glob("labels"), *root.glob("*/labels")]
    return [folder for top in tops for folder in (top, *sorted(top.glob("*/"))) if folder.is_dir()]


def _label_file(image: Path) -> Path | None:
    """``labels/…/a.txt`` of ``images/…/a.jpg``; the last folder of that name counts."""
    parts = list(image.with_suffix(".txt").parts)
    if "images" in parts:
        parts[len(parts) - 1 - parts[::-1].index("images")] = "labels"
        path = Path(*parts)
        return path if path.is_file() else None
    return None


def _names(path: Path, required: bool) -> list[str]:
    """Class names of ``data.yaml`` in order of number."""
    refuse_special(path)
    try:
        content: Any = yaml.safe_load(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError, ValueError):
        if required:
            raise GfssError(f"{path} is not readable YAML of plain values; write it again") from None
        content = None
    names = content.get("names") if isinstance(content, dict) else None
    if isinstance(names, dict) and names and all(type(key) is int and key >= 0 for key in names):
        if sorted(names) != list(range(len(names))):
            raise GfssError(f"{path} numbers its names {sorted(names)[:8]}; expected 0, 1, 2 ... without gaps")
        names = [names[i] for i in range(len(names))]
    if isinstance(names, list) and names and all(isinstance(name, str | int) for name in names):
        return [str(name) for name in names]
    if required:
        raise GfssError(f"{path} has no list of class names; a YOLO data.yaml has it under 'names'")
    return []


def _unnamed(files: Sequence[Path], root: Path) -> list[str]:
    """Names where there is no data.yaml: those of classes.txt, else the numbers themselves."""
    listing = next((f / "classes.txt" for f in (root, root / "labels") if (f / "classes.txt").is_file()), None)
    if listing is not None:
        return read_lines(listing)
    most = max((value for file in files for value, _ in _objects(file)), default=0)
    return [str(value) for value in range(most + 1)]


def _objects(path: Path) -> list[tuple[int, np.ndarray]]:
    """Class number and points (points, 2) of every object."""
    found: list[tuple[int, np.ndarray]] = []
    for number, line in enumerate(read_lines(path), start=1):
        words = line.split()
        try:
            value = int(words[0])
            points = np.array(words[1:], dtype=np.float64)
        except (ValueError, OverflowError):
            raise GfssError(f"{path}, line {number} is '{line:.60}'; expected a class number and points") from None
        if len(points) == 4:
            raise GfssError(f"{path}, line {number} is a box; boxes alone cannot be learned from, export segments")
        if not 0 <= value < 255 or len(points) < 6 or len(points) % 2:
            raise GfssError(
                f"{path}, line {number} has class {words[0]:.20} and {len(points)} numbers; expected a class number "
                "from 0 on, and x y of three points or more"
            )
        if not ((points >= -SLACK) & (points <= 1 + SLACK)).all():
            raise GfssError(f"{path}, line {number} has points outside the image; expected shares from 0 to 1")
        found.append((value, points.reshape(-1, 2)))
    return found


def _draw(path: Path, size: tuple[int, int], classes: tuple[str, ...]) -> np.ndarray:
    """The mask: small objects on top of large ones."""
    height, width = size
    objects = [(value, points * (width, height)) for value, points in _objects(path)]
    refuse_endless((points for _, points in objects), str(path))
    canvas = Image.new("L", (width, height), BACKGROUND)
    for value, points in sorted(objects, key=lambda pair: -_area(pair[1])):
        if value >= len(classes):
            raise GfssError(
                f"{path} has class {value} but {len(classes)} are named (0 to {len(classes) - 1}); "
                "add its name to data.yaml"
            )
        ImageDraw.Draw(canvas).polygon([(float(x), float(y)) for x, y in points], fill=value + 1, outline=value + 1)
    return np.asarray(canvas)


def _area(points: np.ndarray) -> float:
    """Area of a polygon (shoelace formula)."""
    x, y = points.T
    return float(abs(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2)
