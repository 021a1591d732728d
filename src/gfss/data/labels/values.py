"""What the values of masks mean: where class names are found, which value is void."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gfss.common.errors import GfssError
from gfss.common.files import read_lines
from gfss.data.catalog import BACKGROUND, BACKGROUND_NAMES, PASCAL_CLASSES, VOID
from gfss.data.datasets.base import read_class_names, unique_names
from gfss.data.labels.colours import VOID_NAMES, LabelMap, read_labelmap

# Cityscapes: the classes that are evaluated by their number in *_labelIds.png; all others are void
CITYSCAPES = {
    7: "road", 8: "sidewalk", 11: "building", 12: "wall", 13: "fence", 17: "pole", 19: "traffic light",
    20: "traffic sign", 21: "vegetation", 22: "terrain", 23: "sky", 24: "person", 25: "rider", 26: "car",
    27: "truck", 28: "bus", 31: "train", 32: "motorcycle", 33: "bicycle",
}  # fmt: skip
NAME_FILES = (
    "labelmap.txt", "class_dict.csv", "classes.txt", "class_names.txt", "_classes.csv", "objectInfo150.txt",
)  # fmt: skip


@dataclass(frozen=True)
class Meaning:
    """What mask values mean.

    Attributes:
        classes: class names.
        values: mask value -> class id, 0 background or 255 void.
        source: where the names are from, for messages.
    """

    classes: tuple[str, ...]
    values: dict[int, int]
    source: str

    @property
    def plain(self) -> bool:
        """Whether values are class ids already."""
        usual = {0: BACKGROUND, VOID: VOID} | {i: i for i in range(1, len(self.classes) + 1)}
        return self.values == usual

    def with_void(self, void: int | None) -> Meaning:
        """The same with another value for void."""
        if void is None:
            return self
        return replace(self, values={v: c for v, c in self.values.items() if c != VOID} | {void: VOID})

    def ids(self, mask: np.ndarray, file: Path) -> np.ndarray:
        """Class ids (height, width) uint8 of a mask; refuses a value without a meaning."""
        found, where = np.unique(mask, return_inverse=True)
        strange = [int(value) for value in found if int(value) not in self.values]
        if strange:
            listed = ", ".join(map(str, strange[:5])) + " ..." * (len(strange) > 5)
            raise GfssError(
                f"{file} has the value {listed}, which {self.source} does not name; --void {strange[0]} leaves it out"
            )
        table = np.array([self.values[int(value)] for value in found], dtype=np.uint8)
        return table[where].reshape(mask.shape)


def find_meaning(folders: Sequence[Path], masks: Sequence[Path]) -> Meaning | LabelMap | None:
    """What values or colours mean, from a file with names in one of some folders; None if there is none.

    Args:
        folders: where to look, in this order.
        masks: mask files; those of Cityscapes say by their names what they are.
    """
    for folder in folders:
        for name in NAME_FILES:
            if (folder / name).is_file():
                return _read(folder / name)
        if (folder / "JPEGImages").is_dir() and (folder / "ImageSets" / "Segmentation").is_dir():
            return numbered(PASCAL_CLASSES, "PASCAL VOC")
    stems = [path.stem for path in masks]
    if stems and all(stem.endswith("_labelIds") for stem in stems):
        ids = {value: i for i, value in enumerate(CITYSCAPES, start=1)}
        values = {value: ids.get(value, VOID) for value in range(35)}
        return Meaning(tuple(CITYSCAPES.values()), values, "Cityscapes")
    if stems and all(stem.endswith("_labelTrainIds") for stem in stems):
        values = {i: i + 1 for i in range(len(CITYSCAPES))} | {VOID: VOID}
        return Meaning(tuple(CITYSCAPES.values()), values, "Cityscapes")
    return None


def numbered(classes: Sequence[str], source: str) -> Meaning:
    """Classes whose ids are the mask values."""
    return Meaning(tuple(classes), {i: i for i in range(len(classes) + 1)} | {VOID: VOID}, source)


def of_values(names: Mapping[int, str], source: Path) -> Meaning:
    """Names by mask value, background and void among them by their names; 255 is void if it has no name."""
    values: dict[int, int] = {}
    classes: list[str] = []
    for value, name in sorted(names.items()):
        if name.lower() in BACKGROUND_NAMES:
            values[value] = BACKGROUND
        elif name.lower() in VOID_NAMES:
            values[value] = VOID
        else:
            classes.append(name)
            values[value] = len(classes)
    return Meaning(unique_names(classes, source), {VOID: VOID} | values, str(source))


def _read(path: Path) -> Meaning | LabelMap:
    match path.name:
        case "labelmap.txt":
            return read_labelmap(path)
        case "class_dict.csv":
            return _read_colour_table(path)
        case "classes.txt":
            return numbered(read_class_names(path.parent), str(path))
        case "class_names.txt":
            return of_values(dict(enumerate(read_lines(path))), path)
        case "_classes.csv":
            return of_values(_by_value(_rows(path), path), path)
        case _:
            return _read_ade(path)


def _rows(path: Path, delimiter: str = ",") -> list[list[str]]:
    """Cells of a table without its heading."""
    try:
        rows = list(csv.reader(read_lines(path), delimiter=delimiter))
    except csv.Error as error:
        raise GfssError(f"{path} is not a readable table ({error})") from None
    return [[cell.strip() for cell in row] for row in rows[1:]]


def _by_value(rows: Sequence[Sequence[str]], path: Path) -> dict[int, str]:
    names: dict[int, str] = {}
    for row in rows:
        try:
            names[int(row[0])] = row[1]
        except (ValueError, IndexError):
            raise GfssError(f"{path} has the line '{','.join(row)}'; expected 'value, name'") from None
    return names


def _read_colour_table(path: Path) -> LabelMap:
    """``class_dict.csv``: name,r,g,b."""
    lines: list[str] = []
    for row in _rows(path):
        if len(row) < 4:
            raise GfssError(f"{path} has the line '{','.join(row)}'; expected 'name,r,g,b'")
        lines.append(f"{row[0]}:{','.join(row[1:4])}::")
    return read_labelmap(path, lines)


def _read_ade(path: Path) -> Meaning:
    """``objectInfo150.txt`` of ADE20K: number, three figures, names; value 0 is what has no class."""
    names: dict[int, str] = {}
    for row in _rows(path, "\t"):
        try:
            names[int(row[0])] = row[-1].split(",")[0].strip()
        except (ValueError, IndexError):
            raise GfssError(f"{path} has the line '{' '.join(row)}'; expected number and name between tabs") from None
    for value, name in names.items():  # some names occur twice: screen, ...
        if list(names.values()).count(name) > 1:
            names[value] = f"{name} {value}"
    return of_values({0: BACKGROUND_NAMES[0], **names}, path)
