"""A folder of images and what was painted on them, on disk after every stroke.

    photos/ID.jpg                the images, which are never changed
    photos-gfss/classes.txt      line i names mask value i
    photos-gfss/masks/ID.png     index PNG as large as the image: 0 background, 255 void
    photos-gfss/project.json     which images do not show which class, which classes have new labels
    photos-gfss/model/           the model with its lessons, unless another folder was named

``gfss teach MODEL --name NAME --images photos --masks photos-gfss`` reads these labels.
"""

from __future__ import annotations

import contextlib
import io
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from gfss.common.errors import GfssError
from gfss.common.files import files_by_name, read_json, read_lines, refuse_unwritable, write_atomically, write_json
from gfss.data.catalog import BACKGROUND, BACKGROUND_NAMES, VOID
from gfss.data.datasets.base import pixel_counts
from gfss.data.images import IMAGE_SUFFIXES, class_colours, image_size, read_image, read_mask
from gfss.server.errors import Conflict, NotFound, TooLarge

ENDING = "-gfss"  # of the folder with the labels, after the name of the folder of images
FORMAT = "gfss project 1"
KEEP = 254  # in a patch: this pixel stays as it is
MOST_CLASSES = KEEP - 1
MOST_IMAGES = 10_000
UNUSED = "unused-"  # begins the names of mask values whose class was removed
IN_MEMORY = 8  # label masks
LOOK_AGAIN = 2.0  # seconds between two looks at the folder


@dataclass(frozen=True)
class ImageEntry:
    """An image of the folder.

    Attributes:
        id: its name without suffix.
        path: the file.
        height, width: as it is shown.
        stamp: changes when the file is replaced by another.
    """

    id: str
    path: Path
    height: int
    width: int
    stamp: str


