"""Draw the pictures of docs/gallery.md and of the start page, all of them on generated scenes.

python docs/gallery.py
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

import gfss
from gfss.app.segmenter import Segmenter
from gfss.data import open_dataset
from gfss.data.datasets.base import Dataset
from gfss.data.datasets.scenes import make_scenes

OUT = Path(__file__).parent / "images"
MODEL, NAME, SHOTS = "scenes-tiny", "ring", (1, 3, 5)
KNOWN, NEW = np.array([58, 110, 190]), np.array([255, 106, 0])
SCALE = 4  # of the small scenes on the start page


class Scenes:
    """Generated scenes that the embedded model was not trained on, and the classes that it does not know."""

    def __init__(self) -> None:
        folder = make_scenes(seed=7, train=120, val=60, workers=1)
        self.train, self.val = (open_dataset(str(folder), split=split) for split in ("train", "val"))
        known = gfss.load(MODEL).classes
        self.unknown = [name for name in self.train.classes if name not in known]

    def supports(self, name: str, shots: int) -> tuple[list[Path], list[np.ndarray]]:
        """The first train images that show a class, and its masks."""
        value = self.train.classes.index(name) + 1
        chosen = self.train.images_of(value)[:shots]
        return [self.train.images[i] for i in chosen], [self.train.mask(i) == value for i in chosen]

    def queries(self, name: str, count: int) -> list[int]:
        """The val images that show most of a class."""
        value = self.val.classes.index(name) + 1
        return sorted(self.val.images_of(value), key=lambda i: -int((self.val.mask(i) == value).sum()))[:count]


def taught(scenes: Scenes, name: str, shots: int) -> Segmenter:
    """The embedded model after one lesson; without images if there are none to learn from."""
    model = gfss.load(MODEL)
    if shots:
        model.teach(name, *scenes.supports(name, shots))
    return model


def iou(model: Segmenter, data: Dataset, name: str) -> float:
    """Accumulated IoU of a class on all images that show it, in percent."""
    value, label = data.classes.index(name) + 1, model.classes.index(name)
    pairs = [(model.segment(data.images[i]).mask == label, data.mask(i) == value) for i in data.images_of(value)]
    return 100 * sum(int((a & b).sum()) for a, b in pairs) / sum(int((a | b).sum()) for a, b in pairs)


def object_iou(found: np.ndarray, true: np.ndarray) -> float:
    """IoU of two masks."""
    return int((found & true).sum()) / int((found | true).sum())


def marked(image: np.ndarray, mask: np.ndarray, new: int) -> np.ndarray:
    """A grey image with known classes blue and the class of label ``new`` orange."""
    shown = np.repeat(image.mean(axis=2, keepdims=True), 3, axis=2) * 0.9
    known = (mask > 0) & (mask != new)
    shown[known] = 0.5 * shown[known] + 0.5 * KNOWN
    shown[mask == new] = 0.3 * shown[mask == new] + 0.7 * NEW
    return shown.astype(np.uint8)


def segmented(model: Segmenter, image: Path | np.ndarray, *, scale: int = 1, **options: float | bool) -> np.ndarray:
    """What a model finds in an image, its last class orange if it was taught one."""
    result = model.segment(image, **options)  # type: ignore[arg-type]
    new = len(model.classes) - 1 if model.taught else len(model.classes)
    pixels = Image.fromarray(result.image).resize([scale * side for side in result.mask.shape[::-1]])
    return marked(np.asarray(pixels), np.kron(result.mask, np.ones((scale, scale), dtype=np.uint8)), new)


def labelled(image: Path, mask: np.ndarray) -> np.ndarray:
    """A support image with its label."""
    return marked(np.asarray(Image.open(image)), mask.astype(np.uint8), 1)


def sheet(path: str, rows: Sequence[Sequence[tuple[str, np.ndarray]]], side: float = 2.0) -> None:
    """Write rows of images with titles."""
    figure = Figure(figsize=(side * len(rows[0]), (side + 0.2) * len(rows)), layout="constrained")
    for cells, row in zip(figure.subplots(len(rows), len(rows[0]), squeeze=False), rows, strict=True):
        for axes, (title, image) in zip(cells, row, strict=True):
            axes.imshow(image, vmin=0, vmax=1)
            axes.set_title(title, fontsize=9)
            axes.set_axis_off()
    figure.savefig(OUT / path, dpi=110, pil_kwargs={"quality": 85})


def start_page(scenes: Scenes) -> None:
    """One scene before the lesson and after lessons of one, three and five images."""
    models = {shots: taught(scenes, NAME, shots) for shots in (0, *SHOTS)}
    value = scenes.val.classes.index(NAME) + 1

    def gain(index: int) -> float:
        label, true = len(models[1].classes) - 1, scenes.val.mask(index) == value
        found = [models[shots].segment(scenes.val.images[index]).mask == label for shots in (SHOTS[-1], SHOTS[0])]
        return object_iou(found[0], true) - object_iou(found[1], true)

    query = max(scenes.queries(NAME, 10), key=gain)  # of those that show much of the class, where labels help most
    for shots, model in models.items():
        Image.fromarray(segmented(model, scenes.val.images[query], scale=SCALE)).save(
            OUT / f"start-{shots}.jpg", quality=88
        )
        if shots:
            print(f"{NAME} after {shots} images: IoU {iou(model, scenes.val, NAME):.0f}")
    pairs = [labelled(image, mask) for image, mask in zip(*scenes.supports(NAME, SHOTS[-1]), strict=True)]
    Image.fromarray(np.concatenate(pairs, axis=1)).save(OUT / "start-supports.jpg", quality=88)


def teach_and_segment(scenes: Scenes) -> None:
    """Every class that the model does not know: a support, a new image, before and after."""
    rows = []
    for name in scenes.unknown:
        images, masks = scenes.supports(name, 3)
        query = scenes.val.images[scenes.queries(name, 1)[0]]
        print(f"{name} after 3 images: IoU {iou(taught(scenes, name, 3), scenes.val, name):.0f}")
        rows.append(
            [
                (f"{name}: 1 of 3 labels", labelled(images[0], masks[0])),
                ("a new image", np.asarray(Image.open(query))),
                ("before", segmented(gfss.load(MODEL), query)),
                ("after", segmented(taught(scenes, name, 3), query)),
            ]
        )
    sheet("gallery-teach.jpg", rows)


def more_images(scenes: Scenes) -> None:
    """The same new images after lessons of growing size."""
    models = {shots: taught(scenes, NAME, shots) for shots in SHOTS}
    rows = []
    for query in (scenes.val.images[i] for i in scenes.queries(NAME, 3)):
        row = [(f"{n} image{'s' * (n > 1)}", segmented(model, query)) for n, model in models.items()]
        rows.append([("a new image", np.asarray(Image.open(query))), *row])
    sheet("gallery-shots.jpg", rows)


def balance_and_scores(scenes: Scenes) -> None:
    """The same image with less and more of the class, and the probability behind it."""
    model, image = taught(scenes, NAME, 3), scenes.val.images[scenes.queries(NAME, 2)[1]]
    row = [(f"balance {value:+g}", segmented(model, image, balance=value)) for value in (-3.0, 0.0, 3.0)]
    sheet("gallery-balance.jpg", [[*row, ("its probability", model.segment(image).scores[-1])]])


def tiles(scenes: Scenes) -> None:
    """A large image at once and in tiles."""
    model = taught(scenes, NAME, 5)
    chosen = [*scenes.queries(NAME, 5), *range(11)]
    parts = [np.asarray(Image.open(scenes.val.images[i])) for i in chosen]
    side = min(min(part.shape[:2]) for part in parts)
    rows = [np.concatenate([part[:side, :side] for part in parts[i : i + 4]], axis=1) for i in range(0, 16, 4)]
    large = np.concatenate(rows, axis=0)
    row = [("large image", large), ("at once", segmented(model, large)), ("tiles", segmented(model, large, tile=True))]
    sheet("gallery-tile.jpg", [row], side=3)


def what_to_label(scenes: Scenes) -> None:
    """Unlabelled images in the order in which labels would help, and the last of them."""
    model = taught(scenes, NAME, 1)
    ranked = model.suggest(list(scenes.val.images[:30]))
    row = [(f"{place}: {ranked[place - 1].value:.2f}", ranked[place - 1]) for place in (1, 2, 3, len(ranked))]
    sheet("gallery-suggest.jpg", [[(title, np.asarray(Image.open(one.path))) for title, one in row]])


def main() -> None:
    """Write every picture."""
    scenes = Scenes()
    for draw in (start_page, teach_and_segment, more_images, balance_and_scores, tiles, what_to_label):
        draw(scenes)


if __name__ == "__main__":
    main()
