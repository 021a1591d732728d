"""The embedded data set: generated scenes of twelve everyday shapes, no download.

The scenes have the plain folder form (see ``gfss.data.datasets.folder``), are a pure function of the seed, and
take seconds to make. Shape tells the class; texture helps a little and colour hardly at all. Four folds
of three new classes each: ``make_fold(12, fold)``.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image

from gfss.common.errors import GfssError, unknown
from gfss.common.files import cache_folder, make_folder, read_json, write_json
from gfss.common.progress import track
from gfss.data.datasets.scenes.painter import paint_scene
from gfss.data.datasets.scenes.shapes import SHAPES

SCENE_CLASSES = tuple(SHAPES)
VERSION = 4  # raise it when the same seed no longer gives the same files
TRAIN_IMAGES, VAL_IMAGES = 1200, 320
SPLITS = ("train", "val")
CARD = "scenes.json"  # what the folder holds; lies in complete folders only
GROUPS = ((4, 4, 4), (4, 4, 4), (4, 3, 3, 2))  # ways to deal the twelve classes over three or four images
SECOND_OBJECT = 0.3  # how often an image of two or three classes shows one of them twice


def make_scenes(
    folder: Path | None = None,
    seed: int = 0,
    train: int = TRAIN_IMAGES,
    val: int = VAL_IMAGES,
    workers: int | None = None,
) -> Path:
    """Make the embedded data set unless it is there, and say where.

    The folder appears complete or not at all, so an interrupted run is simply made again.

    Args:
        folder: where to; a place in the cache if left out.
        seed: same seed, same files, whatever the number of workers.
        train: number of training images.
        val: number of validation images.
        workers: processes to paint with; all cores if left out.
    """
    if seed < 0 or train < 1 or val < 1:
        raise GfssError(
            f"scenes need a seed of 0 or more and at least one image per split, not {seed=}, {train=}, {val=}"
        )
    folder = folder or cache_folder("scenes") / f"v{VERSION}-seed{seed}-{train}-{val}"
    card = {"scenes": VERSION, "seed": seed, "train": train, "val": val}
    if _holds(folder, card):
        return folder
    with _new_folder(folder, card) as work:
        _fill(work, seed, dict(zip(SPLITS, (train, val), strict=True)), workers or os.cpu_count() or 1)
        write_json(work / CARD, card)
    return folder


def labelled_scene(name: str, seed: int | Sequence[int] = 0) -> tuple[np.ndarray, np.ndarray]:
    """A generated image that shows a class among two others, and where it is; for trying things out.

    >>> image, mask = labelled_scene("ring")
    >>> image.shape, mask.shape, bool(mask.any())
    ((112, 112, 3), (112, 112), True)

    Args:
        name: one of ``SCENE_CLASSES``.
        seed: a number or several; another seed, another image.
    """
    if name not in SCENE_CLASSES:
        raise unknown("class of the scenes", name, SCENE_CLASSES)
    class_id, rng = SCENE_CLASSES.index(name) + 1, np.random.default_rng(seed)
    others = [one for one in range(1, len(SCENE_CLASSES) + 1) if one != class_id]
    image, mask = paint_scene((*rng.choice(others, 2, replace=False).tolist(), class_id), rng)
    return image, mask == class_id


def _holds(folder: Path, card: dict[str, int]) -> bool:
    """Whether the folder holds this very set; a folder with anything else in it is refused."""
    if (folder / CARD).exists() and read_json(folder / CARD) == card:
        return True
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise GfssError(f"{folder} already holds something else; name a new or empty folder for the scenes")
    return False


@contextmanager
def _new_folder(folder: Path, card: dict[str, int]) -> Iterator[Path]:
    """A folder to fill that takes its final name only when all went well."""
    make_folder(folder.parent)
    try:
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
            work = Path(temporary) / folder.name
            work.mkdir()
            yield work
            if _holds(folder, card):  # another process was faster
                return
            if folder.exists():
                folder.rmdir()
            work.rename(folder)
    except OSError as error:
        raise GfssError(f"cannot write the scenes to {folder}: {error.strerror}") from None


def _fill(folder: Path, seed: int, counts: dict[str, int], workers: int) -> None:
    """Write class names, lists, images and masks."""
    for name in ("images", "masks"):
        (folder / name).mkdir()
    _write_lines(folder / "classes.txt", SCENE_CLASSES)
    jobs: list[tuple[Path, str, tuple[int, ...], tuple[int, int, int]]] = []
    for stream, (split, count) in enumerate(counts.items()):
        names = [f"{split}_{i:05d}" for i in range(count)]
        _write_lines(folder / f"{split}.txt", names)
        deals = islice(_deal_classes(np.random.default_rng((stream, seed))), count)
        jobs += [(folder, n, c, (stream, seed, i)) for i, (n, c) in enumerate(zip(names, deals, strict=True))]
    if workers == 1:
        _exhaust(track(map(_write_scene, jobs), "painting scenes", total=len(jobs)))
        return
    with ProcessPoolExecutor(workers) as pool:
        _exhaust(track(pool.map(_write_scene, jobs, chunksize=8), "painting scenes", total=len(jobs)))


def _deal_classes(rng: np.random.Generator) -> Iterator[tuple[int, ...]]:
    """Class ids of one image after another: dealt like cards, so that all classes are equally frequent."""
    while True:
        deck = rng.permutation(len(SCENE_CLASSES)) + 1
        sizes = rng.permutation(GROUPS[rng.integers(len(GROUPS))])
        for hand in np.split(deck, np.cumsum(sizes)[:-1]):
            twice = [rng.choice(hand)] if len(hand) < 4 and rng.random() < SECOND_OBJECT else []
            yield tuple(int(c) for c in (*hand, *twice))


def _write_scene(job: tuple[Path, str, tuple[int, ...], tuple[int, int, int]]) -> None:
    folder, name, class_ids, seed = job
    image, mask = paint_scene(class_ids, np.random.default_rng(seed))
    Image.fromarray(image).save(folder / "images" / f"{name}.png")
    index = Image.fromarray(mask)
    index.putpalette(_palette())  # makes it a palette image, values unchanged
    index.save(folder / "masks" / f"{name}.png")


@cache
def _palette() -> list[int]:
    """The PASCAL VOC colours: the bits of a value spread over red, green and blue."""
    colours = np.zeros((256, 3), dtype=np.uint8)
    for value in range(256):
        for bit in range(8):
            colours[value, bit % 3] |= (value >> bit & 1) << (7 - bit // 3)
    return colours.ravel().tolist()


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _exhaust(items: Iterable[None]) -> None:
    for _ in items:
        pass
