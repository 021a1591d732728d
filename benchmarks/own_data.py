"""Teaching on data sets of many fields: gfss beside logistic regression and prototypes on the same encoder.

    python benchmarks/own_data.py ROOT [SET ...] --model voc20-lite0 --shots 1,3,5,10 --draws 3

ROOT holds one folder per data set: ``images/``, ``masks/`` (index PNG, 0 rest, 255 void) and ``classes.txt``. For every
class that enough images show, supports are drawn, and images with and without the class are segmented. Figures go to
``benchmarks/measured/own_data/SET.json`` as they come; what is there is not done again. ``--table`` prints them.
``--sheet FOLDER`` also writes what was found, with the outline of the truth, to ``FOLDER/SET.jpg``, for the eye; these
images are other people's and not part of the project.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps

import gfss
from gfss.app.network import DESCRIPTORS, Guide, encoder_maps, label_map
from gfss.app.segmenter import Segmenter
from gfss.app.teaching import LEARNED_ROUGHLY
from gfss.data.catalog import VOID
from gfss.data.datasets.base import read_class_names
from gfss.data.images import class_colours, mirrored_image, overlay, square_label
from gfss.methods.logistic import fit_rows
from gfss.methods.prototype import prototype_rows

HERE = Path(__file__).parent
MEASURED = HERE / "measured" / "own_data"
TUNING = (
    "ade-stuff",
    "ade-things",
    "aerial-roads",
    "animals-feral-cats",
    "clothing-ccp",
    "industry-magnetic-tile",
    "medical-retina",
    "medical-skin-ph2",
    "medical-wounds",
    "microscopy-em-membranes",
    "microscopy-nuclei",
    "plants-cwfid",
    "road-potholes",
    "thermal-udder",
)  # sets that settings were chosen and the refiner was trained on; the others only confirm
LEAST_SHARE = 0.005  # of an image that a class must cover to count as shown
FEWEST = 15  # images that must show a class
QUERIES = 10  # images with the class, and as many without where there are any
MOST_SHOTS = 10
METHODS = ("gfss", "logistic", "prototype")
SHEET_SHOTS = 5  # images that the class of a sheet was taught from
SHEET_COLUMNS, TILE = 5, 240  # images in a row of a sheet, and their side


@dataclass(frozen=True)
class Task:
    """One class, its support images and the images to segment."""

    name: str
    label: int
    draw: int
    supports: tuple[str, ...]
    shown: tuple[str, ...]
    free: tuple[str, ...]


@dataclass(frozen=True)
class Figure:
    """One line of the record: IoU in percent on images with the class, and with class-free images beside them."""

    method: str
    name: str
    draw: int
    shots: int
    iou_shown: float
    iou: float
    support_iou: float
    seconds: float  # CPU time of learning; for gfss, of the images that were added
    estimate: float | None = None
    refined: bool | None = None


class Images:
    """Images, masks and encoder levels of a data set, each read once."""

    def __init__(self, folder: Path, model: Segmenter) -> None:
        self.folder = folder
        self.network = model.network
        self.files = distinct_files(sorted((folder / "images").iterdir()))
        self._levels: dict[str, dict[str, torch.Tensor]] = {}

    def image(self, name: str) -> np.ndarray:
        return np.asarray(Image.open(self.files[name]).convert("RGB"))

    def mask(self, name: str, label: int) -> np.ndarray:
        values = np.asarray(Image.open(self.folder / "masks" / f"{name}.png"))
        return np.where(values == VOID, VOID, values == label).astype(np.uint8)

    def levels(self, name: str) -> dict[str, torch.Tensor]:
        if name not in self._levels:
            self._levels[name] = self.network.levels(mirrored_image(self.image(name), self.network.size))
        return self._levels[name]

    def shares(self) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = {}
        for name in self.files:
            counts = np.bincount(np.asarray(Image.open(self.folder / "masks" / f"{name}.png")).ravel(), minlength=256)
            found[name] = counts[:VOID] / max(1, counts[:VOID].sum())
        return found


def distinct_files(paths: Sequence[Path]) -> dict[str, Path]:
    """Files by stem; of images with the same pixels the first one."""
    found: dict[bytes, Path] = {}
    for path in paths:
        with Image.open(path) as image:
            found.setdefault(sha256(image.convert("RGB").tobytes()).digest(), path)
    return {path.stem: path for path in found.values()}


def tasks(images: Images, names: Sequence[str], classes: int, draws: int) -> Iterator[Task]:
    """Tasks of the classes that most images show."""
    shares = images.shares()
    shown = {label: [i for i, s in shares.items() if s[label] >= LEAST_SHARE] for label in range(1, len(names) + 1)}
    usable = sorted((label for label in shown if len(shown[label]) >= FEWEST), key=lambda c: (-len(shown[c]), c))
    for label in usable[:classes]:
        free = [i for i, s in shares.items() if s[label] == 0]
        for draw in range(draws):
            generator = np.random.default_rng((draw, label))
            order = [shown[label][i] for i in generator.permutation(len(shown[label]))]
            without = [free[i] for i in generator.permutation(len(free))]
            cut = min(MOST_SHOTS, len(order) - 8)
            yield Task(
                names[label - 1],
                label,
                draw,
                tuple(order[:cut]),
                tuple(order[cut : cut + QUERIES]),
                tuple(without[:QUERIES]),
            )


Scores = Callable[[str], torch.Tensor]


def segment(images: Images, name: str, shape: tuple[int, int], scores: Scores, guided: bool) -> np.ndarray:
    """Where the last class of an image's score maps was found, (height, width) bool.

    Args:
        guided: its edges follow the image, as in ``Segmenter.segment``.
    """
    maps, size, image = scores(name), images.network.size, images.image(name)
    guide = Guide(1, image, mirrored_image(image, size)) if guided else None
    return label_map(maps, size, shape, guide) == len(maps) - 1


def overlap(
    images: Images, task: Task, chosen: Sequence[str], scores: Scores, guided: bool, tiles: list[Image.Image] | None
) -> np.ndarray:
    """Intersection and union of what was found with the truth.

    Args:
        guided: as for :func:`segment`.
        tiles: gets a picture of each image.
    """
    counts = np.zeros(2)
    for name in chosen:
        truth = images.mask(name, task.label)
        found = segment(images, name, (truth.shape[0], truth.shape[1]), scores, guided)
        valid = truth != VOID
        counts += [(found & (truth == 1) & valid).sum(), ((found | (truth == 1)) & valid).sum()]
        if tiles is not None:
            tiles.append(tile(images.image(name), truth == 1, found))
    return counts


def tile(image: np.ndarray, truth: np.ndarray, found: np.ndarray) -> Image.Image:
    """A small picture: what was found in colour, with a white outline around the truth."""
    side = (TILE, TILE)
    small = ImageOps.contain(Image.fromarray(image), side)
    coloured, outlined = (np.asarray(Image.fromarray(mask).resize(small.size)) for mask in (found, truth))
    picture = overlay(np.asarray(small), coloured.astype(np.uint8), class_colours(1))
    inner = outlined.copy()
    inner[1:-1, 1:-1] &= outlined[:-2, 1:-1] & outlined[2:, 1:-1] & outlined[1:-1, :-2] & outlined[1:-1, 2:]
    picture[outlined & ~inner] = 255
    return ImageOps.pad(Image.fromarray(picture), side)


def write_sheet(path: Path, tiles: Sequence[Image.Image]) -> None:
    """A contact sheet of pictures of one size."""
    rows = -(-len(tiles) // SHEET_COLUMNS)
    sheet = Image.new("RGB", (SHEET_COLUMNS * TILE, rows * TILE))
    for number, picture in enumerate(tiles):
        sheet.paste(picture, (number % SHEET_COLUMNS * TILE, number // SHEET_COLUMNS * TILE))
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path, quality=80)


def plain_maps(levels: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Unit maps of the five encoder levels alone, which the simple methods read."""
    return encoder_maps({name: level for name, level in levels.items() if name != DESCRIPTORS})


