"""Images and masks as users have them: paths, folders, label files, arrays, PIL pictures."""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from PIL import Image, ImageOps

from gfss.common.errors import GfssError
from gfss.common.progress import note
from gfss.data.catalog import BACKGROUND, VOID
from gfss.data.images import IMAGE_SUFFIXES, read_image
from gfss.data.labels import Labels, read_labels
from gfss.data.labels.base import ClassMask
from gfss.data.labels.labelme import read_labelme
from gfss.data.labels.png import BINARY, class_value, read_grey

ImageLike: TypeAlias = str | Path | np.ndarray | Image.Image
LABELME = "labelme"  # as a source of masks: the JSON files beside the images


@dataclass(frozen=True)
class Labelled:
    """A labelled image. Its mask may be all 0: the image is known not to show the class.

    Attributes:
        id: name of the image.
        image: (height, width, 3) uint8.
        mask: (height, width) uint8: 1 the class, 0 the rest, 255 void.
        others: (height, width) uint8: value i + 1 where the label file shows ``names[i]``, another class than the one
            asked for, 0 elsewhere; None where the labels are of one class.
        names: classes of ``others``.
    """

    id: str
    image: np.ndarray
    mask: np.ndarray
    others: np.ndarray | None = None
    names: tuple[str, ...] = ()

    @property
    def shows(self) -> bool:
        """Whether the class is in the image."""
        return bool((self.mask == 1).any())


def as_image(source: ImageLike, name: str = "the image") -> np.ndarray:
    """Any picture as (height, width, 3) uint8; files are read by :func:`gfss.data.images.read_image`.

    Args:
        source: a path, a PIL picture, or an array (height, width[, 1, 3 or 4]) of bytes, 16-bit values or [0, 1].
        name: what to call it in an error.
    """
    if isinstance(source, str | Path):
        return read_image(source)
    if isinstance(source, Image.Image):
        turned = ImageOps.exif_transpose(source)
        plain = turned.mode in ("L", "RGB", "RGBA", "F") or turned.mode.startswith("I")
        source = np.asarray(turned if plain else turned.convert("RGBA"))
    values = np.asarray(source)
    if values.ndim == 2:
        values = values[..., None]
    if values.ndim != 3 or values.shape[2] not in (1, 3, 4) or 0 in values.shape:
        raise GfssError(
            f"{name} has shape {np.shape(source)}; expected (height, width), (height, width, 3) or (height, width, 4)"
        )
    values = _as_bytes(values, name)
    if values.shape[2] == 4:
        opacity = values[..., 3:] / 255
        values = np.round(values[..., :3] * opacity + 255 * (1 - opacity)).astype(np.uint8)
    return np.repeat(values, 3, axis=2) if values.shape[2] == 1 else values


def image_id(source: ImageLike, number: int) -> str:
    """A name for a picture: its file's, else its number."""
    return readable_name(Path(source)) if isinstance(source, str | Path) else f"image {number}"


def readable_name(path: Path) -> str:
    """A file's name; bytes in it that are no text become question marks, so that it can be written down."""
    return path.name.encode("utf-8", "replace").decode()


def find_images(sources: Iterable[str | Path]) -> list[Path]:
    """Image files of paths, folders and glob patterns, each once, in the order given."""
    found: dict[Path, None] = {}
    for source in sources:
        path = Path(source)
        if path.is_dir():
            inside = [p for p in sorted(path.iterdir()) if p.suffix.lower() in IMAGE_SUFFIXES and p.name[0] != "."]
        elif path.exists():
            inside = [path]
        else:
            inside = [Path(name) for name in sorted(glob.glob(str(source)))]
        if not inside:
            raise GfssError(
                f"no images found in {source}; give an image, a folder of images or a pattern such as '*.jpg'"
            )
        found |= dict.fromkeys(inside)
    return list(found)


def output_names(paths: Sequence[Path]) -> list[str]:
    """A file name for the mask of every picture; the suffix comes in where two pictures differ in nothing else."""
    stems = Counter(path.stem for path in paths)
    names = [path.stem if stems[path.stem] == 1 else path.name.replace(".", "_") for path in paths]
    twice, times = Counter(names).most_common(1)[0]
    if times > 1:
        raise GfssError(f"{times} images are called '{twice}'; segment their folders one by one")
    return names


