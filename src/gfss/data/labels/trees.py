"""Which files of a folder are images and which are masks, whatever its folders are called.

Files of one name belong together: ``photos/a.jpg`` and ``gt/a.png``, ``a.jpg`` and ``a.png``, ``a_image.png`` and
``a_mask.png``, ``images/train/a.jpg`` and ``masks/train/a.png``. What says which of them is the mask is the name of its
folder or of the file itself, else what is inside.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gfss.common.errors import GfssError
from gfss.common.files import composed
from gfss.data.images import IMAGE_SUFFIXES, open_image

DEEPEST = 5  # folders below the one that was given
MOST_FILES = 500_000
IMAGE_ENDINGS = ("_leftImg8bit", "_image", "_img", "_rgb", "_sat", "_photo", "-image", "-img")
MASK_ENDINGS = (
    "_gtFine_labelIds", "_gtFine_labelTrainIds", "_segmentation", "_ground_truth", "_groundtruth", "_annotation",
    "_labelIds", "_labels", "_label", "_masks", "_mask", "_trimap", "_matte", "_seg", "_gt", "_L", "-mask", "-label",
    "-seg", ".mask",
)  # fmt: skip
OTHER_ENDINGS = ("_gtFine_color", "_gtFine_instanceIds", "_overlay", "_color", "_instanceIds")
IMAGE_WORDS = re.compile(r"images?|imgs?|jpegimages|photos?|pictures?|rgb|leftimg8bit|inputs?|originals?|raw")
MASK_WORDS = re.compile(
    r"(train|val|test)?[_-]?(masks?|labels?|annotations?|annots?|segmentations?|segs?|gt|gtfine|ground[_-]?truths?"
    r"|trimaps?|mattes?|segmentationclass(aug|png|raw)?)"
)
OTHER_WORDS = re.compile(r"segmentationobject|.*visuali[sz]ation|.*npy|overlays?|panoptic_.*|viz|vis|xmls?")
SPLITS = {
    "train": "train", "training": "train", "trainannot": "train", "train_labels": "train", "train_masks": "train",
    "val": "val", "valid": "val", "validation": "val", "valannot": "val", "val_labels": "val", "val_masks": "val",
    "test": "test", "testing": "test", "testannot": "test", "test_labels": "test", "test_masks": "test",
}  # fmt: skip
LOOKED_AT = 5  # files of a folder that show whether it holds masks
MOST_COLOURS = 64  # a mask has fewer


@dataclass(frozen=True)
class Tree:
    """Images and masks by name; a name has the split before it where folders are called so.

    Attributes:
        images: name -> image file.
        masks: name -> mask file.
        folder: where the masks are, for messages.
    """

    images: dict[str, Path]
    masks: dict[str, Path]
    folder: Path


def image_files(folder: Path) -> list[Path]:
    """All image files under a folder, hidden ones left out, in order."""
    found: list[Path] = []
    depth = len(folder.parts) + DEEPEST
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name[0] != "." and name != "__MACOSX")
        if len(Path(place).parts) >= depth:
            folders.clear()
        found += [Path(place, name) for name in sorted(names) if is_image(name)]
        if len(found) > MOST_FILES:
            raise GfssError(f"{folder} holds more than {MOST_FILES:,} images; give one of its folders")
    return found


def is_image(name: str) -> bool:
    """Whether a file name is one of an image."""
    return name[0] != "." and os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


def split_of(path: Path, root: Path) -> str:
    """The split that a folder between a file and a root is called after, empty if there is none.

    >>> split_of(Path("d/images/val2017/a.jpg"), Path("d"))
    'val'
    """
    for part in path.parent.relative_to(root).parts if path.is_relative_to(root) else ():
        split = SPLITS.get(re.sub(r"\d+$", "", part.lower()))
        if split:
            return split
    return ""


def find_tree(source: Path) -> Tree | None:
    """Images and masks in a folder; None if there are no masks.

    Raises if files can be told apart in two ways, and names the options that decide.
    """
    groups: dict[str, list[Path]] = {}
    for path in image_files(source):
        if not _is_other(path, source):
            groups.setdefault(_name(path, source), []).append(path)
    roles = _roles([path for group in groups.values() for path in group], source)
    _decide_by_content(groups.values(), roles, source)
    images: dict[str, Path] = {}
    masks: dict[str, Path] = {}
    for name, group in groups.items():
        for path in group:
            place = masks if roles[path] == "mask" else images
            if name in place:
                raise _ambiguous(place[name], path, roles[path] == "mask")
            place[name] = path
    return Tree(*_without_splits(images, masks), _common(masks.values())) if masks else None


def given_tree(masks: Path, images: Sequence[Path]) -> Tree:
    """Images and masks where the user has said which is which.

    Args:
        masks: a folder of masks.
        images: image files, or folders of them.
    """
    found: dict[str, Path] = {}
    for path in images:
        if not path.exists():
            raise GfssError(f"{path} does not exist")
        for file in image_files(path) if path.is_dir() else [path]:
            if path.is_dir() and masks in file.parents and path.resolve() != masks.resolve():
                continue  # the masks lie below the folder of the images
            name = _name(file, path if path.is_dir() else path.parent)
            if found.setdefault(name, file).resolve() != file.resolve():
                raise GfssError(
                    f"{found[name]} and {file} have the same name, so the label '{name}' is "
                    "ambiguous; use the folders one by one, or rename one of the images"
                )
    labels: dict[str, Path] = {}
    for file in image_files(masks):
        if _is_other(file, masks) or file in found.values():
            continue
        name = _name(file, masks)
        if name in labels:
            raise _ambiguous(labels[name], file, True)
        labels[name] = file
    return Tree(*_without_splits(found, labels), masks)


def tree_beside(masks: Path) -> Tree | None:
    """Masks in a folder of their own, and the images of the same names in the one folder beside it that has them."""
    names = _bare_names(masks)
    if not names or IMAGE_WORDS.fullmatch(masks.name.lower()) or not _is_of_masks(masks):
        return None
    found: list[Path] = []
    for folder in sorted(path for path in masks.parent.iterdir() if path.is_dir() and path != masks):
        word = folder.name.lower()
        if MASK_WORDS.fullmatch(word) or OTHER_WORDS.fullmatch(word) or word[0] == ".":
            continue
        if names <= _bare_names(folder):
            found.append(folder)
    if len(found) > 1:
        found = [folder for folder in found if not _is_of_masks(folder)] or found
    if len(found) > 1:
        raise GfssError(
            f"{found[0]} and {found[1]} both hold images of the names in {masks}; say which with --images {found[0]} "
            f"or --images {found[1]}"
        )
    return given_tree(masks, found) if found else None


def _without_splits(images: dict[str, Path], masks: dict[str, Path]) -> tuple[dict[str, Path], dict[str, Path]]:
    """Names without the split where only images or only masks have folders for the splits."""
    if set(images) & set(masks):
        return images, masks
    short = [{Path(name).name: path for name, path in part.items()} for part in (images, masks)]
    same = [len(part) for part in short] == [len(images), len(masks)]
    return (short[0], short[1]) if same else (images, masks)


def bare(stem: str) -> str:
    """The name of a file without what says that it is an image or a mask.

    >>> bare("001_mask"), bare("berlin_000_gtFine_labelIds"), bare("unmask")
    ('001', 'berlin_000', 'unmask')
    """
    stem = composed(stem)
    for ending in (*MASK_ENDINGS, *IMAGE_ENDINGS):
        if stem.lower().endswith(ending.lower()) and len(stem) > len(ending):
            return stem[: -len(ending)]
    return stem


def _name(path: Path, root: Path) -> str:
    split = split_of(path, root)
    return f"{split}/{bare(path.stem)}" if split else bare(path.stem)


def _is_other(path: Path, root: Path) -> bool:
    """Whether a file is neither image nor mask of classes: instances, colours to look at."""
    parts = path.parent.relative_to(root).parts
    return path.stem.endswith(OTHER_ENDINGS) or any(OTHER_WORDS.fullmatch(part.lower()) for part in parts)


def _roles(paths: Iterable[Path], root: Path) -> dict[Path, str]:
    """What the names say of every file: "image", "mask" or nothing."""
    roles: dict[Path, str] = {}
    for path in paths:
        role = ""
        for part in path.parent.relative_to(root).parts:  # the innermost folder decides
            if MASK_WORDS.fullmatch(part.lower()):
                role = "mask"
            elif IMAGE_WORDS.fullmatch(part.lower()):
                role = "image"
        stem = path.stem.lower()
        if any(stem.endswith(ending.lower()) and len(stem) > len(ending) for ending in MASK_ENDINGS):
            role = "mask"
        roles[path] = role
    return roles


def _decide_by_content(groups: Iterable[list[Path]], roles: dict[Path, str], source: Path) -> None:
    """Give every file a role: where names do not say it, that of the other file of the same name, or by content."""
    looks: dict[tuple[Path, str], bool] = {}
    for group in groups:
        open_ones = [path for path in group if not roles[path]]
        if not open_ones:
            continue
        if any(roles[path] == "mask" for path in group) or len(group) == 1:
            roles |= dict.fromkeys(open_ones, "image")
            continue
        if len(open_ones) == 1:
            roles[open_ones[0]] = "mask"
            continue
        for path in open_ones:
            key = (path.parent, path.suffix.lower())
            if key not in looks:
                looks[key] = _holds_masks(*key)
            roles[path] = "mask" if looks[key] else "image"
        if len(open_ones) == 2 and len({roles[path] for path in open_ones}) == 1:
            first, second = (path.parent for path in open_ones)
            if first == second:
                raise GfssError(
                    f"{open_ones[0]} and {open_ones[1].name} have the same name, and either could be the mask; call it "
                    f"{open_ones[0].stem}_mask.png, or put images and masks into folders of their own"
                )
            raise GfssError(
                f"{first} and {second} hold files of the same names, and either could be the masks; say which with "
                f"--images {first} --masks {second}, or the other way round; gfss train and --validation take the "
                "folder of the masks alone"
            )


def _bare_names(folder: Path) -> set[str]:
    """Names of the image files right inside a folder."""
    return {bare(os.path.splitext(name)[0]) for name in os.listdir(folder) if is_image(name)}


def _is_of_masks(folder: Path) -> bool:
    """Whether all image files right inside a folder look like masks."""
    suffixes = {os.path.splitext(name)[1].lower() for name in os.listdir(folder) if is_image(name)}
    return all(_holds_masks(folder, suffix) for suffix in suffixes)


def _holds_masks(folder: Path, suffix: str) -> bool:
    """Whether the files of a folder look like masks: not JPEG, few colours."""
    if suffix in (".jpg", ".jpeg"):
        return False
    files = [path for path in sorted(folder.iterdir()) if path.suffix.lower() == suffix][:LOOKED_AT]
    return all(_looks_like_mask(path) for path in files)


def _looks_like_mask(path: Path) -> bool:
    try:
        with open_image(path) as file:
            if file.mode in ("1", "P"):
                return True
            small = file.convert("RGB") if file.mode not in ("L", "RGB") else file
            pixels = np.asarray(small).reshape(-1, 3 if small.mode == "RGB" else 1)
    except (GfssError, OSError, ValueError, SyntaxError):
        return False
    return len(np.unique(pixels[:: max(1, len(pixels) // 20_000)], axis=0)) <= MOST_COLOURS


def _common(paths: Iterable[Path]) -> Path:
    return Path(os.path.commonpath([path.parent for path in paths]))


def _ambiguous(first: Path, second: Path, masks: bool) -> GfssError:
    kind, option = ("masks", "--masks") if masks else ("images", "--images")
    if first.parent == second.parent:
        return GfssError(f"{first} and {second.name} are {kind} of the same name; rename or remove one of them")
    return GfssError(
        f"{first} and {second} are {kind} of one name, and only one of them can be meant; say which with "
        f"{option} {first.parent} or {option} {second.parent}"
    )
