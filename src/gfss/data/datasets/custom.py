"""A user's own folder, in any of the label formats, as a data set."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from gfss.common.errors import GfssError
from gfss.common.files import cache_folder
from gfss.common.progress import track
from gfss.data.datasets.base import Dataset
from gfss.data.datasets.folder import read_folder, read_list, write_index_png
from gfss.data.labels import Labels, read_labels
from gfss.data.labels.png import INDEX

VAL_STEP = 5  # without lists, every fifth image is kept for val


def read_own(source: Path, split: str) -> Dataset:
    """One split of a user's data.

    A folder in the plain form is taken as it is. Other formats are drawn into index masks once, in the
    cache. Where there is no ``train.txt`` and ``val.txt``, every fifth image (by name) is for val.

    Args:
        source: a folder, a zip file or a COCO file.
        split: ``train`` or ``val``.
    """
    if is_plain(source):
        prepared = (source / "about.json").exists()  # by gfss data prepare, from a public release
        return replace(read_folder(source, split), whole=not prepared)
    labels = read_labels(source)
    ids = [path.stem for path in labels.images]
    if len(set(ids)) != len(ids):
        twice = next(name for i, name in enumerate(ids) if name in ids[:i])
        raise GfssError(f"{source} has two images called '{twice}'; rename one of them")
    masks = labels.files if labels.format == INDEX else drawn_masks(labels)
    chosen = _split(source, split, ids, labels.splits)
    return Dataset(
        name=f"{source.stem} {split}",
        classes=labels.classes,
        ids=tuple(ids[i] for i in chosen),
        images=tuple(labels.images[i] for i in chosen),
        masks=tuple(masks[i] for i in chosen),
        whole=True,
    )


def is_plain(source: Path) -> bool:
    """Whether a folder has the plain form with its two lists."""
    parts = ("images", "masks", "train.txt", "val.txt", "classes.txt")
    return source.is_dir() and all((source / name).exists() for name in parts)


def drawn_masks(labels: Labels) -> tuple[Path, ...]:
    """Index mask files of labels in any format, drawn into the cache where they are not there yet."""
    folder = cache_folder("labels") / _key(labels)
    paths = tuple(folder / f"{image.stem}.png" for image in labels.images)
    todo = [i for i, path in enumerate(paths) if not path.exists()]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        work = pool.map(lambda i: write_index_png(paths[i], labels.mask(i)), todo)
        list(track(work, f"drawing masks from {labels.format}", total=len(todo)))
    return paths


def _key(labels: Labels) -> str:
    """Changes with the classes and with every label file and image."""
    digest = hashlib.sha256(json.dumps([labels.format, labels.classes]).encode())
    for path in dict.fromkeys(labels.files + labels.images + labels.also):
        stat = path.stat()
        digest.update(f"{path}:{stat.st_size}:{stat.st_mtime_ns};".encode())
    return digest.hexdigest()[:16]


def _split(source: Path, split: str, ids: list[str], splits: Sequence[str]) -> list[int]:
    """Which images belong to a split: as the lists say, else the folders, else every fifth is for val."""
    if len(ids) < 2:
        raise GfssError(f"{source} has {len(ids)} labelled image(s); at least 2 are needed for train and val")
    numbers = {name: i for i, name in enumerate(ids)}
    listings = next((f for f in (source, source / "ImageSets" / "Segmentation") if (f / "train.txt").exists()), source)
    own, other = (listings / f"{name}.txt" for name in (split, "train" if split == "val" else "val"))
    if own.exists():
        return [numbers[name] for name in _listed(own, ids)]
    if "train" in splits and not other.exists():
        held_out = "val" if "val" in splits else "test"
        chosen = [i for i, name in enumerate(splits) if name == ("train" if split == "train" else held_out)]
        if chosen:
            return chosen
    order = sorted(ids)
    if other.exists():
        taken = set(_listed(other, ids))
        return [numbers[name] for name in order if name not in taken]
    return [numbers[name] for i, name in enumerate(order) if (i % VAL_STEP == 0) == (split == "val")]


def _listed(listing: Path, ids: list[str]) -> list[str]:
    known = set(ids)
    listed = read_list(listing, known)
    missing = [name for name in listed if name not in known]
    if missing:
        raise GfssError(f"{listing} lists '{missing[0]}', which has no labels; label it or take it out of the list")
    return listed
