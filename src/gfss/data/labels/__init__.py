"""Label formats in: index, palette and binary PNG, colours with labelmap.txt, labelme, COCO JSON, CVAT mask zip.

A support set for one class comes from any of them in the same way:

    read_labels(Path("cats.zip"), images=[Path("photos")], class_name="cat").supports("cat")
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gfss.common.errors import GfssError
from gfss.common.files import cache_folder, read_json, refuse_special
from gfss.data.datasets.folder import IMAGE_SUFFIXES, pictures_in
from gfss.data.labels.base import Labels
from gfss.data.labels.colours import read_colour_masks
from gfss.data.labels.instances import read_coco_json
from gfss.data.labels.labelme import read_labelme
from gfss.data.labels.png import read_binary_masks, read_class_folders, read_index_masks

__all__ = ["Labels", "read_labels"]

IMAGE_FOLDERS = ("images", "JPEGImages", "img", "photos", "pictures")
MASK_FOLDERS = ("masks", "SegmentationClass", "SegmentationClassAug")
JSON_FOLDERS = (".", "annotations", "labels")
DAY = 24 * 3600  # seconds
UNPACKING = ".unpacking-"
UNZIPPED_ANYWAY, UNZIPPED_TIMES = 500_000_000, 100  # bytes that any zip may unpack to, else times its size


def read_labels(source: Path, images: Sequence[Path] = (), class_name: str | None = None) -> Labels:
    """Labelled images in any of the formats, recognised by what is there.

    Args:
        source: a folder, a zip file, a JSON file or a mask.
        images: pictures or folders of pictures; looked for in or beside ``source`` if left out.
        class_name: what binary masks show; other formats bring their own names.
    """
    if not source.exists():
        raise GfssError(f"{source} does not exist")
    if source.suffix.lower() == ".zip":
        return _read_folder(_unzipped(source), images, class_name, beside=source.parent)
    if source.is_dir():
        return _read_folder(source, images, class_name, beside=source.parent)
    pictures = _find_images([source.parent], images)
    if source.suffix.lower() == ".json":
        return _read_json_files([source], pictures, source.parent, images)
    if source.suffix.lower() in IMAGE_SUFFIXES:
        own = pictures if images else {name: path for name, path in pictures.items() if path != source}
        return read_binary_masks({source.stem: source}, own, _required(class_name, source), source)
    raise GfssError(f"{source} is no label file; expected a folder, a .zip, a .json or a mask picture")


def _read_folder(source: Path, images: Sequence[Path], class_name: str | None, beside: Path) -> Labels:
    masks = next((source / name for name in MASK_FOLDERS if (source / name).is_dir()), source)
    labelmap = source / "labelmap.txt"
    holds_masks = labelmap.exists() and masks == source
    pictures = _find_images([beside] if holds_masks else [source, beside], images)
    only = _are_files(images)
    if labelmap.exists():
        return _with_rest(read_colour_masks(masks, pictures, labelmap, only), pictures)
    if masks != source or images:
        if any(path.is_dir() and pictures_in(path) for path in masks.iterdir()):
            return _with_rest(read_class_folders(masks, pictures, only), pictures)
        files = pictures_in(masks)
        root = next((folder for folder in (source, source.parent) if (folder / "classes.txt").exists()), None)
        if files and root:
            return _with_rest(read_index_masks(masks, pictures, root, only), pictures)
        if files:
            name = _required(class_name, masks)
            return _with_rest(read_binary_masks(files, pictures, name, masks, only), pictures)
    found = [path for folder in JSON_FOLDERS for path in sorted((source / folder).glob("*.json"))]
    if found:
        return _read_json_files(found, pictures, source, images)
    raise GfssError(
        f"{source} holds no labels; expected images/ with masks/ (PNG), labelme or COCO .json files, or a labelmap.txt"
    )


def _with_rest(labels: Labels, pictures: dict[str, Path]) -> Labels:
    """Labels that know which of the pictures have none."""
    labelled = set(labels.images)
    return replace(labels, unlabelled=tuple(path for path in pictures.values() if path not in labelled))


def _are_files(images: Sequence[Path]) -> bool:
    """Whether single pictures were chosen, and no folders of them."""
    return bool(images) and all(path.is_file() for path in images)


def _read_json_files(files: Sequence[Path], pictures: dict[str, Path], root: Path, images: Sequence[Path]) -> Labels:
    content = read_json(files[0])
    if isinstance(content, dict) and "shapes" in content:
        return _with_rest(read_labelme(files, pictures, root, _are_files(images)), pictures)
    if len(files) > 1:
        raise GfssError(f"{root} holds {len(files)} .json files that are not of labelme; name the COCO file itself")
    return _with_rest(read_coco_json(files[0], pictures, only=bool(images)), pictures)


def _find_images(folders: Sequence[Path], given: Sequence[Path]) -> dict[str, Path]:
    """Pictures by name: those given, else those in the usual places of the first folder that has some."""
    if given:
        found: dict[str, Path] = {}
        for path in given:
            if not path.exists():
                raise GfssError(f"{path} does not exist")
            for name, picture in (pictures_in(path) if path.is_dir() else {path.stem: path}).items():
                if found.setdefault(name, picture).resolve() != picture.resolve():
                    raise GfssError(
                        f"{found[name]} and {picture} have one name, so nobody can say which of them a label called "
                        f"'{name}' belongs to; take the folders one by one, or rename one of the pictures"
                    )
        return found
    places = [folder / name for folder in folders for name in (*IMAGE_FOLDERS, ".")]
    return next((found for place in places if (found := pictures_in(place))), {})


def _required(class_name: str | None, masks: Path) -> str:
    if class_name is None:
        raise GfssError(
            f"the classes of the masks in {masks} have no names; write classes.txt (line i names mask value i), "
            "or sort binary masks into one folder per class"
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
                    f"{path} of {stat.st_size / 1e6:.1f} MB unpacks to {need / 1e9:.1f} GB, more than labels would; "
                    "if it is what it should be, unpack it yourself and give the folder"
                )
            if need > free:
                raise GfssError(f"{path} unpacks to {need / 1e9:.1f} GB but {free / 1e9:.1f} GB are free; make room")
            archive.extractall(part)
        with contextlib.suppress(OSError):  # another process was faster
            part.rename(folder)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError, OSError, ValueError) as error:
        raise GfssError(f"{path} is not a readable zip file ({error}); export it again") from None
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
