"""Images: files in, arrays out; arrays to the square tensors that encoders take; masks laid over images in colour.

Everything that can be wrong with a file is answered in one sentence. The geometry of square tensors is that of the
evaluation protocol: the long side becomes ``size`` (floored to a multiple of 8), the aspect ratio is kept, the rest is
padded at the bottom and right with zeros (before normalisation) for images and with 255 for labels.
"""

from __future__ import annotations

import colorsys
import errno
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile

from gfss.common.errors import GfssError
from gfss.common.files import refuse_special
from gfss.data.catalog import BACKGROUND, VOID

if TYPE_CHECKING:
    from torch import Tensor

UNREADABLE = (OSError, SyntaxError, ValueError)  # what Pillow raises on files that are no good
MASK_MODES = ("L", "P", "1")  # one 8-bit value per pixel: grey, palette index, black and white
MAX_PIXELS = 150_000_000  # an image beyond this is a mistake or an attack
TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # the latter of BigTIFF
NEW_SUBFILE_TYPE, REDUCED_OR_MASK = 254, 0b101  # TIFF tag of a picture in a file; its bits for copies
MOST_FRAMES = 50  # of a TIFF file that are looked at
ORIENTATION = 0x0112  # EXIF tag; values 5 to 8 exchange height and width
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM", "JPEG2000")  # others may start programs

MULTIPLE = 8
STRIP = 256  # rows of an image that are coloured at once
GOLDEN_ANGLE = 0.381966  # of a full turn: neighbouring classes get distant hues
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif")

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
                f"{path} has colours ({file.mode}), so it is not an index mask; save one value per pixel (0 "
                f"background, {VOID} void) or put a labelmap.txt with the colours beside it"
            )
        try:
            _refuse_frames(file, path)
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
            _refuse_frames(file, path)
            return np.asarray(ImageOps.exif_transpose(file).convert("RGB"))
        except UNREADABLE as error:
            raise _damaged(path, error) from None


def read_transparency(path: Path) -> np.ndarray | None:
    """The opacity (height, width) uint8 of a mask that is one colour on nothing; None of any other picture."""
    with open_image(path) as file:
        if file.mode not in ("RGBA", "LA"):
            return None
        try:
            pixels = np.asarray(ImageOps.exif_transpose(file).convert("RGBA"))
        except UNREADABLE as error:
            raise _damaged(path, error) from None
    colours, opacity = pixels[..., :3][pixels[..., 3] > 0], pixels[..., 3]
    one = len(colours) and (colours == colours[0]).all() and (opacity == 0).any()
    return opacity if one else None


def _refuse_frames(file: Image.Image, path: Path | str) -> None:
    """Raise if a mask is a stack or a film: nobody knows which of its pictures is meant."""
    frames = getattr(file, "n_frames", 1)
    if frames > 1 and isinstance(file, TiffImageFile):
        kinds: list[int] = []
        for number in range(min(frames, MOST_FRAMES)):
            file.seek(number)
            kinds.append(int(file.tag_v2.get(NEW_SUBFILE_TYPE, 0)))
        file.seek(0)
        frames = sum(not kind & REDUCED_OR_MASK for kind in kinds)  # GeoTIFF keeps smaller copies of itself
    if frames > 1:
        raise GfssError(f"{path} holds {frames} images; save the one that is the mask of its image, as PNG")


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
        with path.open("rb") as content:
            if content.read(4) in TIFF_STARTS:
                raise GfssError(
                    f"{path} is a TIFF whose bands or bits are not read; save 1, 3 or 4 bands of 8 bits, or 1 of 16"
                ) from None
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


def fitted_size(height: int, width: int, size: int) -> tuple[int, int]:
    """Height and width after the aspect-keeping resize into a ``size`` x ``size`` square.

    >>> fitted_size(375, 500, 417)
    (312, 416)
    """
    scale = size / max(height, width)
    fit = [max(MULTIPLE, int(side * scale + 1e-6) // MULTIPLE * MULTIPLE) for side in (height, width)]
    return fit[0], fit[1]


def square_image(image: np.ndarray, size: int) -> np.ndarray:
    """Resize (bilinear) and pad an image (height, width, 3) uint8 to (size, size, 3) uint8."""
    image = _fitted_image(image, size)
    out = np.zeros((size, size, 3), dtype=np.uint8)
    out[: image.shape[0], : image.shape[1]] = image
    return out


def mirrored_image(image: np.ndarray, size: int, scale: float = 1.0) -> np.ndarray:
    """As :func:`square_image`, but the image is mirrored into the frame around it.

    An encoder then sees ordinary content beyond the border, where black would look like an object of its own.

    Args:
        scale: of the image within the square, at most 1.
    """
    image = _fitted_image(image, int(size * scale))
    rest = [(0, size - side) for side in image.shape[:2]]
    return np.pad(image, [*rest, (0, 0)], mode="reflect")


def _fitted_image(image: np.ndarray, size: int) -> np.ndarray:
    height, width = fitted_size(image.shape[0], image.shape[1], size)
    if image.shape[:2] == (height, width):
        return image
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR))


def square_label(label: np.ndarray, size: int, scale: float = 1.0) -> np.ndarray:
    """Resize (nearest) and pad a label map (height, width) uint8 to (size, size) with 255.

    Args:
        scale: of the label map within the square, at most 1.
    """
    height, width = fitted_size(label.shape[0], label.shape[1], int(size * scale))
    if label.shape != (height, width):
        label = np.asarray(Image.fromarray(label).resize((width, height), Image.Resampling.NEAREST))
    out = np.full((size, size), VOID, dtype=np.uint8)
    out[:height, :width] = label
    return out


def to_tensor(images: np.ndarray) -> Tensor:
    """(batch, height, width, 3) uint8 to (batch, 3, height, width) float32 in [0, 1], as encoders take it."""
    import torch  # commands that only read data do without it

    return torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2).float().div_(255)


def class_colours(classes: int) -> np.ndarray:
    """A colour for every mask value, (256, 3) uint8: black background, white void, distinct classes between."""
    table = np.zeros((256, 3), dtype=np.uint8)
    for value in range(1, classes + 1):
        hue, bright = value * GOLDEN_ANGLE % 1, 1.0 if value % 2 else 0.75
        table[value] = [round(255 * part) for part in colorsys.hsv_to_rgb(hue, 0.85, bright)]
    table[VOID] = 255
    return table


def overlay(image: np.ndarray, mask: np.ndarray, colours: np.ndarray, strength: float = 0.55) -> np.ndarray:
    """Image (height, width, 3) with the mask's colours laid over everything but background."""
    result = image.astype(np.uint8)
    for top in range(0, len(image), STRIP):  # a large photograph takes no more memory than a strip of it
        part = slice(top, top + STRIP)
        shown = mask[part] != BACKGROUND
        blend = (1 - strength) * image[part][shown] + strength * colours[mask[part][shown]]
        result[part][shown] = blend.astype(np.uint8)
    return result
