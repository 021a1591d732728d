"""The plain form of a data set: a folder with images, index masks, lists and class names.

    my-data/
      images/ID.jpg        any image format
      masks/ID.png         index PNG: 0 background, 1..n classes, 255 void
      train.txt  val.txt   one ID per line
      classes.txt          one class name per line (line i is mask value i)
      about.json           optional, written by ``gfss data prepare``

The first four are needed; names come from elsewhere for public data sets without ``classes.txt``.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from gfss.common.errors import GfssError, quoted
from gfss.common.files import read_json, refuse_special, write_atomically
from gfss.data.catalog import BACKGROUND_NAMES, VOID
from gfss.data.datasets.base import REFERENCE_SIDE, Dataset

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif")


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
    files = images_in(root / "images")
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


def read_class_names(root: Path) -> tuple[str, ...]:
    """Names in ``classes.txt``; line i names mask value i."""
    path = root / "classes.txt"
    if not path.exists():
        raise GfssError(f"{root} has no classes.txt; write one class name per line, line i naming mask value i")
    names = read_lines(path)
    if any(name.lower() in BACKGROUND_NAMES for name in names):
        raise GfssError(
            f"{path} names the background, but line i names mask value i, and the background is 0; take that line out"
        )
    return unique_names(names, path)


def unique_names(names: Iterable[str], source: Path) -> tuple[str, ...]:
    """Class names as a tuple; refuses doubles and more than an 8-bit mask can hold."""
    result = tuple(names)
    strange = next((name for name in result if not name.isprintable() or not 0 < len(name.strip()) <= 200), None)
    if strange is not None:
        raise GfssError(
            f"{source} has a class called {quoted(strange)}; class names are printable text of at most 200 characters"
        )
    if not result:
        raise GfssError(f"{source} names no class; at least one is needed")
    if len(set(result)) != len(result):
        raise GfssError(f"{source} names a class twice; every class needs a name of its own")
    if len(result) >= VOID:
        raise GfssError(f"{source} names {len(result)} classes; an 8-bit mask holds at most {VOID - 1}")
    return result


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


def read_lines(path: Path) -> list[str]:
    """Lines of a text file without blank ones; says in one sentence what is wrong with the file."""
    refuse_special(path)
    try:
        return [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except FileNotFoundError:
        raise GfssError(f"{path} does not exist") from None
    except UnicodeDecodeError as error:
        raise GfssError(f"{path} is not UTF-8 text (byte {error.start + 1}); save it as UTF-8") from None
    except OSError as error:
        raise GfssError(f"{path} cannot be read ({(error.strerror or 'no reason given').lower()})") from None


def images_in(folder: Path) -> dict[str, Path]:
    """Image files of a folder by name without suffix; empty if there is no such folder."""
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*")):
        if path.suffix.lower() not in IMAGE_SUFFIXES or path.name.startswith("."):
            continue
        if path.stem in found:
            raise GfssError(f"{folder} holds {found[path.stem].name} and {path.name}; rename one of them")
        found[path.stem] = path
    return found


def write_index_png(path: Path, mask: np.ndarray) -> None:
    """Write a mask (height, width) uint8 as index PNG, atomically."""
    with write_atomically(path) as file:
        Image.fromarray(mask).save(file, format="PNG")


def data_root(name: str, given: Path | None) -> Path:
    """Where a public data set is: the folder given, else the one in the environment (``GFSS_PASCAL`` ...)."""
    variable = f"GFSS_{name.upper()}"
    root = given or (Path(os.environ[variable]) if os.environ.get(variable) else None)
    if root is None:
        raise GfssError(f"no folder is known for '{name}'; give --root DIR or set {variable}=DIR")
    if not root.is_dir():
        raise GfssError(f"the folder {root} for '{name}' does not exist; give --root DIR or set {variable}=DIR")
    return root


def _id_of(line: str, known: Collection[str]) -> str:
    first = line.split()[0]
    candidates = (line, Path(line).stem, first, Path(first).stem)
    return next((name for name in candidates if name in known), candidates[-1])


def _has_original_size(root: Path) -> bool:
    path = root / "about.json"
    about = read_json(path) if path.exists() else {}
    return isinstance(about, dict) and bool(about.get("original_size"))
