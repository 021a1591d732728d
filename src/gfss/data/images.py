"""Image files in, arrays out; everything that can be wrong with a file is answered in one sentence."""

from __future__ import annotations

import errno
from functools import cache
from pathlib import Path
from threading import Lock

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from gfss.common.errors import GfssError
from gfss.common.files import refuse_special
from gfss.data.catalog import VOID

UNREADABLE = (OSError, SyntaxError, ValueError)  # what Pillow raises on files that are no good
MASK_MODES = ("L", "P", "1")  # one 8-bit value per pixel: grey, palette index, black and white
MAX_PIXELS = 150_000_000  # an image beyond this is a mistake or an attack
ORIENTATION = 0x0112  # EXIF tag; values 5 to 8 exchange height and width
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM", "JPEG2000")  # others may start programs

_OPENING = Lock()


def image_size(path: Path) -> tuple[int, int]:
    """Height and width of an image as ``read_image`` gives it, from the file's header where that is enough."""
    with open_image(path) as file:
        width, height = file.size
        try:
            turned = file.getexif().get(ORIENTATION) in (5, 6, 7, 8)
        except UNREADABLE as error:
            raise _damaged(path, error) from None
    return (width, height) if turned else (height, width)


def read_image(path: Path | str) -> np.ndarray:
    """Any image as (height, width, 3) uint8: EXIF turned, grey, alpha, 16 bit and CMYK converted."""
    with open_image(Path(path)) as file:
        try:
            file.load()
            image = ImageOps.exif_transpose(file)
        except UNREADABLE as error:
            raise _damaged(path, error) from None
    if image.mode.startswith("I") or image.mode == "F":
        values = np.asarray(image, dtype=np.float64)
        if not np.isfinite(values).all():
            raise GfssError(f"{path} has pixels that are NaN or infinite; fill them in before, or leave the image out")
        top = values.max() if image.mode == "F" else 65535
        grey = np.clip(values * (255 / max(top, 1)), 0, 255).astype(np.uint8)
        return np.repeat(grey[..., None], 3, axis=2)
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    return np.asarray(image.convert("RGB"))


def read_mask(path: Path | str) -> np.ndarray:
    """An index mask as (height, width) uint8; refuses colours and values that do not fit."""
    values = read_values(path)
    if values.dtype != np.uint8 and (values.min() < 0 or values.max() > VOID):
        low, high = int(values.min()), int(values.max())
        raise GfssError(
            f"{path} has values from {low} to {high}; class values are 0 to {VOID - 1}, and {VOID} is void: "
            f"--void {high} leaves a value out, --label VALUE takes one as the class"
        )
    return values.astype(np.uint8)


def read_values(path: Path | str) -> np.ndarray:
    """The values of an index mask as they are, (height, width) uint8 or, of 16 and 32 bits, int64."""
    with open_image(Path(path)) as file:
        wide = file.mode.startswith("I") or file.mode == "F"
        if file.mode not in MASK_MODES and not wide:
            raise GfssError(
                f"{path} is a {file.mode} image, not an index mask; save one value per pixel (0 background, "
                f"{VOID} void) or put a labelmap.txt with the colours beside it"
            )
        try:
            values = np.asarray(ImageOps.exif_transpose(file))  # as the image is turned
        except UNREADABLE as error:
            raise _damaged(path, error) from None
    if not wide:
        return values.astype(np.uint8)
    if not np.isfinite(values).all() or (values != np.round(values)).any() or np.abs(values).max(initial=0) > 2**31:
        raise GfssError(f"{path} has values that are not whole numbers; a mask has one whole number per pixel")
    return values.astype(np.int64)


def read_colours(path: Path) -> np.ndarray:
    """A colour mask as (height, width, 3) uint8: palette applied, transparency dropped."""
    with open_image(path) as file:
        try:
            return np.asarray(ImageOps.exif_transpose(file).convert("RGB"))
        except UNREADABLE as error:
            raise _damaged(path, error) from None


def open_image(path: Path) -> Image.Image:
    """Open an image without decoding it; say in one sentence why that fails."""
    refuse_special(path)
    try:
        with _OPENING:
            usual, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None  # the check below answers in a sentence
            try:
                file = Image.open(path, formats=_formats())
            finally:
                Image.MAX_IMAGE_PIXELS = usual
    except FileNotFoundError:
        raise GfssError(f"{path} does not exist") from None
    except IsADirectoryError:
        raise GfssError(f"{path} is a folder, not an image") from None
    except PermissionError:
        raise GfssError(f"{path} cannot be read; check its permissions") from None
    except UnidentifiedImageError:
        kinds = "JPEG, PNG, WebP, BMP, TIFF, GIF, PPM or JPEG 2000"
        raise GfssError(f"{path} is not an image of a known kind; save it as {kinds}") from None
    except UNREADABLE as error:
        if isinstance(error, OSError) and error.errno == errno.ELOOP:
            raise GfssError(f"{path} is a link that leads back to itself; give the file itself") from None
        raise _damaged(path, error) from None
    width, height = file.size
    if height * width > MAX_PIXELS:
        file.close()
        raise GfssError(
            f"{path} has {width} x {height} pixels; at most {MAX_PIXELS // 10**6} million are read, scale it down first"
        )
    return file


@cache
def _formats() -> tuple[str, ...]:
    """Those that this build of Pillow knows."""
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _damaged(path: Path | str, error: Exception) -> GfssError:
    what = " ".join(str(error).split()).removeprefix("image file is truncated").strip(" ()").lower()
    return GfssError(f"{path} is damaged or cut off{f' ({what})' if what else ''}; replace the file")
