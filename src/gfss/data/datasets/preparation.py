"""What ``gfss data prepare`` has in common for all data sets: linking files, lists, the final verification."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from gfss.common.errors import GfssError
from gfss.common.files import make_folder, write_atomically, write_json
from gfss.data.datasets.folder import read_folder
from gfss.data.inspection import as_labels, inspect


def link(source: Path, target: Path) -> None:
    """A hard link where the file system allows it, else a copy; nothing if the target exists.

    Links are followed: a relative one would lead nowhere from the target's place.
    """
    if target.exists():
        return
    make_folder(target.parent)
    target.unlink(missing_ok=True)  # a link to nothing
    try:
        os.link(source.resolve(), target)
    except FileExistsError:
        return
    except OSError:
        with write_atomically(target) as out, source.open("rb") as file:
            shutil.copyfileobj(file, out)


def finish(out: Path, data: str, classes: Sequence[str], lists: Mapping[str, Sequence[str]]) -> None:
    """Write lists, class names and the note, then verify sizes and values of every mask.

    Args:
        out: the data folder, with all images and masks in place.
        data: name of the data set.
        classes: class names.
        lists: ids of each split.
    """
    for name, lines in {**{f"{split}.txt": ids for split, ids in lists.items()}, "classes.txt": classes}.items():
        with write_atomically(out / name) as file:
            file.write(("\n".join(lines) + "\n").encode())
    counts = {split: len(ids) for split, ids in lists.items()}
    write_json(out / "about.json", {"data": data, "original_size": True, **counts})
    for split in lists:
        verify(out, split)


def verify(out: Path, split: str) -> None:
    """Raise if a mask has another size than its image or a value without a class."""
    dataset = read_folder(out, split)
    problems = inspect(as_labels(dataset), f"verifying {dataset.name}", decode=False).problems
    if problems:
        first = next(iter(problems.values()))[0]
        count = sum(len(texts) for texts in problems.values())
        raise GfssError(f"{count} prepared file(s) are wrong; delete them and prepare again; first: {first}")
