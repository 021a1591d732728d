"""A folder as a data set: in the plain form, or a user's own in any of the label formats.

The plain form has images, index masks, lists and class names:

    my-data/
      images/ID.jpg        any image format
      masks/ID.png         index PNG: 0 background, 1..n classes, 255 void
      train.txt  val.txt   one ID per line
      classes.txt          one class name per line (line i is mask value i)
      about.json           optional, written by ``gfss data prepare``

The first four are needed; names come from elsewhere for public data sets without ``classes.txt``.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from gfss.common.errors import GfssError, unknown
from gfss.common.files import cache_folder, files_by_name, read_json, read_lines, write_atomically
from gfss.common.progress import track
from gfss.data.datasets.base import REFERENCE_SIDE, Dataset, read_class_names
from gfss.data.images import IMAGE_SUFFIXES
from gfss.data.labels import Labels, read_labels
from gfss.data.labels.png import INDEX

VAL_STEP = 5  # without lists, every fifth image is kept for val
NAMES = ("scenes", "pascal", "coco")
SPLITS = ("train", "val")


def open_dataset(data: str, root: Path | None = None, split: str = "val") -> Dataset:
    """One split of a data set.

    Args:
        data: ``scenes`` (generated, nothing to download), ``pascal``, ``coco``, or a path to own data.
        root: folder of a named data set; else ``GFSS_PASCAL`` or ``GFSS_COCO`` of the environment.
        split: ``train`` or ``val``.
    """
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    if data == "pascal":
        from gfss.data.datasets.pascal import read_pascal  # it reads such a folder, and imports this module

        return read_pascal(root, split)
    if data == "coco":
        from gfss.data.datasets.coco import read_coco

        return read_coco(root, split)
    if data == "scenes":
        from gfss.data.datasets.scenes import make_scenes  # generates images on first use

        return read_folder(make_scenes(root), split, "scenes")
    return read_own(own_path(data, root), split)


def own_path(data: str, root: Path | None = None) -> Path:
    """The path of own data; refuses what is neither a path nor a name."""
    try:
        is_there = Path(data).exists()
    except OSError:  # a name too long for any file
        is_there = False
    if not is_there:
        raise GfssError(f"{unknown('data set', data, NAMES)}, and there is no such file or folder")
    if root is not None:
        raise GfssError(f"--root is for the data sets {', '.join(NAMES)}; '{data}' is a path already, leave --root out")
    return Path(data)


def read_folder(
    root: Path,
    split: str,
    name: str | None = None,
    classes: Sequence[str] = (),
    reference_side: int | None = REFERENCE_SIDE,
) -> Dataset:
    """One split of a folder in the plain form.

    Args:
        root: the folder.
        split: ``train`` or ``val``.
        name: name of the data set in records; the folder's name if left out.
        classes: class names; read from ``classes.txt`` if left out.
        reference_side: long side of the images that the membership area refers to; None if they have
            their original size, as ``about.json`` may say too.
    """
    if not root.is_dir():
        raise GfssError(f"the data folder {root} does not exist")
    listing = root / f"{split}.txt"
    if not listing.exists():
        raise GfssError(f"{root} has no {split}.txt; a data folder holds images/, masks/, train.txt and val.txt")
    files = files_by_name(root / "images", IMAGE_SUFFIXES)
    ids = read_list(listing, files)
    missing = [i for i in ids if i not in files]
    if missing:
        raise GfssError(
            f"{root / 'images'} has no image for {len(missing)} of {len(ids)} ids in {listing.name}, "
            f"first '{missing[0]}'; add the images or take the ids out of the list"
        )
    return Dataset(
        name=f"{name or root.name} {split}",
        classes=tuple(classes) or read_class_names(root),
        ids=tuple(ids),
        images=tuple(files[i] for i in ids),
        masks=tuple(root / "masks" / f"{i}.png" for i in ids),
        reference_side=None if _has_original_size(root) else reference_side,
    )


def read_list(listing: Path, known: Collection[str] = ()) -> list[str]:
    """Image ids of a list file: one per line, as a name or as ``image_path mask_path``.

    Args:
        listing: the list file.
        known: ids that exist, so that a name with blanks or dots is told from a pair of paths.
    """
    ids = [_id_of(line, known) for line in read_lines(listing)]
    if not ids:
        raise GfssError(f"{listing} is empty; it should list one image per line")
    if len(set(ids)) != len(ids):
        twice = next(name for i, name in enumerate(ids) if name in ids[:i])
        raise GfssError(f"{listing} lists '{twice}' twice; every image counts once")
    return ids


def write_index_png(path: Path, mask: np.ndarray) -> None:
    """Write a mask (height, width) uint8 as index PNG, atomically."""
    with write_atomically(path) as file:
        Image.fromarray(mask).save(file, format="PNG")


def data_root(name: str, given: Path | None) -> Path:
    """Where a public data set is: the folder given, else the one in the environment (``GFSS_PASCAL`` ...)."""
    variable = f"GFSS_{name.upper()}"
    root = given or (Path(os.environ[variable]) if os.environ.get(variable) else None)
    if root is None:
        raise GfssError(f"no folder is known for '{name}'; set {variable}=DIR, or in a recipe root: DIR")
    if not root.is_dir():
        raise GfssError(f"the folder {root} for '{name}' does not exist; set {variable}=DIR, or in a recipe root: DIR")
    return root


def _id_of(line: str, known: Collection[str]) -> str:
    first = line.split()[0]
    candidates = (line, Path(line).stem, first, Path(first).stem)
    return next((name for name in candidates if name in known), candidates[-1])


def _has_original_size(root: Path) -> bool:
    path = root / "about.json"
    about = read_json(path) if path.exists() else {}
    return isinstance(about, dict) and bool(about.get("original_size"))


def read_own(
    source: Path, split: str, *, name: str | None = None, label: str | None = None, void: int | None = None
) -> Dataset:
    """One split of a user's data.

    A folder in the plain form is taken as it is. Other formats are drawn into index masks once, in the
    cache. Where there is no ``train.txt`` and ``val.txt``, every fifth image (by name) is for val.

    Args:
        source: a folder, a zip file or a COCO file.
        split: ``train`` or ``val``.
        name: of the class, where masks of one class have none.
        label: what the labels call this class, or its mask value.
        void: the mask value that is neither class nor background, where it is not 255.
    """
    if is_plain(source) and label is None and void is None:
        prepared = (source / "about.json").exists()  # by gfss data prepare, from a public release
        return replace(read_folder(source, split), whole=not prepared)
    labels = read_labels(source, class_name=label or name, void=void).renamed(label, name)
    ids = _ids(source, labels)
    masks = labels.files if labels.format == INDEX else drawn_masks(labels, ids, void)
    chosen = _split(source, split, ids, labels.splits)
    return Dataset(
        name=f"{source.stem} {split}",
        classes=labels.classes,
        ids=tuple(ids[i] for i in chosen),
        images=tuple(labels.images[i] for i in chosen),
        masks=tuple(masks[i] for i in chosen),
        whole=True,
    )


def _ids(source: Path, labels: Labels) -> list[str]:
    """A name for every image: its file's; where several have it, with the split before it."""
    names = [path.stem for path in labels.images]
    times = Counter(names)
    splits = labels.splits or ("",) * len(names)
    ids = [f"{split}-{name}" if split and times[name] > 1 else name for split, name in zip(splits, names, strict=True)]
    twice, count = Counter(ids).most_common(1)[0] if ids else ("", 0)
    if count > 1:
        raise GfssError(f"{source} has {count} images called '{twice}'; rename all but one of them")
    return ids


def is_plain(source: Path) -> bool:
    """Whether a folder has the plain form with its two lists."""
    parts = ("images", "masks", "train.txt", "val.txt", "classes.txt")
    return source.is_dir() and all((source / name).exists() for name in parts)


def drawn_masks(labels: Labels, ids: Sequence[str], void: int | None = None) -> tuple[Path, ...]:
    """Index mask files of labels in any format, drawn into the cache where they are not there yet.

    Args:
        labels: what is drawn.
        ids: a name for every image.
        void: the value that the labels were read with.
    """
    folder = cache_folder("labels") / _key(labels, void)
    paths = tuple(folder / f"{name}.png" for name in ids)
    todo = [i for i, path in enumerate(paths) if not path.exists()]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        work = pool.map(lambda i: write_index_png(paths[i], labels.mask(i)), todo)
        list(track(work, f"drawing masks from {labels.format}", total=len(todo)))
    return paths


def _key(labels: Labels, void: int | None) -> str:
    """Changes with the classes, with how values are read, and with every label file and image."""
    digest = hashlib.sha256(json.dumps([labels.format, labels.classes, labels.remarks, void]).encode())
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
