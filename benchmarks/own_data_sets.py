"""Data sets of many fields for ``benchmarks/own_data.py``, made from clones of public repositories.

    python benchmarks/own_data_sets.py ROOT --repositories DIR [SET ...]
    python benchmarks/own_data_sets.py --sources

``own_data_sets.yaml`` is the list of sources. DIR holds one clone per repository, bare or not, in a folder named
``owner+name`` (a data set that is no repository: its plain folder). Files are read at the commit of the table, so the
same images come out every time. ROOT gets one folder per set: ``images/``, ``masks/`` (index PNG, 0 rest, 255 void)
and ``classes.txt``. Nothing of a source is part of the project; images stay under the terms of their owners.
"""

from __future__ import annotations

import argparse
import fnmatch
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image, ImageDraw, ImageOps

from gfss.common.errors import GfssError
from gfss.data.catalog import VOID

TABLE = Path(__file__).with_suffix(".yaml")
LONGEST_SIDE = 1000
SEED = 0
COLOUR_TOLERANCE = 40  # per channel, for masks stored as JPEG
ASPECT_TOLERANCE = 0.03  # by which a mask's shape may differ from its image's

Rule = int | str | Sequence[int | str]


@dataclass(frozen=True)
class Part:
    """Images of a set that share a form of annotation.

    Args:
        images: regular expression of image paths; its groups, joined by a hyphen, name the image.
        masks: path of an image's mask, with the groups of ``images`` as ``\\1``, or one for every class; it may end
            in a pattern such as ``*.png``, whose files are joined. Images whose masks are all missing are left out;
            without a path the images show no class.
        classes: class name to the mask's values: an integer, ``>=128``, a colour ``#ff0000`` or the label of
            an outline.
        void: mask values that are not judged, in the same form.
        sample: images taken at most, drawn with a fixed seed.
        key: dotted path of the array in a MATLAB file.
        upright: turn images as their EXIF data say, where masks were drawn on the turned ones.
    """

    images: str
    masks: str | Mapping[str, str] = ""
    classes: Mapping[str, Rule] = field(default_factory=dict)
    void: Rule = ()
    sample: int = 150
    key: str = ""
    upright: bool = False


@dataclass(frozen=True)
class Source:
    """One line of the table: a set, where it comes from and how its masks are read."""

    name: str
    repository: str
    classes: tuple[str, ...]
    parts: tuple[Part, ...]
    commit: str = ""
    licence: str = "not stated"

    @property
    def address(self) -> str:
        return f"https://github.com/{self.repository}" if "/" in self.repository else self.repository


def read_table(path: Path = TABLE) -> dict[str, Source]:
    """Sources by set name; what parts have in common stands beside ``parts``."""
    found = {}
    for name, row in yaml.safe_load(path.read_text()).items():
        about = {key: row.pop(key) for key in ("repository", "commit", "licence") if key in row}
        parts = tuple(Part(**{**row, **part}) for part in row.pop("parts", [{}]))
        classes = tuple(dict.fromkeys(label for part in parts for label in part.classes))
        found[name] = Source(name, classes=classes, parts=parts, **about)
    return found


class Clone:
    """Files of a repository at one commit, or of a plain folder where there is no commit."""

    def __init__(self, root: Path, source: Source) -> None:
        folder = root / source.repository.replace("/", "+")
        if not folder.is_dir():
            raise GfssError(f"{root} has no {folder.name}; clone {source.address} there for the set '{source.name}'")
        self.folder = folder
        self.source = source

    @cached_property
    def paths(self) -> list[str]:
        if not self.source.commit:
            return sorted(p.relative_to(self.folder).as_posix() for p in self.folder.rglob("*") if p.is_file())
        command = ["git", "-C", str(self.folder), "ls-tree", "-r", "-z", "--name-only", self.source.commit]
        listed = subprocess.run(command, capture_output=True, check=False)
        if listed.returncode:
            raise GfssError(f"{self.folder} lacks the commit {self.source.commit}; clone {self.source.address} again")
        return sorted(listed.stdout.decode().strip("\0").split("\0"))

    @cached_property
    def _reader(self) -> subprocess.Popen[bytes]:
        command = ["git", "-C", str(self.folder), "cat-file", "--batch"]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def read(self, path: str) -> bytes:
        if not self.source.commit:
            return (self.folder / path).read_bytes()
        asked, answered = self._reader.stdin, self._reader.stdout
        assert asked is not None
        assert answered is not None
        asked.write(f"{self.source.commit}:{path}\n".encode())
        asked.flush()
        kind = answered.readline().decode().split(" ")
        if kind[-1] == "missing\n":
            raise GfssError(f"{self.folder} lacks the content of {path}; clone {self.source.address} in full")
        data = answered.read(int(kind[-1]))
        answered.read(1)  # the line end behind the content
        return data

    def close(self) -> None:
        if "_reader" in self.__dict__:
            self._reader.communicate()


