"""What every label format becomes: images, and a mask of class ids for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gfss.common.errors import GfssError, unknown
from gfss.data.catalog import BACKGROUND, VOID
from gfss.data.datasets.base import pixel_counts, refuse_other_size, refuse_unknown_values
from gfss.data.images import image_size


@dataclass(frozen=True)
class ClassMask:
    """One image under one class.

    Attributes:
        image: image file.
        mask: (height, width) uint8: 1 the class, 0 the rest, 255 void.
        others: (height, width) uint8: ids of the other labelled classes, 0 elsewhere.
    """

    image: Path
    mask: np.ndarray
    others: np.ndarray

    @property
    def shows(self) -> bool:
        """Whether the class is in the image."""
        return bool((self.mask == 1).any())


@dataclass(frozen=True)
class Labels:
    """Labelled images of any format; masks are drawn when asked for.

    Attributes:
        format: the format in words ("labelme JSON").
        classes: class names; mask value i + 1 is ``classes[i]``.
        images: image files.
        files: the label file of each image.
        draw: mask i as it stands in the label file, (height, width) uint8.
        also: further files that the masks depend on.
        unlabelled: images among those looked at that have no label.
        splits: "train", "val", "test" or nothing for every image, as the folders say; empty if they say nothing.
        remarks: how the labels were understood where that is worth knowing.
    """

    format: str
    classes: tuple[str, ...]
    images: tuple[Path, ...]
    files: tuple[Path, ...]
    draw: Callable[[int], np.ndarray]
    also: tuple[Path, ...] = ()
    unlabelled: tuple[Path, ...] = ()
    splits: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.images)

    def mask(self, i: int) -> np.ndarray:
        """Mask ``i`` as (height, width) uint8: class ids, 0 background, 255 void; refuses what does not fit."""
        mask = self.draw(i)
        refuse_other_size(mask, self.files[i], self.images[i], image_size(self.images[i]))
        refuse_unknown_values(pixel_counts(mask), self.files[i], len(self.classes))
        return mask

    def renamed(self, old: str | None, new: str | None) -> Labels:
        """The same with another name for a class; as it is if one of the two names is None."""
        if old is None or new is None or old == new:
            return self
        if old not in self.classes:
            raise unknown("class", old, self.classes)
        names = [new if name == old else name for name in self.classes]
        if len(set(names)) < len(names):
            raise GfssError(f"the labels have a class '{new}' beside '{old}'; leave --label out, or use another name")
        return replace(self, classes=tuple(names))

    def part(self, split: str) -> Labels:
        """The images of one split."""
        chosen = [i for i, name in enumerate(self.splits) if name == split]
        return replace(
            self,
            images=tuple(self.images[i] for i in chosen),
            files=tuple(self.files[i] for i in chosen),
            draw=lambda i: self.draw(chosen[i]),
            splits=tuple(self.splits[i] for i in chosen),
        )

    def of_class(self, class_name: str) -> Iterator[ClassMask]:
        """Every labelled image under one class, in order, those that do not show it included."""
        if class_name not in self.classes:
            unknown_class = unknown("class", class_name, self.classes)
            raise GfssError(f"{unknown_class}; --label NAME says what the label file calls the class")
        value = self.classes.index(class_name) + 1
        table = np.full(256, BACKGROUND, dtype=np.uint8)
        table[value], table[VOID] = 1, VOID
        for i, path in enumerate(self.images):
            mask = self.mask(i)
            yield ClassMask(path, table[mask], np.where((mask == value) | (mask == VOID), BACKGROUND, mask))

    def supports(self, class_name: str) -> list[tuple[Path, np.ndarray]]:
        """The images of one class, each with a mask (height, width) uint8: 1 the class, 0 the rest, 255 void."""
        found = [(one.image, one.mask) for one in self.of_class(class_name) if one.shows]
        if not found:
            raise GfssError(f"none of the {len(self)} labelled images shows a '{class_name}'; label at least one")
        return found


def on_top(layers: list[tuple[int, np.ndarray]]) -> np.ndarray:
    """One mask (height, width) from several (class id, bool mask): small areas lie on top of large ones."""
    mask = np.zeros(layers[0][1].shape, dtype=np.uint8)
    for value, area in sorted(layers, key=lambda layer: -int(layer[1].sum())):
        mask[area] = value
    return mask


def match(
    names: dict[str, Path], images: dict[str, Path], source: Path, only: bool = False
) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Label files and the images of the same name; every label needs an image, not the other way round.

    Args:
        names: label files by name.
        images: image files by name.
        source: where the labels are, for the message.
        only: leave out labels of other images, if there is one of these.
    """
    if len(names) == len(images) == 1:  # one image and one label file belong together whatever their names
        return tuple(images.values()), tuple(names.values())
    if only:
        names = {name: path for name, path in names.items() if name in images} or names
    missing = [name for name in names if name not in images]
    if missing:
        where = "" if images else "; no images were found, they are looked for in a folder images/ beside the masks"
        raise GfssError(
            f"{len(missing)} of {len(names)} labels in {source} have no image of the same name, first '{missing[0]}'"
            f"{where or '; add the images or remove the labels'}"
        )
    return tuple(images[name] for name in names), tuple(names.values())