def labelled_images(
    images: ImageLike | Sequence[ImageLike],
    masks: ImageLike | Sequence[ImageLike],
    name: str,
    *,
    negatives: int = 0,
    void: int | None = None,
) -> list[Labelled]:
    """Labelled images of a class from whatever the user has.

    Images without the class come from label sources: empty masks, images on which other classes are labelled, label
    files without a shape. An image that has no label is none of them: nobody has said that the class is not there.

    Args:
        images: a picture or several; with one label source also a folder or several.
        masks: one mask per image, or one label source: a folder, ``labelme``, a COCO ``.json`` or a CVAT ``.zip``.
        name: the class; binary masks show it, other label files call it so; a number is a value of index masks.
        negatives: at most so many images of a label source that do not show the class, the first ones. Where every
            image came with a mask of its own, all are returned.
        void: the mask value that is neither the class nor anything else, where it is not 255.
    """
    pictures = _several(images)
    if isinstance(masks, str | Path) and not _is_mask_file(masks):
        return _from_source(pictures, masks, name, negatives, void)
    given = _several(masks)
    if len(pictures) != len(given):
        raise GfssError(f"{len(pictures)} image(s) and {len(given)} mask(s) were given; each image needs one mask")
    if not pictures:
        raise GfssError(f"no image was given; at least one is needed to teach '{name}'")
    ids = [image_id(picture, number) for number, picture in enumerate(pictures, start=1)]
    read = [as_image(picture, name) for picture, name in zip(pictures, ids, strict=True)]
    values = [_mask_values(mask, i) for mask, i in zip(given, ids, strict=True)]
    for i, image, mask in zip(ids, read, values, strict=True):
        if image.shape[:2] != mask.shape:
            raise GfssError(
                f"the mask of {i} is {mask.shape[1]} x {mask.shape[0]} but the image is "
                f"{image.shape[1]} x {image.shape[0]}; they must have the same size"
            )
    masked = _binary(values, ids, name, void)
    return [Labelled(i, image, mask) for i, image, mask in zip(ids, read, masked, strict=True)]


def shows_one_class(images: Sequence[ImageLike], masks: str | Path) -> bool:
    """Whether masks only say where one class is, whatever it is called."""
    files = [Path(picture) for picture in images if isinstance(picture, str | Path)]
    return _is_mask_file(masks) or _read_source(files, masks, "").format == BINARY


def _from_source(
    pictures: Sequence[ImageLike], source: str | Path, name: str, negatives: int, void: int | None
) -> list[Labelled]:
    files = [Path(p) for p in pictures if isinstance(p, str | Path)]
    if len(files) != len(pictures):
        raise GfssError(
            f"the labels in {source} belong to image files; give paths instead of arrays, or one mask per image"
        )
    labels = _read_source(files, source, name, void)
    if {"train", "val"} <= set(labels.splits):
        labels = labels.part("train")
        note(f"{len(labels)} images are those for training; the others are left for --validation")
    chosen: list[ClassMask] = []
    without: list[str] = []
    for one in labels.of_class(name):
        if not one.shows:
            without.append(readable_name(one.image))
        if one.shows or len(without) <= negatives:
            chosen.append(one)
    if len(without) == len(labels):
        raise GfssError(f"none of the {len(labels)} labelled images shows a '{name}'; label at least one")
    if labels.format == BINARY and without:
        used = min(len(without), negatives)
        note(
            f"{len(without)} of {len(labels)} masks are empty, {used} of them taken as images without the class: "
            f"{listed(without)}"
        )
    if labels.unlabelled:
        rest = [readable_name(path) for path in labels.unlabelled]
        note(f"{len(rest)} image(s) have no label and teach nothing: {listed(rest)}")
    return [_labelled(one, labels) for one in chosen]


def _labelled(one: ClassMask, labels: Labels) -> Labelled:
    several = len(labels.classes) > 1
    return Labelled(
        readable_name(one.image),
        read_image(one.image),
        one.mask,
        one.others if several else None,
        labels.classes if several else (),
    )


def listed(names: Sequence[str], most: int = 8) -> str:
    """Names with commas; of many the first ones."""
    return ", ".join(names[:most]) + " ..." * (len(names) > most)


