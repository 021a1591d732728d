"""A contact sheet: some images of a data set with their masks in colour and the names of the classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageOps

from gfss.common.errors import GfssError
from gfss.common.files import write_atomically
from gfss.data.catalog import VOID
from gfss.data.datasets.base import Dataset
from gfss.data.images import class_colours, overlay

TILE = 192  # side of an image
CAPTION = 28  # height of the two lines below it
GAP = 6


def choose(dataset: Dataset, count: int, seed: int = 0) -> list[int]:
    """Images for a sheet: the classes take turns, each with another image of its own."""
    rng = np.random.default_rng(seed)
    pools = [list(rng.permutation(dataset.images_of(c))) for c in range(1, len(dataset.classes) + 1)]
    chosen: dict[int, None] = {}
    while len(chosen) < count and any(pools):
        for pool in pools:
            if pool and len(chosen) < count:
                chosen.setdefault(int(pool.pop()))
    return list(chosen)


def contact_sheet(dataset: Dataset, path: Path, count: int = 24, columns: int = 6, seed: int = 0) -> None:
    """Write a contact sheet as PNG: every image beside the same image with its mask."""
    chosen = choose(dataset, count, seed)
    if not chosen:
        raise GfssError(f"no image of {dataset.name} shows a class; gfss data check says more")
    colours = class_colours(len(dataset.classes))
    width, height = 2 * TILE + GAP, TILE + CAPTION + GAP
    rows = -(-len(chosen) // columns)
    sheet = Image.new("RGB", (columns * width, rows * height), "white")
    for place, i in enumerate(chosen):
        row, column = divmod(place, columns)
        sheet.paste(_tile(dataset, i, colours), (column * width, row * height))
    with write_atomically(path) as file:
        sheet.save(file, format="PNG")


def _tile(dataset: Dataset, i: int, colours: np.ndarray) -> Image.Image:
    image, mask = dataset.image(i), dataset.mask(i)
    tile = Image.new("RGB", (2 * TILE, TILE + CAPTION), "white")
    for column, picture in enumerate((image, overlay(image, mask, colours))):
        tile.paste(ImageOps.contain(Image.fromarray(picture), (TILE, TILE)), (column * TILE, 0))
    draw = ImageDraw.Draw(tile)
    draw.text((2, TILE + 1), dataset.ids[i], fill="black")
    left = 2.0
    for value in np.unique(mask):
        if 0 < value < VOID:
            name = dataset.classes[value - 1]
            draw.text((left, TILE + 14), name, fill=tuple(int(part) for part in colours[value] * 0.8))
            left += draw.textlength(name) + 8
    return tile
