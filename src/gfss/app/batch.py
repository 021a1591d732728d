"""Segmenting many pictures into a folder of masks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from gfss.app.inputs import ImageLike, output_names
from gfss.app.segmentation import Result, frames, georeference, is_video, write_geotiff
from gfss.common.devices import connected_cluster
from gfss.common.errors import GfssError
from gfss.common.files import DISK_FULL, program_hash, write_atomically
from gfss.common.progress import note, track

CLASSES = "classes.txt"
JOURNAL = ".unfinished"
BATCH = 8  # images that a worker of a cluster takes at once
ENDINGS = (".png", ".tif", "_overlay.jpg", "_scores.npz")  # of what is written for a picture


class Segments(Protocol):
    """What gives a mask for a picture: a model or an ONNX file."""

    @property
    def classes(self) -> tuple[str, ...]: ...

    @property
    def fingerprint(self) -> str: ...

    def segment(self, image: ImageLike, *, balance: float = 0.0, tile: bool = False) -> Result: ...


@dataclass(frozen=True)
class Writing:
    """What is written of every image, and where.

    Attributes:
        out: folder of the masks.
        balance: of all taught classes.
        tile: segment large images in tiles.
        overlay: also write images with the classes in colour.
        scores: also write the class probabilities.
    """

    out: Path
    balance: float = 0.0
    tile: bool = False
    overlay: bool = True
    scores: bool = False

    def write(self, model: Segments, path: Path, stem: str) -> list[str]:
        """Write what a file shows, an image or a video; a line about each mask."""
        lines: list[str] = []
        place = georeference(path)
        for name, image in _images(path, stem):
            result = model.segment(image, balance=self.balance, tile=self.tile)
            written = result.save(self.out / f"{name}.png", overlay=self.overlay, scores=self.scores)
            if place:
                write_geotiff(self.out / f"{name}.tif", result.mask, place)
            found = ", ".join(f"{name} {share:.1%}" for name, share in result.found.items()) or "only background"
            lines.append(f"{written[0]}: {found}")
        return lines


File = tuple[Path, str]
"""An image or video, and the name of its mask."""


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
    An image that cannot be read does not stop the others; an error at the end says how many there were. What an
    interrupted call of the same model and options has done is not done again. The workers of a cluster share the files.
    """
    names = tuple(model.classes[1:])
    refuse_mixture(paths, out, names)
    files = list(zip(paths, output_names(paths), strict=True))
    with write_atomically(out / CLASSES) as file:
        file.write(("\n".join(names) + "\n").encode())
    writing = Writing(out, balance, tile, overlay, scores)
    journal = Journal.open(out, model, writing)
    left = [one for one in files if one not in journal]
    if len(left) < len(files):
        note(f"{len(files) - len(left)} of {len(files)} images were done before an interruption, they are kept")
    failed: list[GfssError] = []
    for one, outcome in track(_outcomes(model, writing, left), "segmenting", len(files), len(files) - len(left)):
        if isinstance(outcome, GfssError):
            if DISK_FULL in str(outcome):
                raise outcome
            failed.append(outcome)
        else:
            yield from outcome
            journal.add(one)
    journal.remove()
    if failed and len(paths) > 1:
        for error in failed[1:]:
            note(str(error))
        raise GfssError(f"{len(failed)} of {len(paths)} images were skipped, the others are done; first: {failed[0]}")
    if failed:
        raise failed[0]


def _outcomes(model: Segments, writing: Writing, files: Sequence[File]) -> Iterator[tuple[File, list[str] | GfssError]]:
    """The lines about every file, or why it was skipped."""
    cluster = connected_cluster()
    if cluster is None:
        yield from ((one, _outcome(model, writing, one)) for one in files)
        return
    batches = [files[start : start + BATCH] for start in range(0, len(files), BATCH)]
    made = cluster.map(partial(_batch_job, model, writing), batches)
    for batch, outcomes in zip(batches, made, strict=True):
        yield from zip(batch, outcomes, strict=True)


def _outcome(model: Segments, writing: Writing, file: File) -> list[str] | GfssError:
    try:
        return writing.write(model, *file)
    except GfssError as error:
        return error


def _batch_job(model: Segments, writing: Writing) -> Callable[[Sequence[File]], list[list[str] | GfssError]]:
    return lambda batch: [_outcome(model, writing, one) for one in batch]


class Journal:
    """Which files an unfinished call has done, in a file beside their masks.

    Attributes:
        path: of the journal.
    """

    def __init__(self, path: Path, key: str) -> None:
        self.path, self._out = path, path.parent
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self._done = set(lines[1:]) if lines[:1] == [key] else set[str]()
        if not self._done:
            with write_atomically(path) as file:
                file.write(f"{key}\n".encode())

    @classmethod
    def open(cls, out: Path, model: Segments, writing: Writing) -> Journal:
        """The journal of a folder, empty if it is that of another model or of other options."""
        own = f"{model.fingerprint} {replace(writing, out=Path())} {program_hash('')}"
        return cls(out / JOURNAL, hashlib.sha256(own.encode()).hexdigest())

    def __contains__(self, file: File) -> bool:
        return _entry(file) in self._done and (is_video(file[0]) or (self._out / f"{file[1]}.png").exists())

    def add(self, file: File) -> None:
        """A file is done."""
        with self.path.open("a", encoding="utf-8") as journal:
            journal.write(_entry(file) + "\n")

    def remove(self) -> None:
        """All files are done."""
        self.path.unlink(missing_ok=True)


def _entry(file: File) -> str:
    """A file as a line of the journal; another one once the file has changed."""
    path, stem = file
    try:
        about = path.stat()
    except OSError:
        return ""
    return json.dumps([stem, str(path.resolve()), about.st_size, about.st_mtime_ns])


def _images(path: Path, stem: str) -> Iterator[tuple[str, ImageLike]]:
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
