"""COCO JSON: instances as polygons or run lengths, drawn into one mask per image with pycocotools."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path, PureWindowsPath
from typing import Any, NamedTuple

import numpy as np

from gfss.common.errors import GfssError, quoted
from gfss.common.files import composed, is_file, read_json
from gfss.common.progress import note
from gfss.data.catalog import VOID
from gfss.data.datasets.base import unique_names
from gfss.data.images import MAX_PIXELS, image_size
from gfss.data.labels.base import Labels
from gfss.data.labels.outlines import refuse_endless
from gfss.data.labels.trees import image_files


class Instance(NamedTuple):
    """One object: its mask value and its outline as COCO stores it (polygons or run lengths)."""

    value: int
    outline: Any


class CocoImage(NamedTuple):
    """One image of a COCO file with everything that is drawn on it; crowds have the value 255."""

    file_name: str
    height: int
    width: int
    instances: tuple[Instance, ...]


def read_coco_json(path: Path, images: dict[str, Path], only: bool = False) -> Labels:
    """Images of a COCO file that have annotations; classes in order of category id.

    Args:
        images: known image files by name.
        only: leave out what is not among these.
    """
    return coco_labels(path, *read_instances(path), images, only)


def coco_labels(
    path: Path, classes: tuple[str, ...], pictures: list[CocoImage], images: dict[str, Path], only: bool
) -> Labels:
    """What was read from a COCO file, with the image files that belong to it."""
    finder = Finder(path, images, [picture.file_name for picture in pictures], only)
    found = [finder.find(picture.file_name) for picture in pictures]
    if only and any(found):
        pictures = [picture for picture, place in zip(pictures, found, strict=True) if place]
        found = [place for place in found if place]
    missing = [picture.file_name for picture, place in zip(pictures, found, strict=True) if place is None]
    if missing:
        raise GfssError(
            f"{len(missing)} of {len(pictures)} images of {path} were not found, first {quoted(missing[0])}; "
            "put them into a folder images/ beside it"
        )
    paths = tuple(place for place in found if place is not None)

    def draw(i: int) -> np.ndarray:
        picture, size = pictures[i], image_size(paths[i])
        if (picture.height, picture.width) != size:
            raise GfssError(
                f"{path} was drawn on {picture.file_name} of {picture.width} x {picture.height} but {paths[i]} is "
                f"{size[1]} x {size[0]}; they must have the same size"
            )
        return draw_instances(picture, path)

    return Labels("COCO JSON", classes, paths, (path,) * len(paths), draw)


def read_instances(path: Path) -> tuple[tuple[str, ...], list[CocoImage]]:
    """Class names, and the images with at least one annotation, in order of file name."""
    return parse_instances(read_json(path), path)


def parse_instances(content: Any, path: Path) -> tuple[tuple[str, ...], list[CocoImage]]:
    """The same from what the file holds."""
    parts = ("images", "annotations", "categories")
    if not isinstance(content, dict) or not all(isinstance(content.get(part, []), list) for part in parts):
        raise GfssError(f"{path} is not a COCO file: expected the lists {', '.join(parts)}")
    if not content.keys() & set(parts):
        raise GfssError(f"{path} is neither a labelme file (shapes) nor a COCO file ({', '.join(parts)})")
    if not content.get("annotations"):
        raise GfssError(f"{path} has no annotations; export the file again with the labels in it")
    try:
        return _parse(content, path)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise GfssError(f"{path} is not a complete COCO file ({reason(error)}); export it again") from None


def draw_instances(picture: CocoImage, source: Path) -> np.ndarray:
    """Mask (height, width) uint8 of an image: crowds at the bottom, then large objects, small ones on top."""
    codec = _codec()
    height, width = picture.height, picture.width
    if not 0 < height * width <= MAX_PIXELS:
        raise GfssError(f"{source} says that {picture.file_name} has {width} x {height} pixels; export it again")
    try:
        drawn = [points for _, outline in picture.instances for points in _polygons(outline, height, width)]
        refuse_endless(drawn, f"{source}, image {picture.file_name},")
        codes = [(value, _encode(codec, outline, height, width)) for value, outline in picture.instances]
    except GfssError:
        raise
    except Exception as error:  # pycocotools raises plain Exception on malformed outlines
        raise GfssError(
            f"{source} has a malformed outline in {picture.file_name} ({reason(error)}); draw it again"
        ) from None
    mask = np.zeros((height, width), dtype=np.uint8)
    drawable = [(value, code) for value, code in codes if code is not None]
    for value, code in sorted(drawable, key=lambda pair: (pair[0] != VOID, -int(codec.area(pair[1])))):
        mask[codec.decode(code).astype(bool)] = value
    return mask


class Finder:
    """Where the images of a COCO file are.

    Among those known by name, or where the file name points to from the JSON file or from the usual folders:
    ``images``, or one called like the end of the JSON file's name (``instances_val2017.json``: ``val2017``). Else any
    image of that name beside or below, if there is only one. Where several images of the file have one name, that of
    the folder must agree too.

    Args:
        path: the JSON file.
        images: known image files by name.
        names: all file names in the JSON file.
        only: do not look beyond the known images.
    """

    def __init__(self, path: Path, images: dict[str, Path], names: Sequence[str], only: bool = False) -> None:
        self.path, self.images, self.only = path, images, only
        self.stems = Counter(_parts(name)[-1].rpartition(".")[0] for name in names if _parts(name))
        last = path.stem.rpartition("_")[2]
        roots = (path.parent, path.parent.parent)
        self.folders = [root / place for root in roots for place in (".", "images", last, Path("images", last))]

    @cached_property
    def _everywhere(self) -> dict[str, list[Path]]:
        below = self.path.parent.parent if self.path.parent.name in ("annotations", "labels") else self.path.parent
        found: dict[str, list[Path]] = {}
        for image in image_files(below):
            found.setdefault(image.name, []).append(image)
        return found

    def find(self, file_name: str) -> Path | None:
        """The image file, None if it is not there."""
        parts = _parts(file_name)
        if not parts:
            return None
        stem = parts[-1].rpartition(".")[0]
        known = self.images.get(composed(stem)) or self.images.get(parts[-1])
        if known is not None and (self.stems[stem] == 1 or known.resolve().parts[-len(parts) :] == parts):
            return known
        if self.only:
            return None
        places = (folder.joinpath(*parts) for folder in self.folders)
        found = next((place for place in places if is_file(place)), None)
        if found is None:
            same = [path for path in self._everywhere.get(parts[-1], ()) if path.parts[-len(parts) :] == parts]
            found = same[0] if len(same) == 1 else None
        return found


def _parts(file_name: str) -> tuple[str, ...]:
    """Folders and name of an image, as written on any system; without what leads out of a folder."""
    return tuple(part for part in PureWindowsPath(file_name).as_posix().split("/") if part not in ("", ".", ".."))


def _parse(content: dict[str, Any], path: Path) -> tuple[tuple[str, ...], list[CocoImage]]:
    ordered = sorted(content["categories"], key=lambda category: category["id"])
    if not all(isinstance(category["name"], str) and category["name"] for category in ordered):
        raise ValueError("a category without a name")
    if not all(isinstance(e["file_name"], str) and _parts(e["file_name"]) for e in content["images"]):
        raise ValueError("an image without a file name")
    classes = unique_names((category["name"] for category in ordered), path)
    values = {_key(category["id"]): value for value, category in enumerate(ordered, start=1)}
    instances: dict[str, list[Instance]] = defaultdict(list)
    for annotation in content["annotations"]:
        if not annotation.get("segmentation"):
            raise GfssError(
                f"{path}: annotation {annotation.get('id')} has no segmentation; boxes alone cannot be learned from, "
                "export polygons or masks"
            )
        if _key(annotation["category_id"]) not in values:
            raise ValueError(
                f"annotation {annotation.get('id')} is of category {annotation['category_id']}, not listed"
            )
        value = VOID if annotation.get("iscrowd") else values[_key(annotation["category_id"])]
        instances[_key(annotation["image_id"])].append(Instance(value, annotation["segmentation"]))
    entries = {_key(entry["id"]): entry for entry in content["images"]}  # an image may be listed twice
    found: dict[tuple[str, int, int], list[Instance]] = defaultdict(list)
    for key, entry in entries.items():
        if key in instances:
            found[(entry["file_name"], *_size(entry))] += instances[key]
    pictures = [CocoImage(*place, tuple(outlines)) for place, outlines in found.items()]
    listed = {_key(entry["id"]) for entry in content["images"]}
    lost = sum(len(group) for image, group in instances.items() if image not in listed)
    if lost and pictures:
        note(f"{lost} annotation(s) in {path} are of images that it does not list and were left out")
    if not pictures:
        raise GfssError(f"{path} has annotations, but of no image that it lists; export it again")
    return classes, sorted(pictures, key=lambda picture: picture.file_name)


def _key(number: Any) -> str:
    """An id as it is compared: some programs write 7, others "7" or 7.0.

    >>> _key(7), _key("7"), _key(7.0)
    ('7', '7', '7')
    """
    if not isinstance(number, int | float | str):
        raise TypeError(number)
    return str(int(number)) if isinstance(number, float) and number.is_integer() else str(number)


def _encode(codec: Any, outline: Any, height: int, width: int) -> Any:
    """Run-length code of an instance: all its polygons together, or run lengths plain or compressed."""
    if isinstance(outline, list):
        polygons = [points.ravel().tolist() for points in _polygons(outline, height, width)]
        return codec.merge(codec.frPyObjects(polygons, height, width)) if polygons else None
    if not isinstance(outline, dict):
        raise ValueError("neither polygons nor run lengths")
    if list(outline["size"]) != [height, width]:
        raise ValueError(f"run lengths for {outline['size']} in an image of {[height, width]}")
    counts = outline["counts"]
    if not isinstance(counts, list | str):
        raise ValueError("run lengths that are neither a list nor a text")
    lengths = counts if isinstance(counts, list) else _lengths(counts)
    if not all(type(value) is int for value in lengths):
        raise ValueError("run lengths that are not whole numbers")
    if min(lengths, default=0) < 0:
        raise ValueError("a negative run length")
    if sum(lengths) != height * width:
        raise ValueError(f"run lengths of {sum(lengths)} pixels in an image of {height * width}")
    return codec.frPyObjects(outline, height, width) if isinstance(counts, list) else outline


def _polygons(outline: Any, height: int, width: int) -> list[np.ndarray]:
    """The polygons of an instance, each (points, 2); none for run lengths."""
    if not isinstance(outline, list):
        return []
    if not all(isinstance(points, list) for points in outline):
        raise ValueError("neither polygons nor run lengths")
    if any(isinstance(value, list) for points in outline for value in points):
        raise ValueError("coordinates that are not numbers")
    if any(len(points) % 2 for points in outline):
        raise ValueError("an odd number of coordinates")
    try:
        polygons = [np.asarray(points, dtype=np.float64) for points in outline if len(points) >= 6]  # others: no area
    except (ValueError, TypeError, OverflowError):
        raise ValueError("coordinates that are not numbers") from None
    if not all(np.isfinite(points).all() for points in polygons):
        raise ValueError("coordinates that are not numbers")
    far = 2 * max(height, width)
    if not all((np.abs(points) <= far).all() for points in polygons):
        raise ValueError("a point lies far outside the image")
    return [points.reshape(-1, 2) for points in polygons]


def _lengths(code: str | bytes) -> list[int]:
    """Run lengths of a compressed code: five bits and one to go on in a character, differences from the third on.

    >>> _lengths("52203")
    [5, 2, 2, 2, 5]
    """
    characters = code if isinstance(code, bytes) else code.encode("ascii")
    lengths: list[int] = []
    value = shift = 0
    for character in characters:
        bits = character - 48
        value |= (bits & 0x1F) << shift
        shift += 5
        if bits & 0x20:
            continue
        if bits & 0x10:  # negative
            value -= 1 << shift
        lengths.append(value + (lengths[-2] if len(lengths) > 2 else 0))
        value = shift = 0
    return lengths


def reason(error: Exception) -> str:
    """What is wrong with an entry of a label file, in words."""
    match error:
        case KeyError():
            return f"{error} is missing"
        case TypeError() | AttributeError():
            return "an entry of the wrong kind"
        case UnicodeEncodeError():
            return "characters that do not belong there"
        case _:
            return str(error)


def _size(entry: Any) -> tuple[int, int]:
    """Height and width that a COCO file says of an image."""
    try:
        return int(entry["height"]), int(entry["width"])
    except (ValueError, OverflowError):
        size = f"{entry['width']!r:.20} x {entry['height']!r:.20}"
        raise ValueError(f"an image of {size}, not whole numbers") from None


def _codec() -> Any:
    try:
        from pycocotools import mask
    except ImportError:
        raise GfssError("COCO files need the package pycocotools; install it with: pip install 'gfss[coco]'") from None
    return mask
