"""Small files and folders for the tests of the data room."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SIZE = (24, 32)  # height and width of all small pictures


def photo(path: Path, size: tuple[int, int] = SIZE, seed: int = 0) -> Path:
    """A picture of noise; the suffix says in which format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    return path


def png(path: Path, mask: np.ndarray, mode: str | None = None) -> Path:
    """A mask as it is: (height, width) uint8 or (height, width, 3)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray(mask)
    (picture.convert(mode) if mode else picture).save(path)
    return path


def boxes(*values: int, size: tuple[int, int] = SIZE) -> np.ndarray:
    """A mask with one 8 x 8 box per value from left to right, on background."""
    mask = np.zeros(size, dtype=np.uint8)
    for i, value in enumerate(values):
        mask[8:16, 8 * i : 8 * i + 8] = value
    return mask


def plain(root: Path, masks: Mapping[str, np.ndarray], classes: Sequence[str], val: Sequence[str] = ()) -> Path:
    """A folder in the plain form; ids that are not val are train."""
    for seed, (name, mask) in enumerate(masks.items()):
        photo(root / "images" / f"{name}.jpg", mask.shape, seed)
        png(root / "masks" / f"{name}.png", mask)
    (root / "train.txt").write_text("\n".join(name for name in masks if name not in val))
    (root / "val.txt").write_text("\n".join(val))
    (root / "classes.txt").write_text("\n".join(classes))
    return root


def write(path: Path, content: Any) -> Path:
    """A JSON file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def labelme(path: Path, shapes: Sequence[tuple[str, str, Any]], **more: Any) -> Path:
    """A labelme file from (label, shape type, points)."""
    entries = [{"label": label, "shape_type": kind, "points": points} for label, kind, points in shapes]
    return write(path, {"version": "5.5.0", "shapes": entries, "imagePath": f"{path.stem}.jpg", **more})


def coco_json(path: Path, annotations: Mapping[str, Sequence[Mapping[str, Any]]], classes: Mapping[int, str]) -> Path:
    """A COCO file from file name -> annotations."""
    entries = [
        {"id": 100 * i + j, "image_id": i, **annotation}
        for i, group in enumerate(annotations.values())
        for j, annotation in enumerate(group)
    ]
    images = [{"id": i, "file_name": n, "height": SIZE[0], "width": SIZE[1]} for i, n in enumerate(annotations)]
    categories = [{"id": number, "name": name} for number, name in classes.items()]
    return write(path, {"images": images, "annotations": entries, "categories": categories})


def box_polygon(left: int, top: int, right: int, bottom: int) -> list[float]:
    """A rectangle as a COCO polygon."""
    return [float(v) for v in (left, top, right, top, right, bottom, left, bottom)]


def header_only_png(path: Path, width: int, height: int) -> Path:
    """A PNG file that says how large it is and holds nothing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")))
    return path
