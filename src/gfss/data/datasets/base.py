"""The one data set type: image and mask files, class names, and which classes are where."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from gfss.common.errors import GfssError, quoted
from gfss.common.files import cache_folder, read_lines, write_atomically
from gfss.common.progress import track
from gfss.data.catalog import BACKGROUND_NAMES, VOID
from gfss.data.images import image_size, read_image, read_mask

MIN_AREA = 2 * 32 * 32  # a class counts for an image from this area on, at the reference size
ENDING = 256  # bytes of each coded file that enter the fingerprint of a data set
CODED = (".png", ".jpg", ".jpeg", ".webp")
REFERENCE_SIDE = 500  # long side of the images that MIN_AREA was defined on (PASCAL VOC)


@dataclass(frozen=True)
class Dataset:
    """One split (train or val) of a data set.

    Attributes:
        name: name of data set and split, for records ("pascal val").
        classes: class names; mask value i + 1 is ``classes[i]``, 0 background, 255 void.
        ids: image names, in the order of the list file.
        images: image files, one per id.
        masks: index mask files (8-bit PNG), one per id.
        whole: files are users' own and may change in any byte: the fingerprint reads all of them. Public data sets are
            told apart by sizes and endings, which takes seconds instead of minutes.
        reference_side: long side of the images that the membership area refers to; None says that the
            images have their original size, so that the area holds as it stands.
    """

    name: str
    classes: tuple[str, ...]
    ids: tuple[str, ...]
    images: tuple[Path, ...]
    masks: tuple[Path, ...]
    reference_side: int | None = REFERENCE_SIDE
    whole: bool = False

    def __len__(self) -> int:
        return len(self.ids)

    def image(self, i: int) -> np.ndarray:
        """Image ``i`` as (height, width, 3) uint8."""
        return read_image(self.images[i])

    def mask(self, i: int) -> np.ndarray:
        """Mask ``i`` as (height, width) uint8: class ids, 0 background, 255 void."""
        return read_mask(self.masks[i])

    @cached_property
    def fingerprint(self) -> str:
        """Hash over names, sizes and content of all files; changes when any file does, not when they are copied.

        Of public data sets (``whole`` is false) the endings of files are enough: nobody edits them. That of a PNG holds
        the checksum of its pixels, that of a JPEG or WebP is coded data: another image of exactly the same size has
        another one. Files of other formats are read as a whole.
        """
        digest = hashlib.sha256(json.dumps([self.classes, self.reference_side]).encode())
        for image, mask in zip(self.images, self.masks, strict=True):
            for path in (image, mask):
                try:
                    with path.open("rb", buffering=0) as file:
                        size = file.seek(0, os.SEEK_END)
                        file.seek(max(0, size - ENDING) if path.suffix.lower() in CODED and not self.whole else 0)
                        digest.update(f"{path.name}:{size};".encode() + file.read())
                except FileNotFoundError:
                    raise GfssError(f"{path} is in the list of '{self.name}' but the file is missing") from None
        return digest.hexdigest()[:16]

    @cached_property
    def _index(self) -> np.ndarray:
        """Per image: pixels of each of the 256 mask values, then height and width; cached on disk."""
        path = cache_folder("index") / f"{self.fingerprint}.npy"
        if path.exists():
            with contextlib.suppress(OSError, ValueError, EOFError):  # a torn cache file is made again
                return np.load(path)

        def row(i: int) -> np.ndarray:
            mask = self.mask(i)
            refuse_other_size(mask, self.masks[i], self.images[i], image_size(self.images[i]))
            return np.append(pixel_counts(mask), mask.shape).astype(np.int32)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            rows = list(track(pool.map(row, range(len(self))), f"indexing {self.name}", total=len(self)))
        index = np.stack(rows) if rows else np.zeros((0, 258), dtype=np.int32)
        with write_atomically(path) as file:
            np.save(file, index)
        return index

    @property
    def areas(self) -> np.ndarray:
        """Pixels of every mask value in every image, (images, 256) int32; read once, then cached on disk."""
        return self._index[:, :256]

    @property
    def sizes(self) -> np.ndarray:
        """Height and width of every image, (images, 2) int32."""
        return self._index[:, 256:]

    @cached_property
    def members(self) -> np.ndarray:
        """Whether class id c counts as present in image i, (images, classes + 1) bool.

        The area threshold is 2 * 32 * 32 pixels at the reference size, scaled to the image's own size.
        Stored column by column, because it is asked for one class at a time.
        """
        for i in np.flatnonzero(self.areas[:, len(self.classes) + 1 : VOID].any(axis=1)):
            refuse_unknown_values(self.areas[i], self.masks[i], len(self.classes))
        threshold = least_area(self.sizes, self.reference_side)
        return np.asfortranarray(self.areas[:, : len(self.classes) + 1] >= threshold[:, None])

    def small_in(self, class_id: int, area: int) -> np.ndarray:
        """Indices of the images in which a class has less than ``area`` pixels, at the reference size."""
        return np.flatnonzero(self.areas[:, class_id] < least_area(self._index[:, 256:], self.reference_side, area))

    def images_of(self, class_id: int) -> np.ndarray:
        """Indices of the images that count as containing a class."""
        return np.flatnonzero(self.members[:, class_id])


def least_area(sizes: np.ndarray, reference_side: int | None, area: int = MIN_AREA) -> np.ndarray:
    """From how many pixels on a class counts for images of some sizes (images, 2)."""
    long_side = sizes.max(axis=1)
    return np.maximum(np.floor(area * (long_side / (reference_side or long_side)) ** 2), 1)


def pixel_counts(mask: np.ndarray) -> np.ndarray:
    """How many pixels have each of the 256 values, (256,)."""
    return np.bincount(mask.ravel(), minlength=256)


def refuse_other_size(mask: np.ndarray, file: Path, image: Path, size: tuple[int, int]) -> None:
    """Raise if a mask and its image differ in size (height, width)."""
    if mask.shape != size:
        raise GfssError(
            f"{file} is {mask.shape[1]} x {mask.shape[0]} but its image {image.name} is {size[1]} x {size[0]}; "
            "they must have the same size"
        )


def refuse_unknown_values(counts: np.ndarray, file: Path, classes: int) -> None:
    """Raise if a mask has a value that is neither background nor a class nor void."""
    strange = classes + 1 + np.flatnonzero(counts[classes + 1 : VOID])
    if len(strange):
        values = ", ".join(str(value) for value in strange[:5]) + (" ..." if len(strange) > 5 else "")
        raise GfssError(
            f"{file} has the value {values} but {classes} class(es) are named (values from 1, 0 background, "
            f"{VOID} void); correct the mask or name the missing classes"
        )


def read_class_names(root: Path) -> tuple[str, ...]:
    """Names in ``classes.txt``; line i names mask value i."""
    path = root / "classes.txt"
    if not path.exists():
        raise GfssError(f"{root} has no classes.txt; write one class name per line, line i naming mask value i")
    names = read_lines(path)
    if any(name.lower() in BACKGROUND_NAMES for name in names):
        raise GfssError(
            f"{path} names the background, but line i names mask value i, and the background is 0; take that line out"
        )
    return unique_names(names, path)


def unique_names(names: Iterable[str], source: Path) -> tuple[str, ...]:
    """Class names as a tuple; refuses doubles and more than an 8-bit mask can hold."""
    result = tuple(names)
    strange = next((name for name in result if not name.isprintable() or not 0 < len(name.strip()) <= 200), None)
    if strange is not None:
        raise GfssError(
            f"{source} has a class called {quoted(strange)}; class names are printable text of at most 200 characters"
        )
    if not result:
        raise GfssError(f"{source} names no class; at least one is needed")
    if len(set(result)) != len(result):
        raise GfssError(f"{source} names a class twice; every class needs a name of its own")
    if len(result) >= VOID:
        raise GfssError(f"{source} names {len(result)} classes; an 8-bit mask holds at most {VOID - 1}")
    return result
