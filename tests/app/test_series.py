"""Segmenting what is more than an image: videos, images with a place on Earth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, TiffImagePlugin
from tests.app.make import labelled, model

from gfss.app.batch import segment_files
from gfss.app.segmentation import TAGS, georeference
from gfss.app.segmenter import Segmenter
from gfss.common.errors import GfssError

PLACE = {
    33550: (0.5, 0.5, 0.0),
    33922: (0.0, 0.0, 0.0, 600000.0, 5000000.0, 0.0),
    34735: (1, 1, 0, 1, 1024, 0, 1, 1),
    34736: (298.257223563, 0.0),
    34737: "WGS 84 / UTM zone 32N|",
}


@pytest.fixture(scope="module")
def taught() -> Segmenter:
    segmenter = model()
    segmenter.teach("box", *labelled())
    return segmenter


def test_a_mask_lies_where_its_image_lies(taught: Segmenter, tmp_path: Path) -> None:
    tags = TiffImagePlugin.ImageFileDirectory_v2()
    for tag, value in PLACE.items():
        tags.tagtype[tag] = TAGS[tag]
        tags[tag] = value
    image = labelled(1)[0]
    Image.fromarray(image).save(tmp_path / "field.tif", tiffinfo=tags)
    Image.fromarray(image).save(tmp_path / "plain.tif")
    list(segment_files(taught, [tmp_path / "field.tif", tmp_path / "plain.tif"], tmp_path / "out"))
    assert georeference(tmp_path / "out" / "field.tif") == PLACE
    with Image.open(tmp_path / "out" / "field.tif") as tif, Image.open(tmp_path / "out" / "field.png") as png:
        np.testing.assert_array_equal(np.asarray(tif), np.asarray(png))
    assert not (tmp_path / "out" / "plain.tif").exists()  # no place, no file


def test_every_frame_of_a_video_gets_a_mask(taught: Segmenter, tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    images = [labelled(seed)[0] for seed in range(3)]
    with av.open(str(tmp_path / "yard.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", rate=5)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for image in images:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())
    lines = list(segment_files(taught, [tmp_path / "yard.mp4"], tmp_path / "out", overlay=False))
    assert len(lines) == 3
    masks = sorted(path.name for path in (tmp_path / "out").glob("*.png"))
    assert masks == ["yard_000001.png", "yard_000002.png", "yard_000003.png"]
    with Image.open(tmp_path / "out" / masks[0]) as mask:
        assert mask.size == (64, 48)


@pytest.mark.parametrize("content", [b"", b"hello", bytes(2000)])
def test_a_file_that_is_no_video_gets_one_sentence(taught: Segmenter, tmp_path: Path, content: bytes) -> None:
    pytest.importorskip("av")
    (tmp_path / "x.mp4").write_bytes(content)
    with pytest.raises(GfssError, match=r"x\.mp4 is not a readable video"):
        list(segment_files(taught, [tmp_path / "x.mp4"], tmp_path / "out"))
