"""PNG masks: index or palette masks, binary masks of one class, and a folder of binary masks per class."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from gfss.common.errors import GfssError
from gfss.data.catalog import BACKGROUND, VOID
from gfss.data.datasets.base import pixel_counts
from gfss.data.datasets.folder import pictures_in, read_class_names, unique_names
from gfss.data.images import open_picture, read_colours, read_mask
from gfss.data.labels.base import Labels, match, on_top

INDEX, BINARY = "index masks", "binary masks"
GREY = 64  # beside 255, a value from here on may be the uncertain rim of a trimap


def read_index_masks(folder: Path, images: dict[str, Path], root: Path, only: bool = False) -> Labels:
    """Masks whose values are class ids; palette masks likewise, by their index. Names are in ``classes.txt``.

    Black and white masks are taken for what they are if there is one class; else 255 is void.
    """
    classes, masks = read_class_names(root), pictures_in(folder)
    if len(classes) == 1 and _are_black_and_white(masks.values()):
        return read_binary_masks(masks, images, classes[0], folder, only)
    pictures, files = match(masks, images, folder, only)
    return Labels(INDEX, classes, pictures, files, lambda i: read_mask(files[i]))


def _are_black_and_white(files: Iterable[Path]) -> bool:
    """Whether masks have no values but 0 and 255, and not 0 alone."""
    white = False
    for file in files:
        counts = pixel_counts(read_mask(file))
        if counts[1:VOID].any():
            return False
        white = white or bool(counts[VOID])
    return white


def read_binary_masks(
    masks: dict[str, Path], images: dict[str, Path], class_name: str, source: Path, only: bool = False
) -> Labels:
    """Masks of one class: one value besides 0 is the class; where there are two, 255 is void."""
    pictures, files = match(masks, images, source, only)
    value = foreground(files)

    def draw(i: int) -> np.ndarray:
        mask = read_grey(files[i])
        result = np.where(mask == VOID, VOID, BACKGROUND).astype(np.uint8)
        result[mask == value] = 1
        return result

    return Labels(BINARY, (class_name,), pictures, files, draw)


def read_class_folders(folder: Path, images: dict[str, Path], only: bool = False) -> Labels:
    """Binary masks in one sub-folder per class: ``masks/dog/ID.png``; small objects lie on top."""
    classes = unique_names(sorted(path.name for path in folder.iterdir() if path.is_dir()), folder)
    masks = [pictures_in(folder / name) for name in classes]
    names = {name: path for group in masks for name, path in group.items()}
    pictures, files = match(dict(sorted(names.items())), images, folder, only)
    values = [foreground(list(group.values())) for group in masks]

    def draw(i: int) -> np.ndarray:
        grey = [
            (class_id, read_grey(group[files[i].stem]), value)
            for class_id, (group, value) in enumerate(zip(masks, values, strict=True), start=1)
            if files[i].stem in group
        ]
        if len({mask.shape for _, mask, _ in grey}) > 1:
            raise GfssError(f"the masks called {files[i].name} under {folder} differ in size; they must have one size")
        result = on_top([(class_id, mask == value) for class_id, mask, value in grey])
        for _, mask, value in grey:
            if value != VOID:
                result[(result == BACKGROUND) & (mask == VOID)] = VOID
        return result

    every = tuple(path for group in masks for path in group.values())
    return Labels("binary masks, a folder per class", classes, pictures, files, draw, also=every)


def foreground(files: Sequence[Path]) -> int:
    """The value that stands for the class in a set of binary masks, see :func:`class_value`."""
    return class_value([pixel_counts(read_grey(path)) for path in files], [str(path) for path in files])


def class_value(counts: Sequence[np.ndarray], names: Sequence[str]) -> int:
    """The value of the class in masks of one class: the one besides 0; where there are two, 255 is void.

    Args:
        counts: pixels of every value (256,) of each mask.
        names: of the masks, for messages.
    """
    first: dict[int, str] = {}
    for count, name in zip(counts, names, strict=True):
        for value in np.flatnonzero(count):
            first.setdefault(int(value), name)
    values = [value for value in first if value not in (BACKGROUND, VOID)]
    if len(values) > 1:
        strange = first[values[1]]
        advice = "save it with two values and without smoothed edges, or name the classes in classes.txt"
        if strange.lower().endswith((".jpg", ".jpeg")):
            advice = "a JPG cannot hold a mask, it blurs the edges; save it as PNG"
        raise GfssError(
            f"{strange} is no mask of one class: values {values[0]} and {values[1]} occur beside 0; {advice}"
        )
    if not values:
        return VOID
    value = values[0]
    if VOID in first and not any(count[value] and count[VOID] for count in counts):
        raise GfssError(
            f"{first[value]} has the values 0 and {value} but {first[VOID]} has 0 and {VOID}; "
            "save all masks with the same value for the class"
        )
    pixels = np.sum(counts, axis=0)
    if value >= GREY and pixels[VOID] > pixels[value]:
        raise GfssError(
            f"{first[value]} has the values 0, {value} and {VOID}, and {VOID} means void, not the object; "
            f"save the object as 1 and what is uncertain as {VOID}"
        )
    return value


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