def _read_source(files: list[Path], source: str | Path, name: str, void: int | None = None) -> Labels:
    if str(source) != LABELME:
        return read_labels(Path(source), files, name, void=void)
    if len(files) == 1 and files[0].is_dir():
        return read_labels(files[0])
    beside = [path.with_suffix(".json") for path in files]
    without = next((path for path, label in zip(files, beside, strict=True) if not label.is_file()), None)
    if without is not None or not files:
        raise GfssError(
            f"{without or 'nothing'} has no labelme file (.json) beside it; give images that have one, or one folder"
        )
    return read_labelme(beside, {path.stem: path for path in files}, files[0].parent, only=True)


def _is_mask_file(mask: str | Path) -> bool:
    return Path(mask).is_file() and Path(mask).suffix.lower() in IMAGE_SUFFIXES


def _several(items: ImageLike | Sequence[ImageLike]) -> list[ImageLike]:
    single = isinstance(items, str | Path | Image.Image) or (isinstance(items, np.ndarray) and items.ndim < 4)
    return [items] if single else list(items)  # type: ignore[list-item]


def _mask_values(mask: ImageLike, name: str) -> np.ndarray:
    if isinstance(mask, str | Path):
        return read_grey(Path(mask))
    values = np.asarray(ImageOps.exif_transpose(mask) if isinstance(mask, Image.Image) else mask)
    if (
        values.ndim == 2
        and values.dtype.kind in "bui"
        and values.size
        and not 0 <= values.min() <= values.max() <= VOID
    ):
        raise GfssError(
            f"the mask of {name} has values from {values.min()} to {values.max()}; "
            f"give integers from 0 to {VOID}, or bool"
        )
    if values.ndim != 2 or values.dtype.kind not in "bui" or values.size == 0:
        raise GfssError(
            f"the mask of {name} has shape {values.shape} and type {values.dtype}; give a (height, width) array of "
            "integers from 0 to 255, or of bool"
        )
    return values.astype(np.uint8)


def _binary(masks: Sequence[np.ndarray], ids: Sequence[str], name: str, given: int | None) -> list[np.ndarray]:
    """Masks as 1, 0 and 255: the class is the one value besides 0; 255 is void only where another value occurs.

    Args:
        name: of the class; a number is its value.
        given: the value that is void, where it is not 255.
    """
    every = set().union(*(np.unique(mask).tolist() for mask in masks))
    if name.isdecimal() and int(name) in every:
        void = VOID if given is None else given
        return [np.select([mask == int(name), mask == void], [1, VOID], 0).astype(np.uint8) for mask in masks]
    if given is not None:
        masks = [np.where(mask == given, VOID, np.where(mask == VOID, BACKGROUND, mask)) for mask in masks]
    counts = [dict(zip(*np.unique(mask, return_counts=True), strict=True)) for mask in masks]
    value, void = class_value(counts, [f"the mask of {i}" for i in ids])
    return [np.select([mask == value, mask == void], [1, VOID], 0).astype(np.uint8) for mask in masks]


def _as_bytes(values: np.ndarray, name: str) -> np.ndarray:
    if values.dtype == np.uint8:
        return values
    if values.dtype == np.bool_:
        return values.astype(np.uint8) * 255
    if values.dtype.kind in "ui":
        top = 65535 if values.max(initial=0) > 255 else 255
    elif values.dtype.kind == "f" and np.isfinite(values).all():
        top = 1.0
    else:
        came = "NaN or infinite values" if values.dtype.kind == "f" else f"values of type {values.dtype.name}"
        raise GfssError(f"{name} has {came}; expected 8-bit or 16-bit integers, or floats from 0 to 1")
    if values.min() < 0 or values.max() > top:
        raise GfssError(f"{name} has values from {values.min():g} to {values.max():g}; expected 0 to {top:g}")
    return np.round(values * (255 / top)).astype(np.uint8)


def images_without(images: ImageLike | Sequence[ImageLike]) -> list[Labelled]:
    """Images that do not show a class, as labelled ones with an empty mask."""
    single = isinstance(images, str | Path | Image.Image) or (isinstance(images, np.ndarray) and images.ndim < 4)
    items: list[ImageLike] = [images] if single else list(images)  # type: ignore[list-item]
    sources = [path for item in items for path in (find_images([item]) if isinstance(item, str | Path) else [item])]
    labelled: list[Labelled] = []
    for number, source in enumerate(sources, start=1):
        pixels = as_image(source)
        labelled.append(Labelled(image_id(source, number), pixels, np.zeros(pixels.shape[:2], dtype=np.uint8)))
    return labelled
