"""Draw the picture of README.md, docs/images/teaching.png: a class taught to the embedded model from three images.

python docs/teaching.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import gfss
from gfss.data import open_dataset
from gfss.data.datasets.base import Dataset
from gfss.data.datasets.scenes import make_scenes

OUT = Path(__file__).parent / "images" / "teaching.png"
ORANGE = np.array([255, 106, 0])
KNOWN = np.array([72, 120, 168])
ROWS, SHOTS = 2, 3  # new classes that are shown, labelled images of each


def marked(image: np.ndarray, known: np.ndarray, new: np.ndarray) -> np.ndarray:
    """An image with pixels of known classes blue and of the new class orange, the rest grey."""
    shown = np.repeat(image.mean(axis=2, keepdims=True), 3, axis=2) * 0.8
    shown[known] = 0.45 * shown[known] + 0.55 * KNOWN
    shown[new] = 0.25 * shown[new] + 0.75 * ORANGE
    return shown.astype(np.uint8)


def row(train: Dataset, val: Dataset, name: str) -> list[tuple[str, np.ndarray]]:
    """Support, query, and what the model makes of the query before and after, each with its title."""
    model, class_id = gfss.load("scenes-tiny"), train.classes.index(name) + 1
    supports = train.images_of(class_id)[:SHOTS]
    # the query is the val image that shows most of the class
    query = max(val.images_of(class_id), key=lambda i: int((val.mask(i) == class_id).sum()))
    before = model.segment(val.images[query]).mask
    model.teach(name, [train.images[i] for i in supports], [train.mask(i) == class_id for i in supports])
    after = model.segment(val.images[query])
    nothing, label = np.zeros_like(before, dtype=bool), model.classes.index(name)
    example, object_mask = train.image(supports[0]), train.mask(supports[0]) == class_id
    return [
        (f"{name}, 1 of {SHOTS} labelled images", marked(example, np.zeros_like(object_mask), object_mask)),
        ("a new image", after.image),
        ("segmented before", marked(after.image, before > 0, nothing)),
        ("after teaching", marked(after.image, (after.mask > 0) & (after.mask != label), after.mask == label)),
    ]


def main() -> None:
    """Write the picture."""
    scenes = make_scenes(seed=7, train=60, val=30, workers=1)
    train, val = (open_dataset(str(scenes), split=split) for split in ("train", "val"))
    unknown = [name for name in train.classes if name not in gfss.load("scenes-tiny").classes]
    figure = Figure(figsize=(8, 2.05 * ROWS), layout="constrained")
    for cells, name in zip(figure.subplots(ROWS, 4), unknown, strict=False):
        for axes, (title, image) in zip(cells, row(train, val, name), strict=True):
            axes.imshow(image)
            axes.set_title(title, fontsize=10)
            axes.set_axis_off()
    figure.savefig(OUT, dpi=110)


if __name__ == "__main__":
    main()