@torch.inference_mode()
def measure(method: str, model: Segmenter, images: Images, task: Task, shots: int, sheet: Path | None = None) -> Figure:
    """Learn from the supports, segment, count.

    Args:
        model: the taught one for gfss: the class may know some of the supports already, the others are added.
        sheet: file for pictures of what was found.
    """
    supports = task.supports[:shots]
    start = time.process_time()
    estimate = refined = None
    if method == "gfss":
        known = len(model.taught[0].examples) if model.taught else 0
        new = supports[known:]
        lesson = model.teach(
            "new class", [images.image(i) for i in new], [images.mask(i, task.label) for i in new], add=known > 0
        )
        estimate, refined, state = lesson.iou, model.fits[0].verdict.refined, model.state

        def scores(name: str) -> torch.Tensor:
            return model.network.scores(images.levels(name), state)[0]
    else:
        size = model.network.size
        examples = [
            (plain_maps(images.levels(i)), torch.from_numpy(square_label(images.mask(i, task.label), size)))
            for i in supports
        ]
        head = fit_rows(examples, 1) if method == "logistic" else prototype_rows(examples, 1)

        def scores(name: str) -> torch.Tensor:
            odds = head.logits(plain_maps(images.levels(name)))[0]
            return torch.cat([torch.zeros_like(odds), odds])

    seconds = time.process_time() - start
    tiles: list[Image.Image] = []
    with_class, without, own = (
        overlap(images, task, chosen, scores, method == "gfss", kept)
        for chosen, kept in ((task.shown, tiles), (task.free, tiles), (supports, None))
    )
    if sheet is not None:
        write_sheet(sheet, tiles)
    whole = with_class + without
    figures = [100 * c[0] / max(1, c[1]) for c in (with_class, whole, own)]
    return Figure(method, task.name, task.draw, shots, *figures, seconds, estimate, refined)


