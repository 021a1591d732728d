"""PASCAL-5^i: the images of PASCAL VOC 2012, masks of VOC and of SBD (Semantic Boundaries Dataset).

The train list of the few-shot literature has 5,953 images: VOC train (1,464) and ``train_noval.txt`` of the
SBD authors (5,623) without doubles. SBD's own ``train.txt`` and ``val.txt`` without the images of VOC val
lead to the larger list of 10,582 ("train_aug"). Val is VOC val, 1,449 images.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from gfss.common.errors import GfssError
from gfss.common.progress import console, track
from gfss.data.catalog import PASCAL_CLASSES
from gfss.data.datasets.base import Dataset
from gfss.data.datasets.folder import data_root, read_folder, read_list, write_index_png
from gfss.data.datasets.preparation import finish, link

COUNTS = {"train": 5953, "val": 1449}
TRAIN_AUG = 10582
TRAIN_LISTS = ("voc_sbd_merge_noduplicate.txt", "train_aug.txt", "trainaug.txt")  # names in use for merged lists
SBD_TRAIN = "train_noval.txt"


def read_pascal(root: Path | None, split: str) -> Dataset:
    """One split of PASCAL-5^i.

    Args:
        root: a VOCdevkit with ``SegmentationClassAug``, or a folder in the plain form (``classes.txt`` may be
            missing); the folder in ``GFSS_PASCAL`` if left out.
        split: ``train`` or ``val``.
    """
    root = data_root("pascal", root)
    if (root / "images").is_dir():
        return read_folder(root, split, "pascal", PASCAL_CLASSES)
    voc = voc_folder(root)
    masks = voc / "SegmentationClassAug"
    if not masks.is_dir():
        raise GfssError(
            f"{voc} has no SegmentationClassAug; make a data folder with: "
            f"gfss data prepare pascal --voc {root} --sbd SBD -o OUT"
        )
    ids = _val_ids(voc) if split == "val" else train_ids(voc, None, None)
    if remark := count_remark(split, len(ids)):
        console.print(f"note: {remark}")
    return Dataset(
        name=f"pascal {split}",
        classes=PASCAL_CLASSES,
        ids=tuple(ids),
        images=tuple(voc / "JPEGImages" / f"{i}.jpg" for i in ids),
        masks=tuple(masks / f"{i}.png" for i in ids),
        reference_side=None,
    )


def prepare_pascal(voc: Path, sbd: Path | None, out: Path, train_list: Path | None = None) -> list[str]:
    """Make a folder in the plain form from a VOCdevkit and the SBD release; can be interrupted and run again.

    Masks are VOC's own where there are some (they mark void borders), else those of SBD, else those of
    ``SegmentationClassAug``. Images are hard links where the file system allows it, else copies.

    Args:
        voc: VOCdevkit, or its folder VOC2012.
        sbd: folder of the SBD release; not needed if the VOCdevkit has ``SegmentationClassAug``.
        out: where the data folder is made.
        train_list: ids of train instead of the usual list.

    Returns:
        Remarks about what differs from the usual lists.
    """
    voc, sbd = voc_folder(voc), _sbd_folder(sbd) if sbd else None
    lists = {"train": train_ids(voc, sbd, train_list), "val": _val_ids(voc)}
    both = set(lists["train"]) & set(lists["val"])
    if both:
        raise GfssError(f"{len(both)} train images are in VOC val, first '{min(both)}'; check the lists in ImageSets")

    def place(name: str) -> None:
        source, write = _mask_source(voc, sbd, name)
        link(_image_source(voc, sbd, name), out / "images" / f"{name}.jpg")
        if not (target := out / "masks" / f"{name}.png").exists():
            write(source, target)

    names = lists["train"] + lists["val"]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(track(pool.map(place, names), "preparing pascal", total=len(names)))
    finish(out, "pascal", PASCAL_CLASSES, lists)
    return [remark for split, ids in lists.items() if (remark := count_remark(split, len(ids)))]


def train_ids(voc: Path, sbd: Path | None, train_list: Path | None) -> list[str]:
    """Ids of train: of the list given, else of a merged list found, else VOC train merged with SBD without VOC val."""
    folders = [voc / "ImageSets" / name for name in ("Segmentation", "SegmentationAug")] + [voc]
    found = train_list or next((f / name for name in TRAIN_LISTS for f in folders if (f / name).exists()), None)
    if found:
        return read_list(found)
    merged = read_list(voc / "ImageSets" / "Segmentation" / "train.txt")
    held_out = set(_val_ids(voc))
    return list(dict.fromkeys(i for i in merged + _further_ids(voc, sbd) if i not in held_out))


def count_remark(split: str, count: int) -> str | None:
    """What to say about a list that has not the usual length."""
    if count == COUNTS[split]:
        return None
    if (split, count) == ("train", TRAIN_AUG):
        return (
            f"this is the larger train list of {TRAIN_AUG:,} images; the list of the paper has {COUNTS['train']:,}: "
            f"put {SBD_TRAIN} of the SBD authors into the SBD folder"
        )
    return f"the {split} list has {count:,} images, the usual one has {COUNTS[split]:,}; figures will not be comparable"


def voc_folder(root: Path) -> Path:
    """The folder VOC2012 in or at a path."""
    places = (root, root / "VOC2012", root / "VOCdevkit" / "VOC2012")
    found = next((place for place in places if (place / "JPEGImages").is_dir()), None)
    if found is None:
        raise GfssError(
            f"{root} is not a PASCAL data set: expected VOCdevkit/VOC2012/JPEGImages, or images/ and masks/"
        )
    return found


def _sbd_folder(root: Path) -> Path:
    places = (root, root / "dataset", root / "benchmark_RELEASE" / "dataset")
    found = next((place for place in places if (place / "cls").is_dir()), None)
    if found is None:
        raise GfssError(f"{root} is not the SBD release: expected benchmark_RELEASE/dataset/cls with .mat files")
    return found


def _val_ids(voc: Path) -> list[str]:
    return read_list(voc / "ImageSets" / "Segmentation" / "val.txt")


def _further_ids(voc: Path, sbd: Path | None) -> list[str]:
    """Ids that SBD adds to VOC train; without SBD all that ``SegmentationClassAug`` has."""
    if sbd is None:
        return sorted(path.stem for path in (voc / "SegmentationClassAug").glob("*.png"))
    if (sbd / SBD_TRAIN).exists():
        return read_list(sbd / SBD_TRAIN)
    return read_list(sbd / "train.txt") + read_list(sbd / "val.txt")


def _image_source(voc: Path, sbd: Path | None, name: str) -> Path:
    places = [voc / "JPEGImages"] + ([sbd / "img"] if sbd else [])
    found = next((place / f"{name}.jpg" for place in places if (place / f"{name}.jpg").exists()), None)
    if found is None:
        raise GfssError(f"there is no image {name}.jpg in {places[0]}; unpack VOC 2012 trainval completely")
    return found


def _mask_source(voc: Path, sbd: Path | None, name: str) -> tuple[Path, Callable[[Path, Path], None]]:
    """The best mask file of an image, and how it is brought into the folder."""
    own, mat, aug = (
        voc / "SegmentationClass" / f"{name}.png",
        sbd / "cls" / f"{name}.mat" if sbd else None,
        voc / "SegmentationClassAug" / f"{name}.png",
    )
    if own.exists():
        return own, link
    if mat and mat.exists():
        return mat, lambda source, target: write_index_png(target, read_sbd_mask(source))
    if aug.exists():
        return aug, link
    raise GfssError(f"there is no mask for {name} in {own.parent} or SBD; give the SBD release with --sbd")


def read_sbd_mask(path: Path) -> np.ndarray:
    """Class mask of an SBD file, (height, width) uint8."""
    try:
        from scipy.io import loadmat
    except ImportError:
        raise GfssError("SBD files need the package scipy; install it with: pip install 'gfss[sbd]'") from None
    try:
        content = loadmat(path, squeeze_me=True, struct_as_record=False)
        return np.ascontiguousarray(content["GTcls"].Segmentation, dtype=np.uint8)
    except Exception as error:  # scipy raises many kinds on damaged files
        raise GfssError(f"{path} is not a readable SBD file ({error}); unpack the release again") from None
