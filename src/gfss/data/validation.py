"""Describe a data set: what is there, problems, remarks."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gfss.common.errors import GfssError
from gfss.data import NAMES, SPLITS, open_dataset, own_path
from gfss.data.catalog import BACKGROUND, VOID
from gfss.data.datasets.base import REFERENCE_SIDE, least_area
from gfss.data.datasets.folder import data_root, is_plain
from gfss.data.inspection import Inspection, as_labels, inspect
from gfss.data.labels import UNNAMED, Labels, read_labels

NOT_OPENED = "data that cannot be opened"
NOTHING_SHOWN = "masks without any class"
NO_NAMES = "binary masks do not say what they show; gfss teach gives it a name (--name NAME)"
FEW = 5  # shots that few-shot tasks usually go up to


@dataclass(frozen=True)
class ClassRow:
    """One class in figures.

    Attributes:
        name: class name.
        images: images with at least one pixel of it.
        usable: images where it is large enough to count.
        share: mean share of the image's area, over the images that have it.
    """

    name: str
    images: int
    usable: int
    share: float


@dataclass(frozen=True)
class Finding:
    """What was found in one split, or in data without splits.

    Attributes:
        title: name of the split or path.
        format: label format in words.
        images: number of images.
        rows: one row per class.
        background: share of background pixels.
        void: share of void pixels.
        problems: what must be fixed: kind -> one sentence per file.
        remarks: what is worth knowing.
        onward: the command that goes on from here; empty where something must be fixed first.
    """

    title: str
    format: str = ""
    images: int = 0
    rows: list[ClassRow] = field(default_factory=list)
    background: float = 0.0
    void: float = 0.0
    problems: dict[str, list[str]] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    onward: str = ""


def check(
    data: str,
    root: Path | None = None,
    *,
    images: Sequence[Path] = (),
    masks: Path | None = None,
    void: int | None = None,
) -> list[Finding]:
    """Look at every file of a data set; one finding per split, or one where there are no splits.

    Args:
        data: name or path as for ``open_dataset``.
        root: folder of a named data set.
        images: the images of own data, where they are not found by themselves.
        masks: the labels of own data, likewise.
        void: the mask value that is void, where it is not 255.
    """
    if data not in NAMES and (images or masks or void is not None):
        source = masks or own_path(data, root)
        words = _onward([str(path) for path in images] or [data], str(source), void)
        return [
            _finding(
                source.name, lambda: (read_labels(source, images, UNNAMED, void=void), REFERENCE_SIDE), onward=words
            )
        ]
    if data not in NAMES and not is_plain(own_path(data, root)):
        return [
            _finding(
                Path(data).name,
                lambda: (read_labels(Path(data), class_name=UNNAMED), REFERENCE_SIDE),
                onward=_onward([data], data),
            )
        ]
    if data in ("pascal", "coco"):
        data_root(data, root)

    def opened(split: str) -> tuple[Labels, int | None]:
        dataset = open_dataset(data, root, split)
        return as_labels(dataset), dataset.reference_side

    return [_finding(f"{Path(data).name} {split}", lambda split=split: opened(split)) for split in SPLITS]


def _onward(images: Sequence[str], masks: str, void: int | None = None) -> str:
    """The command that teaches a class from these data, without its name."""
    words = [word for path in images for word in ("--images", path)] + ["--masks", masks]
    words += [] if void is None else ["--void", str(void)]
    return f"gfss teach voc20-lite0 {shlex.join(words)} -o my-model --name "


def _finding(title: str, opened: Callable[[], tuple[Labels, int | None]], onward: str = "") -> Finding:
    try:
        labels, reference_side = opened()
    except GfssError as error:
        return Finding(title, problems={NOT_OPENED: [str(error)]})
    found = inspect(labels, f"looking at {title}")
    rows = _rows(labels.classes, found, reference_side)
    pixels = max(1, int(found.counts.sum()))
    problems = found.problems | _nothing_shown(found)
    shown = [row.name for row in rows if row.images]
    return Finding(
        title,
        labels.format,
        len(labels),
        rows,
        background=float(found.counts[:, BACKGROUND].sum() / pixels),
        void=float(found.counts[:, VOID].sum() / pixels),
        problems=problems,
        remarks=([NO_NAMES] if labels.classes == (UNNAMED,) else [])
        + list(labels.remarks)
        + _splits(labels)
        + _remarks(rows, found)
        + _left_out(labels),
        onward=onward + _named(shown[0]) if onward and shown and not problems else "",
    )


def _named(name: str) -> str:
    """How the class of a command is named: as the labels call it, or by a value."""
    if name == UNNAMED:
        return "NAME"
    if name.startswith("-"):
        return f"NAME --label={shlex.quote(name)}"
    return f"NAME --label {name}" if name.isdecimal() else shlex.quote(name)


def _splits(labels: Labels) -> list[str]:
    """The remark about images for training and validation."""
    counts = Counter(name or "no split" for name in labels.splits)
    words = ", ".join(f"{count} {name}" for name, count in counts.items())
    return [f"the folders say which images are for what: {words}"] if words else []


def _rows(classes: tuple[str, ...], found: Inspection, reference_side: int | None) -> list[ClassRow]:
    usable = found.counts >= least_area(found.sizes, reference_side)[:, None]
    shares = found.counts / np.maximum(found.sizes.prod(axis=1, keepdims=True), 1)
    rows = []
    for value, name in enumerate(classes, start=1):
        present = found.counts[:, value] > 0
        share = float(shares[present, value].mean()) if present.any() else 0.0
        rows.append(ClassRow(name, int(present.sum()), int(usable[:, value].sum()), share))
    return rows


def _remarks(rows: list[ClassRow], found: Inspection) -> list[str]:
    remarks: list[str] = []
    absent = [row.name for row in rows if not row.images]
    few = [row.name for row in rows if 0 < row.usable < FEW + 1]
    empty = int((found.counts[:, 1:VOID].sum(axis=1) == 0).sum())
    if absent:
        remarks.append(f"no image shows {_listed(absent)}")
    if few:
        remarks.append(
            f"fewer than {FEW + 1} images show {_listed(few)} large enough: one to five are enough to teach a class, "
            f"but to measure it with {FEW} shots as well takes {FEW + 1}"
        )
    if 0 < empty < len(found.counts):
        remarks.append(f"{empty} image(s) show no class at all")
    return remarks


def _nothing_shown(found: Inspection) -> dict[str, list[str]]:
    """The problem that no mask shows anything."""
    if not len(found.counts) or found.counts[:, 1:VOID].any():
        return {}
    if not found.counts[:, VOID].any():
        return {NOTHING_SHOWN: ["all masks are empty (0 everywhere)"]}
    return {
        NOTHING_SHOWN: [
            f"all masks have only 0 and {VOID}, and {VOID} means void; if they are binary masks, sort them into one "
            "folder per class: masks/NAME/ID.png"
        ]
    }


def _left_out(labels: Labels) -> list[str]:
    """The remark about images without a label."""
    names = [path.name for path in labels.unlabelled]
    return [f"{len(names)} image(s) have no label and are ignored: {_listed(names)}"] if names else []


def _listed(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