def chosen_images(paths: Sequence[str], part: Part) -> Iterator[tuple[str, str, dict[str, Part]]]:
    """Name, image path and existing mask paths, each with what it shows, of the images that a part takes."""
    folders: dict[str, list[str]] = {}
    for path in paths:
        folders.setdefault(path.rpartition("/")[0], []).append(path)
    templates = {part.masks: part} if isinstance(part.masks, str) else _by_class(part, part.masks)
    found = []
    for path in paths:
        match = re.fullmatch(part.images, path)
        if match is None:
            continue
        masks: dict[str, Part] = {}
        for template, shown in templates.items():
            wanted = match.expand(template)
            beside = folders.get(wanted.rpartition("/")[0], [])
            existing = fnmatch.filter(beside, wanted) if "*" in wanted else [wanted] if wanted in beside else []
            masks |= dict.fromkeys(existing, shown)
        if masks or not part.masks:
            name = "-".join(match.groups()) if match.groups() else Path(path).stem
            found.append((re.sub(r"[^A-Za-z0-9_-]+", "_", name), path, masks))
    order = np.random.default_rng(SEED).permutation(len(found))[: part.sample]
    for index in sorted(order):
        yield found[index]


def _by_class(part: Part, masks: Mapping[str, str]) -> dict[str, Part]:
    return {path: replace(part, classes={name: part.classes[name]}) for name, path in masks.items()}


def mask_array(data: bytes, path: str, part: Part) -> np.ndarray:
    """Values of a mask: rows x columns, or x 3 for a colour image."""
    if path.endswith(".mat"):
        from scipy.io import loadmat

        found: Any = loadmat(io.BytesIO(data), squeeze_me=True, struct_as_record=False)
        for key in part.key.split("."):
            found = found[key] if isinstance(found, dict) else getattr(found, key)
        return np.asarray(found)
    if path.endswith(".npz"):
        found = next(iter(np.load(io.BytesIO(data)).values()))
        return found.any(axis=2).astype(np.uint8) if found.ndim == 3 else found  # one layer per object
    image = Image.open(io.BytesIO(data))
    if image.mode == "1":
        image = image.convert("L")
    coloured = "#" in str([*part.classes.values(), part.void])
    if image.mode in ("RGBA", "LA", "CMYK") or (image.mode == "P" and coloured):
        image = image.convert("RGB")
    return np.asarray(image)


def where(values: np.ndarray, rule: Rule) -> np.ndarray:
    """Positions whose value is of the rule."""
    if isinstance(rule, Sequence) and not isinstance(rule, str):
        empty = np.zeros(values.shape[:2], dtype=bool)
        return np.logical_or.reduce([where(values, one) for one in rule]) if rule else empty
    if isinstance(rule, str) and rule.startswith("#"):
        colour = [int(rule[i : i + 2], 16) for i in (1, 3, 5)]
        shown = values if values.ndim == 3 else np.repeat(values[..., None], 3, axis=2)
        return (np.abs(shown.astype(int) - colour) <= COLOUR_TOLERANCE).all(axis=2)
    flat = values.max(axis=2) if values.ndim == 3 else values
    if isinstance(rule, str):
        return flat >= int(rule.removeprefix(">="))
    return flat == rule


