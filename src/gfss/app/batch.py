"""Segmenting many pictures into a folder of masks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from gfss.app.georeference import georeference, write_geotiff
from gfss.app.inputs import Picture, output_names
from gfss.app.result import Result
from gfss.app.video import frames, is_video
from gfss.common.errors import GfssError
from gfss.common.files import DISK_FULL, write_atomically
from gfss.common.progress import note, track

CLASSES = "classes.txt"
ENDINGS = (".png", ".tif", "_overlay.jpg", "_scores.npz")  # of what is written for a picture


class Segments(Protocol):
    """What gives a mask for a picture: a model or an ONNX file."""

    @property
    def classes(self) -> tuple[str, ...]: ...

    def segment(self, image: Picture, *, balance: float = 0.0, tile: bool = False) -> Result: ...


def segment_files(
    model: Segments,
    paths: Sequence[Path],
    out: Path,
    *,
    balance: float = 0.0,
    tile: bool = False,
    overlay: bool = True,
    scores: bool = False,
) -> Iterator[str]:
    """Write ``NAME.png`` for every picture and ``classes.txt``; a line about each.

    A video gives a mask for every frame (``NAME_000001.png``), a GeoTIFF also ``NAME.tif`` with its georeference.
    A picture that cannot be read does not stop the others; an error at the end says how many there were.
    """
    names = tuple(model.classes[1:])
    refuse_mixture(paths, out, names)
    stems = output_names(paths)
    with write_atomically(out / CLASSES) as file:
        file.write(("\n".join(names) + "\n").encode())
    failed: list[GfssError] = []
    for path, stem in track(zip(paths, stems, strict=True), "segmenting", total=len(paths)):
        place = georeference(path)
        try:
            for name, image in _images(path, stem):
                result = model.segment(image, balance=balance, tile=tile)
                written = result.save(out / f"{name}.png", overlay=overlay, scores=scores)
                if place:
                    write_geotiff(out / f"{name}.tif", result.mask, place)
                found = ", ".join(f"{name} {share:.1%}" for name, share in result.found.items()) or "only background"
                yield f"{written[0]}: {found}"
        except GfssError as error:
            if DISK_FULL in str(error):
                raise
            failed.append(error)
    if failed and len(paths) > 1:
        for error in failed[1:]:
            note(str(error))
        raise GfssError(f"{len(failed)} of {len(paths)} images were skipped, the others are done; first: {failed[0]}")
    if failed:
        raise failed[0]


def _images(path: Path, stem: str) -> Iterator[tuple[str, Picture]]:
    """What a file shows, each with a name for its mask: an image, or the frames of a video."""
    if not is_video(path):
        yield stem, path
        return
    for number, frame in enumerate(frames(path), start=1):
        yield f"{stem}_{number:06d}", frame


def refuse_mixture(paths: Sequence[Path], out: Path, names: Sequence[str]) -> None:
    """Raise if masks would lie among the pictures, where they overwrite them or are taken for some the next time.

    The same if masks of other classes lie there, or files of the names to be written that gfss did not write. More
    classes than there were, or fewer, are fine: values stay.
    """
    place = out.resolve()
    among = next((path for path in paths if place in (path.resolve().parent, path.parent.resolve())), None)
    if among is not None:
        raise GfssError(f"the masks would be written into the image folder {among.parent}; give another folder with -o")
    try:
        there = (out / CLASSES).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        written = (out / f"{stem}{ending}" for stem in output_names(paths) for ending in ENDINGS)
        if own := next((path for path in written if path.exists()), None):
            raise GfssError(
                f"{own} already exists, and there is no {CLASSES} beside it, so gfss did not write it; give another "
                "folder with -o"
            ) from None
        return
    for old, new in zip(there, names, strict=False):
        if old != new:
            raise GfssError(
                f"{out / CLASSES} lists other classes than the model ('{old}' instead of '{new}'), so one value "
                "would mean two classes; give another folder with -o"
            )
