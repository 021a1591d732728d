"""COCO panoptic: a colour PNG per image whose colours are segment numbers, and a JSON file with their classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gfss.common.errors import GfssError, quoted
from gfss.common.files import is_file
from gfss.data.catalog import VOID
from gfss.data.datasets.base import unique_names
from gfss.data.images import read_colours
from gfss.data.labels.base import Labels
from gfss.data.labels.instances import Finder, reason


def is_panoptic(content: Any) -> bool:
    """Whether the content of a JSON file is of COCO panoptic."""
    annotations = content.get("annotations") if isinstance(content, dict) else None
    return (
        isinstance(annotations, list)
        and bool(annotations)
        and isinstance(annotations[0], dict)
        and "segments_info" in annotations[0]
    )


def read_panoptic(path: Path, content: dict[str, Any], finder: Finder) -> Labels:
    """Images of a panoptic file; what has no segment is void, as crowds are."""
    try:
        ordered = sorted(content["categories"], key=lambda category: category["id"])
        if not all(isinstance(category["name"], str) for category in ordered):
            raise ValueError("a category without a name")
        classes = unique_names((category["name"] for category in ordered), path)
        values = {category["id"]: value for value, category in enumerate(ordered, start=1)}
        names = {image["id"]: str(image["file_name"]) for image in content["images"]}
        unknown = next((e["image_id"] for e in content["annotations"] if e["image_id"] not in names), None)
        if unknown is not None:
            raise ValueError(f"an annotation is of image {unknown}, not listed")
        entries = [
            (
                names[entry["image_id"]],
                str(entry["file_name"]),
                {_number(s): VOID if s.get("iscrowd") else _value(s, values) for s in entry["segments_info"]},
            )
            for entry in content["annotations"]
        ]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise GfssError(f"{path} is not a complete panoptic file ({reason(error)}); export it again") from None
    found = [(finder.find(name), _colours(path, file), ids) for name, file, ids in sorted(entries, key=lambda e: e[0])]
    if finder.only:
        found = [entry for entry in found if entry[0] is not None]
    missing = sum(1 for image, _, _ in found if image is None)
    if missing or not found:
        raise GfssError(
            f"{missing} of {len(found)} images of {path} were not found; put them into a folder images/ beside it"
        )
    images = tuple(image for image, _, _ in found if image is not None)
    masks = tuple(mask for _, mask, _ in found)

    def draw(i: int) -> np.ndarray:
        return _draw(masks[i], found[i][2])

    return Labels("COCO panoptic", classes, images, masks, draw, (path,))


def _colours(path: Path, name: str) -> Path:
    """The PNG with the segments: in a folder of the JSON file's name, or beside it."""
    plain = Path(name).name
    places = [path.with_suffix("") / plain, path.parent.parent / path.stem / plain, path.parent / plain]
    return next((place for place in places if is_file(place)), places[0])


def _draw(file: Path, ids: dict[int, int]) -> np.ndarray:
    rgb = read_colours(file).astype(np.int64)
    numbers = rgb[..., 0] + 256 * rgb[..., 1] + 65536 * rgb[..., 2]
    found, where = np.unique(numbers, return_inverse=True)
    strange = [int(number) for number in found if number and int(number) not in ids]
    if strange:
        raise GfssError(f"{file} has the segment {strange[0]} that the JSON file does not list; export both again")
    table = np.array([ids.get(int(number), VOID) for number in found], dtype=np.uint8)
    return table[where].reshape(numbers.shape)


def _number(segment: dict[str, Any]) -> int:
    try:
        return int(segment["id"])
    except (ValueError, OverflowError):
        raise ValueError(f"a segment with the id {quoted(segment['id'], 20)}, not a whole number") from None


def _value(segment: dict[str, Any], values: dict[Any, int]) -> int:
    if segment["category_id"] not in values:
        raise ValueError(f"a segment is of category {quoted(segment['category_id'], 20)}, not listed")
    return values[segment["category_id"]]