class Project:
    """The images of a folder and their labels; every change is on disk when the call returns.

    Args:
        folder: the images.
        root: where labels go; ``FOLDER-gfss`` beside the folder if left out.
    """

    def __init__(self, folder: Path, root: Path | None = None) -> None:
        if not folder.is_dir():
            raise GfssError(f"the folder {folder} does not exist; give a folder of images with --folder")
        self.folder = folder.resolve()
        self.root = (root or self.folder.with_name(f"{self.folder.name or 'images'}{ENDING}")).resolve()
        if self.root == self.folder or self.folder in self.root.parents:
            raise GfssError("the labels would be written into the image folder; give another folder with --labels")
        refuse_unwritable(self.root)
        self.problem: str | None = None
        self.left_out: dict[str, str] = {}
        self._lock = threading.RLock()
        self._images: dict[str, ImageEntry] = {}
        self._looked = 0.0
        self._versions: dict[str, int] = {}
        self.revision = 0  # grows with every change of images, classes or labels
        self._masks: OrderedDict[str, np.ndarray] = OrderedDict()
        self._slots = self._read_classes()
        self._without, self._changed = self._read_marks()
        self.refresh(strict=True)
        self._areas = {i: self._read_areas(i) for i in self._images if self.mask_file(i).exists()}

    # images

    @property
    def images(self) -> dict[str, ImageEntry]:
        """The images by id, in order of name."""
        return self._images

    def image(self, image_id: str) -> ImageEntry:
        """One image."""
        entry = self._images.get(image_id)
        if entry is None:
            raise NotFound(f"there is no image '{image_id}' in the folder; /api/images lists those that are there")
        return entry

    def refresh(self, strict: bool = False) -> None:
        """Look at the folder again; images that cannot be read are skipped and named."""
        with self._lock:
            if not strict and time.monotonic() - self._looked < LOOK_AGAIN:
                return
            try:
                found = files_by_name(self.folder, IMAGE_SUFFIXES)
            except (GfssError, OSError) as error:
                self.problem = str(error)
                if strict:
                    raise
                return
            self.problem, images, left_out = None, {}, {}
            if len(found) > MOST_IMAGES:
                self.problem = f"{self.folder} holds {len(found)} images; the first {MOST_IMAGES} are shown"
            for image_id, path in list(found.items())[:MOST_IMAGES]:
                try:
                    images[image_id] = self._entry(image_id, path)
                except (GfssError, OSError, UnicodeEncodeError) as error:
                    left_out[path.name.encode("utf-8", "replace").decode()] = str(error)
            if images != self._images:
                self.revision += 1
            self._images, self.left_out = images, left_out
            self._looked = time.monotonic()

    def add_image(self, name: str, content: bytes) -> ImageEntry:
        """Put an image into the folder; its content is checked first, and nothing is overwritten.

        Args:
            name: file name; folders in it are dropped.
        """
        plain = Path(name.replace("\\", "/")).name.strip()
        stem, suffix = Path(plain).stem, Path(plain).suffix.lower()
        if suffix not in IMAGE_SUFFIXES or stem.startswith(".") or not plain.isprintable() or len(plain) > 120:
            raise GfssError(f"'{plain[:120]}' is not a name for an image; expected NAME{', NAME'.join(IMAGE_SUFFIXES)}")
        with self._lock:
            if len(self._images) >= MOST_IMAGES:
                raise TooLarge(f"the folder holds {MOST_IMAGES} images, which is the most; take some out")
            if stem in self._images or (self.folder / plain).exists():
                raise Conflict(f"there is an image called '{stem}' already; give this one another name")
            part = self.root / f".upload{suffix}"
            try:
                part.write_bytes(content)
                try:
                    read_image(part)
                except GfssError as error:
                    raise GfssError(str(error).replace(str(part), f"'{plain}'")) from None
                with write_atomically(self.folder / plain) as file:
                    file.write(content)
            finally:
                part.unlink(missing_ok=True)
            self.refresh(strict=True)
            return self.image(stem)

    # classes

    @property
    def classes(self) -> list[str]:
        """Names that can be painted, in order of mask value; see :meth:`value`."""
        return [name for name in self._slots if not name.startswith(UNUSED)]

    def value(self, name: str) -> int:
        """Mask value of a class."""
        if name not in self.classes:
            raise NotFound(f"there is no class '{name}' to paint; add it first")
        return self._slots.index(name) + 1

    def add_class(self, name: str) -> int:
        """Add a class to paint and return its mask value."""
        with self._lock:
            self._check_name(name)
            slots = list(self._slots)
            free = next((i for i, old in enumerate(slots) if old.startswith(UNUSED)), None)
            if free is None:
                slots.append(name)
            else:
                slots[free] = name
            if len(slots) > MOST_CLASSES:
                raise TooLarge(f"there are {MOST_CLASSES} classes to paint, which is the most; remove one")
            self._write_classes(slots)
            return self.value(name)

    def rename_class(self, name: str, new: str) -> None:
        """Give a class another name; labels stay."""
        with self._lock:
            value = self.value(name)
            self._check_name(new)
            slots = list(self._slots)
            slots[value - 1] = new
            self._write_classes(slots)
            if name in self._without:
                self._without[new] = self._without.pop(name)
            self._changed = {new if one == name else one for one in self._changed}
            self._write_marks()

    def remove_class(self, name: str) -> None:
        """Take a class and everything painted as it out of the project."""
        with self._lock:
            value = self.value(name)
            for image_id in [i for i, areas in self._areas.items() if value in areas]:
                mask = self.label(image_id).copy()
                mask[mask == value] = BACKGROUND
                self._store(image_id, mask)
            self._without.pop(name, None)
            self._changed.discard(name)
            self._write_marks()
            slots = list(self._slots)
            slots[value - 1] = f"{UNUSED}{value}"
            while slots and slots[-1].startswith(UNUSED):
                slots.pop()
            self._write_classes(slots)

    # labels

    def mask_file(self, image_id: str) -> Path:
        """Where the label of an image lies, if it has one."""
        return self.root / "masks" / f"{image_id}.png"

    def version(self, image_id: str) -> int:
        """Grows with every change of an image's label."""
        return self._versions.get(image_id, 0)

    def label(self, image_id: str) -> np.ndarray:
        """Label of an image, (height, width) uint8; do not write to it."""
        entry = self.image(image_id)
        with self._lock:
            mask = self._masks.get(image_id)
            if mask is None:
                mask = self._read_label(entry)
                self._masks[image_id] = mask
                if len(self._masks) > IN_MEMORY:
                    self._masks.popitem(last=False)
            else:
                self._masks.move_to_end(image_id)
            return mask

    def areas(self, image_id: str) -> dict[str, int]:
        """Painted pixels of every class in an image; "void" among them."""
        found = self._areas.get(image_id, {})
        return {("void" if v == VOID else self._slots[v - 1]): count for v, count in found.items()}

    def paint(self, image_id: str, left: int, top: int, patch: np.ndarray) -> int:
        """Put a rectangle of mask values over a label; where it says :data:`KEEP` the label stays.

        Returns:
            The new version of the label.
        """
        with self._lock:
            mask = self.label(image_id).copy()
            height, width = patch.shape
            if left < 0 or top < 0 or left + width > mask.shape[1] or top + height > mask.shape[0]:
                raise GfssError(
                    f"the patch of {width} x {height} at ({left}, {top}) leaves the image of "
                    f"{mask.shape[1]} x {mask.shape[0]}; send one that fits"
                )
            region = mask[top : top + height, left : left + width]
            np.copyto(region, patch, where=patch != KEEP)
            return self._store(image_id, mask)

    def set_label(self, image_id: str, mask: np.ndarray) -> int:
        """Replace the whole label of an image."""
        entry = self.image(image_id)
        if mask.shape != (entry.height, entry.width):
            raise GfssError(
                f"the label is {mask.shape[1]} x {mask.shape[0]} but the image is {entry.width} x {entry.height}; "
                "they must have the same size"
            )
        with self._lock:
            return self._store(image_id, mask.astype(np.uint8))

    def without(self, name: str) -> list[str]:
        """Images that were said not to show a class."""
        return [image_id for image_id in self._without.get(name, []) if image_id in self._images]

    def set_without(self, image_id: str, name: str, value: bool) -> None:
        """Say that an image does not show a class, or take that back."""
        with self._lock:
            self.image(image_id)
            if value and name in self.areas(image_id):
                raise Conflict(f"'{name}' is painted in {image_id}; erase it first")
            if value:
                self.value(name)
            marked = [one for one in self._without.get(name, []) if one != image_id]
            self._without[name] = sorted([*marked, image_id]) if value else marked
            self._changed.add(name)
            self._write_marks()
            self._store(image_id, self.label(image_id))

    def supports(self, name: str) -> tuple[list[Path], list[np.ndarray]]:
        """Images in which a class is painted, each with a mask: 1 the class, 0 the rest, 255 void."""
        value = self.value(name)
        with self._lock:
            chosen = [i for i, areas in self._areas.items() if value in areas and i in self._images]
            table = np.zeros(256, dtype=np.uint8)
            table[value], table[VOID] = 1, VOID
            return [self.image(i).path for i in sorted(chosen)], [table[self.label(i)] for i in sorted(chosen)]

    @property
    def changed(self) -> set[str]:
        """Classes whose labels changed since they were last handed out by :meth:`start_lesson`."""
        return set(self._changed)

    def start_lesson(self, name: str) -> tuple[list[Path], list[np.ndarray], list[Path]]:
        """Images, masks and images without the class; from now on the class counts as unchanged."""
        with self._lock:
            images, masks = self.supports(name)
            self._changed.discard(name)
            self._write_marks()
            return images, masks, [self.image(i).path for i in self.without(name)]

    def mark_changed(self, names: Iterable[str]) -> None:
        """Count classes as changed again: their lesson failed or was undone."""
        with self._lock:
            self._changed |= set(names) & set(self.classes)
            self._write_marks()

    def palette(self) -> list[int]:
        """Colours of label files, as image viewers show them."""
        return class_colours(max(1, len(self._slots))).ravel().tolist()

    # on disk

    def _entry(self, image_id: str, path: Path) -> ImageEntry:
        image_id.encode("utf-8")  # a name that is no text cannot be asked for
        if self.folder not in path.resolve().parents:
            raise GfssError(f"{path.name} is a link to a file outside the folder; copy the image itself into it")
        stat = path.stat()
        stamp = f"{stat.st_mtime_ns:x}-{stat.st_size:x}"
        old = self._images.get(image_id)
        if old is not None and old.stamp == stamp and old.path == path:
            return old
        height, width = image_size(path)
        self._masks.pop(image_id, None)
        return ImageEntry(image_id, path, height, width, stamp)

    def _read_label(self, entry: ImageEntry) -> np.ndarray:
        path = self.mask_file(entry.id)
        if not path.exists():
            return np.zeros((entry.height, entry.width), dtype=np.uint8)
        mask = read_mask(path)
        if mask.shape != (entry.height, entry.width):
            raise Conflict(
                f"{path} is {mask.shape[1]} x {mask.shape[0]} but {entry.path.name} is {entry.width} x {entry.height}: "
                "the image was replaced by another; take one of the two away"
            )
        return mask

    def _read_areas(self, image_id: str) -> dict[int, int]:
        mask = read_mask(self.mask_file(image_id))
        areas = _areas(mask)
        unnamed = [value for value in areas if value != VOID and value > len(self._slots)]
        if unnamed:
            raise GfssError(
                f"{self.mask_file(image_id)} has the value {unnamed[0]}, which no line of "
                f"{self.root / 'classes.txt'} names; add the line"
            )
        return areas

    def _store(self, image_id: str, mask: np.ndarray) -> int:
        """Write a label; the file goes where nothing is painted and nothing was said."""
        areas = _areas(mask)
        wrong = [value for value in areas if value != VOID and not 0 < value <= len(self._slots)]
        if wrong:
            raise GfssError(f"the label has the value {wrong[0]}, which names no class; 0 is background, 255 void")
        before = self._areas.get(image_id, {})
        said = any(image_id in marked for marked in self._without.values())
        if areas or said:
            picture = Image.fromarray(mask)
            picture.putpalette(self.palette())
            content = io.BytesIO()
            picture.save(content, format="PNG", compress_level=1)
            with write_atomically(self.mask_file(image_id)) as file:
                file.write(content.getvalue())
        else:
            self.mask_file(image_id).unlink(missing_ok=True)
        touched = {self._slots[value - 1] for value in {*before, *areas} if value != VOID}
        if not touched <= self._changed:
            self._changed |= touched
            self._write_marks()
        self._areas[image_id] = areas
        self._masks[image_id] = mask
        if len(self._masks) > IN_MEMORY:
            self._masks.popitem(last=False)
        self._versions[image_id] = self.version(image_id) + 1
        self.revision += 1
        return self._versions[image_id]

    def _check_name(self, name: str) -> None:
        if not name or name != name.strip() or not name.isprintable() or len(name) > 60:
            raise GfssError(
                f"{name[:60]!r} is not a class name; use 1 to 60 printable characters, without spaces at the ends"
            )
        if name.lower() in (*BACKGROUND_NAMES, "void") or name.startswith(UNUSED):
            raise GfssError(f"'{name}' is reserved; give the class another name")
        if name in self._slots:
            raise Conflict(f"there is a class called '{name}' already; choose another name")

    def _read_classes(self) -> list[str]:
        path = self.root / "classes.txt"
        return read_lines(path) if path.exists() else []

    def _write_classes(self, slots: list[str]) -> None:
        with write_atomically(self.root / "classes.txt") as file:
            file.write("".join(f"{name}\n" for name in slots).encode())
        self._slots = slots
        self.revision += 1

    def _read_marks(self) -> tuple[dict[str, list[str]], set[str]]:
        path = self.root / "project.json"
        content: Any = read_json(path) if path.exists() else {"format": FORMAT, "without": {}}
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise GfssError(f"{path} was not written by this version of gfss (expected '{FORMAT}'); move it away")
        without = content.get("without", {})
        changed = {str(name) for name in content.get("changed", [])}
        return {str(name): [str(one) for one in images] for name, images in without.items()}, changed

    def _write_marks(self) -> None:
        content = {"format": FORMAT, "without": self._without, "changed": sorted(self._changed)}
        write_json(self.root / "project.json", content)
        self.revision += 1

    def clear_exports(self) -> None:
        """Remove exports of earlier sessions, which can be made again."""
        for path in (self.root / "exports").glob("*"):
            with contextlib.suppress(OSError):
                path.unlink()


def _areas(mask: np.ndarray) -> dict[int, int]:
    """Pixels of every value but background."""
    counts = pixel_counts(mask)
    return {int(value): int(counts[value]) for value in np.flatnonzero(counts) if value != BACKGROUND}
