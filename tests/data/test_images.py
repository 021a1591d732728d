"""Image files of all kinds, and what is wrong with some."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.data.make import SIZE, boxes, header_only_png, photo, png

from gfss.common.errors import GfssError
from gfss.data.images import image_size, read_colours, read_image, read_mask


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "LA", "P", "CMYK", "1", "I;16", "F"])
def test_every_mode_becomes_rgb(tmp_path: Path, mode: str) -> None:
    suffix = {"CMYK": ".jpg", "F": ".tif"}.get(mode, ".png")
    source = Image.new(mode, (32, 24))
    source.save(tmp_path / f"x{suffix}")
    image = read_image(tmp_path / f"x{suffix}")
    assert image.shape == (24, 32, 3)
    assert image.dtype == np.uint8


def test_transparent_pixels_are_white_in_images_and_dropped_in_masks(tmp_path: Path) -> None:
    Image.new("RGBA", (4, 4), (255, 0, 0, 0)).save(tmp_path / "x.png")
    assert (read_image(tmp_path / "x.png") == 255).all()
    assert (read_colours(tmp_path / "x.png") == (255, 0, 0)).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_turns_image_and_size_alike(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.new("RGB", (32, 24)).save(tmp_path / "x.jpg", exif=exif)
    expected = (24, 32) if orientation < 5 else (32, 24)
    assert image_size(tmp_path / "x.jpg") == expected
    assert read_image(tmp_path / "x.jpg").shape[:2] == expected


def test_index_and_palette_masks_keep_their_values(tmp_path: Path) -> None:
    mask = boxes(1, 7, 255)
    palette = Image.fromarray(mask).convert("P")
    palette.putpalette([255 - i // 3 for i in range(768)])
    palette.save(tmp_path / "p.png")
    np.testing.assert_array_equal(read_mask(png(tmp_path / "l.png", mask)), mask)
    np.testing.assert_array_equal(read_mask(tmp_path / "p.png"), mask)


def test_bilevel_mask_has_values_0_and_1(tmp_path: Path) -> None:
    assert set(np.unique(read_mask(png(tmp_path / "x.png", boxes(255), mode="1")))) == {0, 1}


def test_missing_file(tmp_path: Path) -> None:
    for read in (read_image, read_mask, image_size):
        with pytest.raises(GfssError, match=r"none\.png does not exist"):
            read(tmp_path / "none.png")


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp"])
def test_truncated_image(tmp_path: Path, suffix: str) -> None:
    path = photo(tmp_path / f"x{suffix}", (64, 64))
    path.write_bytes(path.read_bytes()[:-400])
    with pytest.raises(GfssError, match=r"x\.\w+ is (damaged or cut off|not an image of a known kind)"):
        read_image(path)


def test_truncated_mask(tmp_path: Path) -> None:
    path = png(tmp_path / "x.png", np.random.default_rng(0).integers(0, 9, (64, 64), dtype=np.uint8))
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(GfssError, match="damaged or cut off"):
        read_mask(path)


def test_text_file_and_folder_are_no_pictures(tmp_path: Path) -> None:
    (tmp_path / "x.jpg").write_text("hello")
    with pytest.raises(GfssError, match="not an image of a known kind"):
        read_image(tmp_path / "x.jpg")
    with pytest.raises(GfssError, match="is a folder, not an image"):
        read_image(tmp_path)


def test_rgb_mask(tmp_path: Path) -> None:
    path = photo(tmp_path / "x.png")
    with pytest.raises(GfssError, match=r"has colours \(RGB\), so it is not an index mask; save one value per pixel"):
        read_mask(path)


@pytest.mark.parametrize("read", [read_image, read_mask, read_colours, image_size])
def test_huge_image_is_refused_before_it_is_decoded(tmp_path: Path, read) -> None:
    path = header_only_png(tmp_path / "x.png", 20_000, 20_000)
    with pytest.raises(GfssError, match="has 20000 x 20000 pixels; at most 150 million are read, scale it down first"):
        read(path)


def test_size_without_exif(tmp_path: Path) -> None:
    assert image_size(photo(tmp_path / "x.png")) == SIZE


def test_a_tiff_of_satellite_bands_is_named_as_such(tmp_path: Path) -> None:
    """Five bands of 16 bits."""
    tags = {256: (3, 4), 257: (3, 3), 258: (3, 16), 259: (3, 1), 262: (3, 1), 273: (4, 200), 277: (3, 5)}
    entries = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, (kind, value) in tags.items())
    header = b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + struct.pack("<I", 0)
    (tmp_path / "a.tif").write_bytes(header.ljust(200, b"\0") + bytes(4 * 3 * 5 * 2))
    with pytest.raises(GfssError, match=r"a\.tif is a TIFF whose bands or bits are not read; save 1, 3 or 4 bands"):
        read_image(tmp_path / "a.tif")
