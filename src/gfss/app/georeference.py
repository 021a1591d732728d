"""GeoTIFF: the place on Earth of an image goes with its mask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, TiffImagePlugin, TiffTags

from gfss.common.errors import GfssError
from gfss.common.files import write_atomically
from gfss.data.images import open_image

# pixel scale, tie points, transformation, the directory of keys and its numbers and texts
TAGS = {
    33550: TiffTags.DOUBLE,
    33922: TiffTags.DOUBLE,
    34264: TiffTags.DOUBLE,
    34735: TiffTags.SHORT,
    34736: TiffTags.DOUBLE,
    34737: TiffTags.ASCII,
}
Georeference = dict[int, Any]


def georeference(path: Path) -> Georeference:
    """Tags of a TIFF file that say where it lies on Earth; empty for all other files."""
    if path.suffix.lower() not in (".tif", ".tiff"):
        return {}
    try:
        with open_image(path) as file:
            tags = getattr(file, "tag_v2", {})
            return {tag: tags[tag] for tag in TAGS if tag in tags}
    except GfssError:  # whoever reads the pixels says what is wrong
        return {}


def write_geotiff(path: Path, mask: np.ndarray, place: Georeference) -> None:
    """Write a mask (height, width) uint8 as TIFF with a georeference."""
    tags = TiffImagePlugin.ImageFileDirectory_v2()
    for tag, value in place.items():
        tags.tagtype[tag] = TAGS[tag]
        tags[tag] = value
    with write_atomically(path) as file:
        Image.fromarray(mask).save(file, format="TIFF", tiffinfo=tags)
