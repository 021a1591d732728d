"""Data sets by name or path."""

from __future__ import annotations

from pathlib import Path

from gfss.common.errors import GfssError, unknown
from gfss.data.datasets.base import Dataset
from gfss.data.datasets.coco import read_coco
from gfss.data.datasets.folder import read_folder, read_own
from gfss.data.datasets.pascal import read_pascal
from gfss.data.episodes import Fold, make_fold

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
        return read_pascal(root, split)
    if data == "coco":
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


def open_fold(data: str, classes: int, fold: int, contiguous: bool = False) -> Fold:
    """Fold ``fold`` under the convention of a data set.

    Args:
        data: name or path as for ``open_dataset``.
        classes: how many classes the data set has.
        fold: 0 to 3.
        contiguous: for COCO, blocks of ids instead of every fourth id.
    """
    return make_fold(classes, fold, interleaved=data == "coco" and not contiguous)
