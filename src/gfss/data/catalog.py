"""Class names and folds of the data sets of the field.

A class id is the value in a mask: 0 background, 1..n the classes in the order below, 255 void.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gfss.common.errors import GfssError, unknown

BACKGROUND = 0
BACKGROUND_NAMES = ("background", "_background_")  # what label programs call it
VOID = 255
FOLDS = 4

PASCAL_CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle",
    "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person",
    "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip

COCO_CLASSES = (
    "person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "traffic light",
    "fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse", "sheep", "cow",
    "elephant", "bear", "zebra", "giraffe", "backpack", "umbrella", "handbag", "tie", "suitcase", "frisbee",
    "skis", "snowboard", "sports ball", "kite", "baseball bat", "baseball glove", "skateboard", "surfboard",
    "tennis racket", "bottle", "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple",
    "sandwich", "orange", "broccoli", "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch",
    "potted plant", "bed", "dining table", "toilet", "tv", "laptop", "mouse", "remote", "keyboard",
    "cell phone", "microwave", "oven", "toaster", "sink", "refrigerator", "book", "clock", "vase",
    "scissors", "teddy bear", "hair drier", "toothbrush",
)  # fmt: skip

CLASSES_PER_FOLD = {"pascal": (15, 5), "coco": (60, 20)}  # base and novel classes of a fold


@dataclass(frozen=True)
class Fold:
    """Which class ids are known (base) and which are new (novel).

    Labels inside a fold are 0 background, 1..N base in order of id, then the novel classes asked for.
    """

    base: tuple[int, ...]
    novel: tuple[int, ...]

    def label_table(self, novel: Sequence[int] = (), hidden: int = VOID) -> np.ndarray:
        """Table of 256 entries from mask value to label.

        Args:
            novel: novel class ids that are present in this task; they get labels N+1, N+2, ...
            hidden: label of novel classes that are not present (255: neither right nor wrong).
        """
        table = np.full(256, VOID, dtype=np.uint8)
        table[BACKGROUND] = BACKGROUND
        table[list(self.novel)] = hidden
        for label, class_id in enumerate(self.base, start=1):
            table[class_id] = label
        for label, class_id in enumerate(novel, start=len(self.base) + 1):
            table[class_id] = label
        return table


def make_fold(classes: int, fold: int, folds: int = FOLDS, interleaved: bool = False) -> Fold:
    """Fold ``fold`` of a data set with ``classes`` classes.

    Contiguous (PASCAL-5^i): novel = a block of ids. Interleaved (the usual COCO-20^i): every
    ``folds``-th id starting at ``fold + 1``.

    >>> make_fold(20, 0).novel
    (1, 2, 3, 4, 5)
    >>> make_fold(80, 1, interleaved=True).novel[:3]
    (2, 6, 10)
    """
    if not 0 <= fold < folds:
        raise GfssError(f"fold {fold} is out of range: this data set has folds 0 to {folds - 1}")
    if classes < folds:
        raise GfssError(f"{classes} classes cannot be split into {folds} folds; at least {folds} are needed")
    ids = np.arange(1, classes + 1)
    novel = ids[fold::folds] if interleaved else np.array_split(ids, folds)[fold]
    base = np.setdiff1d(ids, novel)
    return Fold(tuple(int(i) for i in base), tuple(int(i) for i in novel))


def fold_of_names(classes: Sequence[str], novel: Sequence[str]) -> Fold:
    """A fold whose novel classes are given by name (own data)."""
    for name in novel:
        if name not in classes:
            raise unknown("class", name, classes)
    ids = tuple(classes.index(name) + 1 for name in novel)
    if len(set(ids)) == len(classes):
        raise GfssError(f"all {len(classes)} classes are novel; leave at least one that the model knows")
    return Fold(tuple(i for i in range(1, len(classes) + 1) if i not in ids), ids)