def run(
    folder: Path, model: Segmenter, shots: Sequence[int], classes: int, draws: int, sheets: Path | None = None
) -> None:
    """All figures of one data set; those that are there already stay.

    Args:
        sheets: folder for a sheet of the first class and draw.
    """
    path = MEASURED / f"{folder.name}.json"
    there = json.loads(path.read_text()) if path.exists() else []
    done = {(f["method"], f["name"], f["draw"], f["shots"]) for f in there}
    images = Images(folder, model)
    for number, task in enumerate(tasks(images, read_class_names(folder), classes, draws)):
        taught = Segmenter(model.network)
        for count in sorted(shots):
            for method in METHODS:
                if count > len(task.supports) or (method, task.name, task.draw, count) in done:
                    continue
                pictured = (method, number, count) == ("gfss", 0, SHEET_SHOTS)
                sheet = sheets / f"{folder.name}.jpg" if sheets is not None and pictured else None
                there.append(asdict(measure(method, taught, images, task, count, sheet)))
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(there, indent=0))
        print(folder.name, task.name, task.draw, flush=True)


def read_figures() -> dict[str, list[dict]]:
    """All figures, by data set."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(MEASURED.glob("*.json"))}


def mean(figures: Sequence[dict], key: str, method: str, shots: int) -> float:
    """Mean of a figure over the classes and draws of a set, NaN where there is none."""
    values = [f[key] for f in figures if f["method"] == method and f["shots"] == shots]
    return float(np.mean(values)) if values else float("nan")


def table(shots: Sequence[int]) -> str:
    """Mean IoU with class-free images of every set (mean of its classes and draws), and the mean of the sets."""
    lines = ["| set | " + " | ".join(f"{m} at {s}" for s in shots for m in METHODS) + " |"]
    lines.append("|---" * (1 + len(shots) * len(METHODS)) + "|")
    sums: dict[str, list[list[float]]] = {"tuning sets": [], "confirming sets": [], "all": []}
    for name, figures in read_figures().items():
        cells = [mean(figures, "iou", m, s) for s in shots for m in METHODS]
        mark = " (tuning)" if name in TUNING else ""
        lines.append(f"| {name}{mark} | " + " | ".join(f"{c:.1f}" for c in cells) + " |")
        sums["tuning sets" if mark else "confirming sets"].append(cells)
        sums["all"].append(cells)
    for name, rows in sums.items():
        if rows:
            lines.append(f"| **{name}** | " + " | ".join(f"{c:.1f}" for c in np.nanmean(rows, axis=0)) + " |")
    return "\n".join(lines)


def claims(shots: Sequence[int]) -> str:
    """What the figures say of the supports, of single sets and of the estimates."""
    sets = read_figures()
    lines: list[str] = []
    for count in shots:
        own = np.nanmean([mean(f, "support_iou", "gfss", count) for f in sets.values()])
        behind = {n: mean(f, "iou", "gfss", count) - mean(f, "iou", "logistic", count) for n, f in sets.items()}
        worst = [f"{n} {v:+.1f}" for n, v in sorted(behind.items(), key=lambda item: item[1]) if v < 0]
        lines.append(f"{count} shots: IoU on the supports {own:.1f}; behind logistic: {', '.join(worst) or 'none'}")
    for least in (1, 2):
        lessons = [f for figures in sets.values() for f in figures if f["estimate"] is not None and f["shots"] >= least]
        low, high = ([f for f in lessons if f["iou"] < 25], [f for f in lessons if f["iou"] > 50])
        said = [sum(f["estimate"] < LEARNED_ROUGHLY for f in group) for group in (low, high)]
        lines.append(
            f"'not learned', lessons of {least} and more images: {said[0]} of {len(low)} below IoU 25, "
            f"{said[1]} of {len(high)} above 50"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, help="folder of data sets")
    parser.add_argument("sets", nargs="*", help="names of data sets (default: all)")
    parser.add_argument("--model", default="voc20-lite0")
    parser.add_argument("--shots", default="1,3,5,10")
    parser.add_argument("--classes", type=int, default=2, help="classes of each set, those that most images show")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="print the tables and stop")
    parser.add_argument("--sheet", type=Path, help="folder for one contact sheet of every set")
    options = parser.parse_args()
    shots = [int(value) for value in options.shots.split(",")]
    if not options.table:
        torch.set_num_threads(options.threads)
        model = gfss.load(options.model)
        folders = [options.root / name for name in options.sets] or sorted(
            path for path in options.root.iterdir() if (path / "classes.txt").exists()
        )
        for folder in folders:
            run(folder, model, shots, options.classes, options.draws, options.sheet)
    print(table(shots))
    print(claims(shots))


if __name__ == "__main__":
    main()
