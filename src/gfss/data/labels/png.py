"""PNG masks: index or palette masks, binary masks of one class, and a folder of binary masks per class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gfss.data.catalog import BACKGROUND, VOID
from gfss.data.folder import pictures_in, read_class_names, unique_names
from gfss.data.labels.base import Labels, match, on_top
from gfss.data.pictures import open_picture, read_colours, read_mask
from gfss.errors import GfssError

INDEX = "index masks"


def read_index_masks(folder: Path, images: dict[str, Path], root: Path) -> Labels:
    """Masks whose values are class ids; palette masks likewise, by their index. Names are in ``classes.txt``."""
    pictures, files = match(pictures_in(folder), images, folder)
    return Labels(INDEX, read_class_names(root), pictures, files, lambda i: read_mask(files[i]))


def read_binary_masks(masks: dict[str, Path], images: dict[str, Path], class_name: str, source: Path) -> Labels:
    """Masks of one class: one value besides 0 is the class; where there are two, 255 is void."""
    pictures, files = match(masks, images, source)
    value = foreground(files)

    def draw(i: int) -> np.ndarray:
        mask = read_grey(files[i])
        result = np.where(mask == VOID, VOID, BACKGROUND).astype(np.uint8)
        result[mask == value] = 1
        return result

    return Labels("binary masks", (class_name,), pictures, files, draw)


def read_class_folders(folder: Path, images: dict[str, Path]) -> Labels:
    """Binary masks in one sub-folder per class: ``masks/dog/ID.png``; small objects lie on top."""
    classes = unique_names(sorted(path.name for path in folder.iterdir() if path.is_dir()), folder)
    masks = [pictures_in(folder / name) for name in classes]
    names = {name: path for group in masks for name, path in group.items()}
    pictures, files = match(dict(sorted(names.items())), images, folder)
    values = [foreground(list(group.values())) for group in masks]

    def draw(i: int) -> np.ndarray:
        layers = [
            (class_id, read_grey(group[files[i].stem]) == value)
            for class_id, (group, value) in enumerate(zip(masks, values, strict=True), start=1)
            if files[i].stem in group
        ]
        if len({area.shape for _, area in layers}) > 1:
            raise GfssError(f"the masks called {files[i].name} under {folder} differ in size; they must have one size")
        return on_top(layers)

    every = tuple(path for group in masks for path in group.values())
    return Labels("binary masks, a folder per class", classes, pictures, files, draw, also=every)


def foreground(files: Sequence[Path]) -> int:
    """The value that stands for the class in a set of binary masks; 255 is void only beside another value."""
    found: dict[int, Path] = {}
    for path in files:
        for value in np.unique(read_grey(path)):
            found.setdefault(int(value), path)
    values = [value for value in found if value not in (BACKGROUND, VOID)]
    if len(values) > 1:
        raise GfssError(
            f"{found[values[1]]} is no binary mask: values {values[0]} and {values[1]} occur beside 0; save it with "
            "two values and without smoothed edges, or name the classes in classes.txt"
        )
    return values[0] if values else VOID


def read_grey(path: Path) -> np.ndarray:
    """A black and white picture in any mode as (height, width) uint8; of a coloured palette the index counts."""
    with open_picture(path) as file:
        mode = file.mode
    if mode in ("L", "1"):
        return read_mask(path)
    rgb = read_colours(path)
    if (rgb == rgb[..., :1]).all():
        return rgb[..., 0]
    if mode == "P":
        return read_mask(path)
    raise GfssError(
        f"{path} is a colour (RGB) mask; save black and white, or put a labelmap.txt with the colours beside it"
    )
