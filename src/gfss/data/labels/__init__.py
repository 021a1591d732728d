"""Label formats in, each in the folders that its programs write: masks of every kind, labelme, COCO, YOLO, CVAT.

A support set for one class comes from any of them in the same way:

    read_labels(Path("cats.zip"), images=[Path("photos")], class_name="cat").supports("cat")
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import struct
import tempfile
import time
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gfss.common.errors import GfssError
from gfss.common.files import cache_folder, files_by_name, read_json, refuse_special
from gfss.data.images import IMAGE_SUFFIXES
from gfss.data.labels.base import Labels
from gfss.data.labels.colours import LabelMap, read_colour_masks
from gfss.data.labels.instances import Finder, coco_labels, parse_instances
from gfss.data.labels.labelme import read_labelme
from gfss.data.labels.panoptic import is_panoptic, read_panoptic
from gfss.data.labels.png import UNNAMED, read_class_folders, read_index_masks, read_unnamed_masks
from gfss.data.labels.trees import (
    MASK_WORDS,
    OTHER_WORDS,
    SPLITS,
    Tree,
    bare,
    find_tree,
    given_tree,
    image_files,
    is_image,
    split_of,
    tree_beside,
)
from gfss.data.labels.values import Meaning, find_meaning
from gfss.data.labels.yolo import find_yolo, read_yolo

__all__ = ["UNNAMED", "Labels", "read_labels"]

IMAGE_FOLDERS = ("images", "JPEGImages", "img", "photos", "pictures")
MASK_FOLDERS = ("masks", "SegmentationClass", "SegmentationClassPNG", "SegmentationClassAug")
JSON_FOLDERS = (".", "annotations", "labels")
OTHER_COCO = ("captions_", "person_keypoints_", "image_info_", "stuff_")  # files of COCO without areas of classes
DAY = 24 * 3600  # seconds
UNPACKING = ".unpacking-"
UNZIPPED_ANYWAY, UNZIPPED_TIMES = 500_000_000, 100  # bytes that any zip may unpack to, else times its size


def read_labels(
    source: Path, images: Sequence[Path] = (), class_name: str | None = None, *, void: int | None = None
) -> Labels:
    """Labelled images in any of the formats, recognised by what is there.

    Args:
        source: a folder, a zip file, a JSON file, a YOLO ``data.yaml`` or a mask.
        images: image files or folders of them; looked for in or beside ``source`` if left out.
        class_name: what masks of one class show, or the value of the class in masks of several; other formats bring
            their own names.
        void: the mask value that is neither class nor background, where it is not 255.
    """
    if not str(source).strip():
        raise GfssError("no path of the labels was given; expected a folder, .zip, .json, data.yaml or a mask image")
    refuse_special(source)
    if not source.exists():
        raise GfssError(f"{source} does not exist")
    if any(path.resolve() == source.resolve() for path in images):  # the same twice means all that is there
        images = ()
    if source.suffix.lower() == ".zip":
        folder = _unzipped(source)
        try:
            return _read_folder(folder, images, class_name, source.parent, void)
        except GfssError as error:
            raise GfssError(str(error).replace(str(folder), str(source))) from None
    if source.is_dir():
        return _read_folder(source, images, class_name, source.parent, void)
    if source.suffix.lower() in (".yaml", ".yml"):
        return read_yolo(source, images)
    pictures = _find_images([source.parent], images)
    if source.suffix.lower() == ".json":
        return _read_json_files([source], pictures, source.parent, images)
    if source.suffix.lower() in IMAGE_SUFFIXES:
        own = pictures if images else {name: path for name, path in pictures.items() if path != source}
        return read_unnamed_masks({source.stem: source}, own, _required(class_name, source), source, void=void)
    raise GfssError(f"{source} is not a label file; expected a folder, .zip, .json, data.yaml or a mask image")


def _read_folder(
    source: Path, images: Sequence[Path], class_name: str | None, beside: Path, void: int | None
) -> Labels:
    yolo = find_yolo(source)
    if yolo is not None:
        return read_yolo(yolo, images)
    folder = next((source / name for name in MASK_FOLDERS if (source / name).is_dir()), None)
    files = _json_files(source)
    if files and folder is None and not (images and any(is_image(path.name) for path in source.iterdir())):
        return _read_json_files(files, _find_images([source, beside], images), source, images)
    sorted_masks = _class_folders(folder or source, images)
    if sorted_masks and (folder or images):
        place = folder or source
        pictures = _find_images([source, beside], images)
        return _with_rest(read_class_folders(sorted_masks, pictures, place, _are_files(images)), pictures)
    if images:
        tree = given_tree(folder or source, images)
    else:
        tree = tree_beside(source) or find_tree(source) or _masks_alone(source, beside)
    if tree is None or not tree.masks:
        raise GfssError(
            f"{source} holds no labels; expected images with masks (PNG), labelme or COCO .json files, YOLO labels, or "
            "a labelmap.txt"
        )
    if not tree.images:
        tree = replace(tree, images=_find_images([source, beside], ()))
    labels = _with_rest(_read_masks(tree, source, class_name, void, _are_files(images)), tree.images)
    splits = tuple(split_of(path, source) for path in labels.images)
    return replace(labels, splits=splits if any(splits) else ())


def _read_masks(tree: Tree, source: Path, class_name: str | None, void: int | None, only: bool) -> Labels:
    """Masks by what their values or colours mean."""
    files = list(tree.masks.values())
    places = dict.fromkeys((source, tree.folder, tree.folder.parent, files[0].parent))
    meaning = find_meaning(list(places), files)
    if isinstance(meaning, LabelMap):
        return read_colour_masks(tree.masks, tree.images, meaning, tree.folder, only)
    if isinstance(meaning, Meaning):
        return read_index_masks(tree.masks, tree.images, meaning, tree.folder, only, void)
    name = _required(class_name, tree.folder)
    return read_unnamed_masks(tree.masks, tree.images, name, tree.folder, only, void)


def _masks_alone(source: Path, beside: Path) -> Tree | None:
    """Masks in a folder of their own with the meaning of their colours, as some programs export them."""
    if not (source / "labelmap.txt").is_file():
        return None
    return Tree(_find_images([beside], ()), files_by_name(source, IMAGE_SUFFIXES), source)


def _class_folders(folder: Path, images: Sequence[Path]) -> dict[str, dict[str, Path]]:
    """Masks by class and name, if a folder holds a folder for each class; else nothing."""
    mirrored = {path.parent.name for root in images if root.is_dir() for path in image_files(root)}
    mirrored |= {path.parent.name for name in IMAGE_FOLDERS for path in image_files(folder.parent / name)}
    found: dict[str, dict[str, Path]] = {}
    for place in sorted(path for path in folder.iterdir() if path.is_dir()):
        masks = files_by_name(place, IMAGE_SUFFIXES)
        word = place.name.lower()
        above = place.is_symlink() and folder.resolve().is_relative_to(place.resolve())  # a link that leads back
        if not masks or above or word in SPLITS or place.name in mirrored or place in images:
            continue
        if MASK_WORDS.fullmatch(word) or OTHER_WORDS.fullmatch(word):
            continue
        found[place.name] = {bare(name): path for name, path in masks.items()}
    return found


def _json_files(source: Path) -> list[Path]:
    """JSON files in the usual places, those of the splits among them."""
    splits = sorted(path for path in source.iterdir() if path.is_dir() and path.name.lower() in SPLITS)
    places = [*(source / name for name in JSON_FOLDERS), *splits]
    return [path for place in places for path in sorted(place.glob("*.json"))]


def _with_rest(labels: Labels, pictures: dict[str, Path]) -> Labels:
    """Labels that know which of the images have none."""
    labelled = set(labels.images)
    return replace(labels, unlabelled=tuple(path for path in pictures.values() if path not in labelled))


def _are_files(images: Sequence[Path]) -> bool:
    """Whether single images were chosen, and no folders of them."""
    return bool(images) and all(path.is_file() for path in images)


def _read_json_files(files: Sequence[Path], pictures: dict[str, Path], root: Path, images: Sequence[Path]) -> Labels:
    areas = [path for path in files if not path.name.startswith(OTHER_COCO)] or files
    first = read_json(areas[0])
    if isinstance(first, dict) and "shapes" in first:
        labels = read_labelme(areas, pictures, root, _are_files(images))
        splits = tuple(split_of(path, root) for path in labels.images)
        return _with_rest(replace(labels, splits=splits if any(splits) else ()), pictures)
    contents = {path: first if path == areas[0] else read_json(path) for path in areas}
    kinds = {is_panoptic(content) for content in contents.values()}
    if len(kinds) > 1:
        other = next(path for path in areas if is_panoptic(contents[path]))
        raise GfssError(
            f"{root} holds COCO instances and COCO panoptic labels; say which with --masks {areas[0]} or "
            f"--masks {other}"
        )
    parts = [_read_coco(path, content, pictures, bool(images)) for path, content in contents.items()]
    if len({part.classes for part in parts}) > 1:
        raise GfssError(
            f"{root} holds {len(areas)} .json files that are neither of labelme nor of one set of classes; name the "
            f"COCO file itself, as in --masks {areas[0]}"
        )
    return _with_rest(_joined(parts) if len(parts) > 1 else parts[0], pictures)


def _read_coco(path: Path, content: Any, pictures: dict[str, Path], only: bool) -> Labels:
    if is_panoptic(content):
        return read_panoptic(path, content, Finder(path, pictures, [], only))
    return coco_labels(path, *parse_instances(content, path), pictures, only)


def _joined(parts: Sequence[Labels]) -> Labels:
    """Labels of several files of one kind, each of a split."""
    places = [(part, i) for part in parts for i in range(len(part))]

    def draw(i: int) -> np.ndarray:
        part, number = places[i]
        return part.draw(number)

    return Labels(
        parts[0].format,
        parts[0].classes,
        tuple(image for part in parts for image in part.images),
        tuple(file for part in parts for file in part.files),
        draw,
        tuple(path for part in parts for path in part.also),
        splits=tuple(_split_of_json(part) for part, _ in places),
    )


def _split_of_json(part: Labels) -> str:
    """The split of a COCO file by its name or its folder: ``instances_val2017.json``, ``valid/labels.json``."""
    path = (*part.also, *part.files)[0]
    words = [*re.split(r"[^a-z]+", path.stem.lower()), path.parent.name.lower()]
    return next((SPLITS[word] for word in words if word in SPLITS), "")


def _find_images(folders: Sequence[Path], given: Sequence[Path]) -> dict[str, Path]:
    """Images by name: those given, else those in the usual places of the first folder that has some."""
    if given:
        found: dict[str, Path] = {}
        for path in given:
            if not path.exists():
                raise GfssError(f"{path} does not exist")
            for name, picture in (files_by_name(path, IMAGE_SUFFIXES) if path.is_dir() else {path.stem: path}).items():
                if found.setdefault(name, picture).resolve() != picture.resolve():
                    raise GfssError(
                        f"{found[name]} and {picture} have the same name, so the label '{name}' is ambiguous; "
                        "use the folders one by one, or rename one of the images"
                    )
        return found
    places = [folder / name for folder in folders for name in (*IMAGE_FOLDERS, ".")]
    return next((found for place in places if (found := files_by_name(place, IMAGE_SUFFIXES))), {})


def _required(class_name: str | None, masks: Path) -> str:
    if class_name is None:
        raise GfssError(
            f"the classes of the masks in {masks} have no names; name the one class with --name NAME, write "
            "classes.txt (line i names mask value i), or sort binary masks into one folder per class"
        )
    return class_name


def _unzipped(path: Path) -> Path:
    """The content of a zip file in the cache; unpacked once, again when the file changes."""
    refuse_special(path)
    stat = path.stat()
    key = hashlib.sha256(f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:16]
    folder = cache_folder("unzipped") / f"{path.stem}-{key}"
    if folder.exists():
        os.utime(folder)  # used now
        return _content(folder)
    _remove_unused(folder.parent)
    part = Path(tempfile.mkdtemp(dir=folder.parent, prefix=UNPACKING))
    try:
        with zipfile.ZipFile(path) as archive:
            need, free = sum(entry.file_size for entry in archive.infolist()), shutil.disk_usage(folder.parent).free
            if need > max(UNZIPPED_ANYWAY, UNZIPPED_TIMES * stat.st_size):
                raise GfssError(
                    f"{path} of {stat.st_size / 1e6:.1f} MB unpacks to {need / 1e6:,.0f} MB, more than labels would; "
                    "if it is what it should be, unpack it yourself and give the folder"
                )
            if need > free:
                raise GfssError(f"{path} unpacks to {need / 1e6:,.1f} MB but {free / 1e6:,.1f} MB are free; make room")
            for entry in archive.infolist():
                entry.filename = entry.filename.replace("\\", "/")  # as some programs of Windows write it
                archive.extract(entry, part)
        with contextlib.suppress(OSError):  # another process was faster
            part.rename(folder)
    except RuntimeError:
        raise GfssError(f"{path} is encrypted; export it without a password") from None
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        LookupError,
        struct.error,
        NotImplementedError,
        OSError,
        ValueError,
    ) as error:
        broken = "is damaged" if zipfile.is_zipfile(path) else "is not a whole zip file"
        raise GfssError(f"{path} {broken}; export it again") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return _content(folder)


def _remove_unused(unpacked: Path) -> None:
    """Delete unpacked files that were not used for a month, and what killed programs left of unpacking."""
    for folder in unpacked.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > (DAY if folder.name.startswith(UNPACKING) else 30 * DAY):
                shutil.rmtree(folder)


def _content(folder: Path) -> Path:
    """Where the files are: some programs pack them into one folder inside the zip."""
    entries = [path for path in folder.iterdir() if path.name != "__MACOSX"]
    named = (*IMAGE_FOLDERS, *MASK_FOLDERS, *JSON_FOLDERS)
    return entries[0] if len(entries) == 1 and entries[0].is_dir() and entries[0].name not in named else folder
