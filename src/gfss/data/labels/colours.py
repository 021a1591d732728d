"""Masks with one colour per class and a ``labelmap.txt``, as CVAT exports them ("Segmentation mask 1.1").

A line of ``labelmap.txt`` is ``name:r,g,b:parts:actions``; parts and actions are not used here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gfss.common.errors import GfssError, quoted
from gfss.common.files import read_lines
from gfss.data.catalog import BACKGROUND, BACKGROUND_NAMES, VOID
from gfss.data.datasets.base import unique_names
from gfss.data.images import open_image, read_colours
from gfss.data.labels.base import Labels, match

VOID_NAMES = ("void", "ignore", "ignored", "__ignore__")


@dataclass(frozen=True)
class LabelMap:
    """What the colours of a mask mean.

    Attributes:
        classes: class names without background and void.
        values: mask value of each line.
        colours: from colour (24 bits) to mask value.
        source: the file.
    """

    classes: tuple[str, ...]
    values: tuple[int, ...]
    colours: dict[int, int]
    source: Path


def read_colour_masks(
    masks: dict[str, Path], images: dict[str, Path], known: LabelMap, folder: Path, only: bool = False
) -> Labels:
    """Colour masks; black is background unless the label map says otherwise."""
    pictures, files = match(masks, images, folder, only)

    def draw(i: int) -> np.ndarray:
        return _draw(files[i], known)

    return Labels(f"colour masks with {known.source.name}", known.classes, pictures, files, draw, also=(known.source,))


def read_labelmap(path: Path, lines: Sequence[str] | None = None) -> LabelMap:
    """Read ``labelmap.txt``, or lines of that form from another file."""
    names: list[str] = []
    values: list[int] = []
    colours: dict[int, int] = {}
    for line in read_lines(path) if lines is None else lines:
        if line.startswith("#"):
            continue
        name, colour = _parse(line, path)
        if colour in colours:
            raise GfssError(f"{path} gives '{name:.60}' a colour that another line has; every class needs its own")
        if name.lower() in BACKGROUND_NAMES:
            values.append(BACKGROUND)
        elif name.lower() in VOID_NAMES:
            values.append(VOID)
        else:
            names.append(name)
            values.append(len(names))
        colours[colour] = values[-1]
    colours.setdefault(0, BACKGROUND)
    return LabelMap(unique_names(names, path), tuple(values), colours, path)


def _parse(line: str, path: Path) -> tuple[str, int]:
    try:
        name, colour = line.split(":")[:2]
        red, green, blue = (int(part) for part in colour.split(","))
    except ValueError:
        form = "name,r,g,b" if path.suffix == ".csv" else "name:r,g,b::"
        raise GfssError(f"{path} has the line {quoted(line, 60)}; expected '{form}'") from None
    if not all(0 <= part <= 255 for part in (red, green, blue)):
        raise GfssError(f"{path} gives '{name:.60}' the colour {colour:.60}; each part is 0 to 255")
    return name, red << 16 | green << 8 | blue


def _draw(path: Path, known: LabelMap) -> np.ndarray:
    rgb = read_colours(path).astype(np.int64)
    packed = rgb[..., 0] << 16 | rgb[..., 1] << 8 | rgb[..., 2]
    found, where = np.unique(packed, return_inverse=True)
    strange = [int(colour) for colour in found if int(colour) not in known.colours]
    if strange and _is_grey(path) and rgb.max() < len(known.values):  # one channel: the number of the line
        return np.array(known.values, dtype=np.uint8)[rgb[..., 0]]
    if strange:
        red, green, blue = strange[0] >> 16, strange[0] >> 8 & 255, strange[0] & 255
        raise GfssError(
            f"{path} has the colour {red},{green},{blue} that {known.source.name} does not name; add a line for it or "
            "correct the mask"
        )
    table = np.array([known.colours[int(colour)] for colour in found], dtype=np.uint8)
    return table[where].reshape(packed.shape)


def _is_grey(path: Path) -> bool:
    with open_image(path) as file:
        return file.mode == "L"