def sampled(values: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """A mask at another width and height: the nearest value of every position."""
    rows, columns = (
        ((np.arange(wanted) + 0.5) * given / wanted).astype(int)
        for wanted, given in zip(reversed(size), values.shape[:2], strict=True)
    )
    return values[rows[:, None], columns]


def outlines(data: bytes, path: str, name: str) -> list[tuple[str, np.ndarray]]:
    """Labels and corners (rows of x and y, as shares of the image) of an image's outlines.

    Args:
        data: content of the file.
        path: its path; ``.txt`` is the YOLO form, whose labels are numbers, anything else is the COCO form.
        name: file name of the image.
    """
    if path.endswith(".txt"):
        rows = [line.split() for line in data.decode().splitlines()]
        return [(row[0], np.array(row[1:], dtype=float).reshape(-1, 2)) for row in rows if row]
    content = json.loads(data)
    labels = {row["id"]: row["name"] for row in content["categories"]}
    sizes = {row["id"]: (row["width"], row["height"]) for row in content["images"] if row["file_name"] == name}
    found = [row for row in content["annotations"] if row["image_id"] in sizes]
    return [
        (labels[row["category_id"]], np.reshape(corners, (-1, 2)) / sizes[row["image_id"]])
        for row in found
        for corners in row["segmentation"]
    ]


def inside(found: Sequence[tuple[str, np.ndarray]], rule: Rule, size: tuple[int, int]) -> np.ndarray:
    """Positions within the outlines whose label is of the rule."""
    labels = {str(one) for one in ([rule] if isinstance(rule, str | int) else rule)}
    area = Image.new("1", size)
    for label, corners in found:
        if label in labels:
            ImageDraw.Draw(area).polygon((corners * size).ravel().tolist(), fill=1)
    return np.asarray(area)


def index_mask(clone: Clone, masks: Mapping[str, Part], name: str, size: tuple[int, int]) -> Image.Image:
    """Mask of an image in the values of the set, with the given width and height."""
    labels = np.zeros((size[1], size[0]), dtype=np.uint8)
    for path, part in masks.items():
        data = clone.read(path)
        targets = [(clone.source.classes.index(label) + 1, rule) for label, rule in part.classes.items()]
        if path.endswith((".json", ".txt")):
            found = outlines(data, path, name)
            for target, rule in targets:
                labels[inside(found, rule, size)] = target
            continue
        values = mask_array(data, path, part)
        height, width = values.shape[:2]
        if abs(width * size[1] / (height * size[0]) - 1) > ASPECT_TOLERANCE:
            raise GfssError(
                f"the mask {path} of {width} x {height} pixels has another shape than its image "
                f"({size[0]} x {size[1]}); correct the patterns of its set"
            )
        values = sampled(values, size)
        for target, rule in [*targets, (VOID, part.void)]:
            labels[where(values, rule)] = target
    return Image.fromarray(labels)


def reduced_size(width: int, height: int) -> tuple[int, int]:
    """Width and height of an image no longer than the longest side."""
    scale = min(1.0, LONGEST_SIDE / max(width, height))
    return round(width * scale), round(height * scale)


def make_set(source: Source, repositories: Path, root: Path) -> int:
    """Write one set; the number of its images."""
    folder = root / source.name
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    written: set[str] = set()
    with closing(Clone(repositories, source)) as clone:
        rows = ((part, *row) for part in source.parts for row in chosen_images(clone.paths, part))
        for part, name, path, masks in rows:
            if name in written:
                raise GfssError(
                    f"two images of '{source.name}' have the name '{name}', the second is {path}; "
                    "give its pattern more groups"
                )
            image = Image.open(io.BytesIO(clone.read(path)))
            image = (ImageOps.exif_transpose(image) if part.upright else image).convert("RGB")
            size = reduced_size(*image.size)
            image.resize(size, Image.Resampling.LANCZOS).save(folder / "images" / f"{name}.jpg", quality=95)
            index_mask(clone, masks, Path(path).name, size).save(folder / "masks" / f"{name}.png")
            written.add(name)
    if not written:
        raise GfssError(f"the table's patterns for '{source.name}' match no file of {source.address}")
    (folder / "classes.txt").write_text("".join(f"{label}\n" for label in source.classes))
    return len(written)


def print_sources(sources: Mapping[str, Source]) -> None:
    print("| set | classes | source | licence |\n| --- | --- | --- | --- |")
    for source in sources.values():
        print(f"| {source.name} | {', '.join(source.classes)} | {source.address} | {source.licence} |")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, nargs="?", help="folder that gets the sets")
    parser.add_argument("sets", nargs="*", help="sets to make; all where none is named")
    parser.add_argument("--repositories", type=Path, default=Path(), help="folder of the clones")
    parser.add_argument("--sources", action="store_true", help="print the list of sources and stop")
    options = parser.parse_intermixed_args(arguments)
    sources = read_table()
    if options.sources or options.root is None:
        print_sources(sources)
        return 0
    failed = 0
    for name in options.sets or sources:
        try:
            if name not in sources:
                raise GfssError(f"there is no set '{name}'; the sets are {', '.join(sources)}")
            print(f"{name}: {make_set(sources[name], options.repositories, options.root)} images", flush=True)
        except GfssError as error:
            print(error, file=sys.stderr)
            failed += 1
    return 2 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
