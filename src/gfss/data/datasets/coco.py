"""COCO-20^i: COCO 2014, its instances drawn into index masks.

Differences to the masks in use elsewhere, on purpose: all polygons of an instance are drawn (not the first
alone), crowds are void (255), and small objects lie on top of large ones.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from gfss.common.errors import GfssError
from gfss.common.progress import track
from gfss.data.catalog import COCO_CLASSES
from gfss.data.datasets.base import Dataset
from gfss.data.datasets.folder import data_root, read_folder, write_index_png
from gfss.data.datasets.preparation import finish, link
from gfss.data.labels.instances import CocoImage, draw_instances, read_instances

COUNTS = {"train": 82081, "val": 40137}  # images with at least one annotation
CHUNK = 32  # images that a process takes at a time


def read_coco(root: Path | None, split: str) -> Dataset:
    """One split of COCO-20^i from a folder made by ``prepare_coco``, by default the one in ``GFSS_COCO``."""
    root = data_root("coco", root)
    if not (root / "masks").is_dir():
        raise GfssError(
            f"{root} holds no index masks; make a data folder with: "
            f"gfss data prepare coco --annotations DIR --images DIR -o OUT"
        )
    return read_folder(root, split, "coco", COCO_CLASSES, reference_side=None)


def prepare_coco(annotations: Path, images: Path, out: Path, processes: int | None = None) -> list[str]:
    """Make a folder in the plain form from COCO 2014; can be interrupted and run again.

    Args:
        annotations: folder with ``instances_train2014.json`` and ``instances_val2014.json``.
        images: folder with the images, or with ``train2014/`` and ``val2014/``.
        out: where the data folder is made.
        processes: how many processes draw masks; all cores if left out.

    Returns:
        Remarks about what differs from the usual lists.
    """
    lists: dict[str, list[str]] = {}
    remarks: list[str] = []
    files = {split: annotations / f"instances_{split}2014.json" for split in COUNTS}
    for file in files.values():  # before an hour of drawing
        if not file.is_file():
            raise GfssError(f"{file} does not exist; unpack the annotations of COCO 2014 and give their folder")
    for split, usual in COUNTS.items():
        pictures = read_split(files[split])
        _draw_all(pictures, images, out, split, processes or os.cpu_count() or 1)
        lists[split] = [Path(picture.file_name).stem for picture in pictures]
        if len(pictures) != usual:
            remarks.append(f"{split} has {len(pictures):,} images with annotations, COCO 2014 has {usual:,}")
    finish(out, "coco", COCO_CLASSES, lists)
    return remarks


def read_split(path: Path) -> list[CocoImage]:
    """Images of one annotation file; its categories must be the 80 of COCO."""
    classes, pictures = read_instances(path)
    if classes != COCO_CLASSES:
        raise GfssError(f"{path} has other categories than COCO 2014; read it as custom data: data: {path}")
    return pictures


def _draw_all(pictures: list[CocoImage], images: Path, out: Path, split: str, processes: int) -> None:
    """Link the images and draw the masks that are not there yet."""
    folders = [images / f"{split}2014", images]
    todo: list[tuple[CocoImage, Path]] = []
    for picture in pictures:
        source = next((f / picture.file_name for f in folders if (f / picture.file_name).exists()), None)
        if source is None:
            raise GfssError(
                f"{picture.file_name} is neither in {folders[0]} nor in {images}; unpack the images completely"
            )
        link(source, out / "images" / picture.file_name)
        target = out / "masks" / f"{Path(picture.file_name).stem}.png"
        if not target.exists():
            todo.append((picture, target))
    done = len(pictures) - len(todo)
    for _ in track(_drawn(todo, processes), f"drawing coco {split}", total=len(pictures), start=done):
        pass


def _drawn(todo: list[tuple[CocoImage, Path]], processes: int) -> Iterator[None]:
    """Draw masks here or, if it is worth it, in other processes."""
    if processes == 1 or len(todo) <= CHUNK:
        yield from map(_draw, todo)
        return
    # spawn: a forked process would inherit threads (progress bar, torch) in an unknown state
    spawn = multiprocessing.get_context("spawn")
    # Ctrl-C is for the main process, which lets the others finish what they have in hand
    pool = ProcessPoolExecutor(processes, spawn, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN))
    try:
        yield from pool.map(_draw, todo, chunksize=CHUNK)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _draw(job: tuple[CocoImage, Path]) -> None:
    picture, target = job
    write_index_png(target, draw_instances(picture, Path(picture.file_name)))
