"""Video files as a series of images; needs the extra ``video``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gfss.common.errors import GfssError
from gfss.common.files import refuse_special
from gfss.data.images import MAX_PIXELS

VIDEO_SUFFIXES = (".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v")


def is_video(path: Path) -> bool:
    """Whether a file is a video by its name."""
    return path.suffix.lower() in VIDEO_SUFFIXES


def frames(path: Path) -> Iterator[np.ndarray]:
    """Every frame of a video, (height, width, 3) uint8."""
    import av
    from av.error import FFmpegError

    refuse_special(path)
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise GfssError(f"{path} has no images in it, only sound; give a video")
            for frame in container.decode(video=0):
                if frame.width * frame.height > MAX_PIXELS:
                    raise GfssError(f"{path} has frames of {frame.width} x {frame.height} pixels; scale it down first")
                yield frame.to_ndarray(format="rgb24")
    except (FFmpegError, OSError, ValueError) as error:
        raise GfssError(f"{path} is not a readable video ({error})") from None
