"""Region proposals of the page: how good a box or a click is, and how much work is left.

    python benchmarks/region_proposals.py pascal /data/voc2012_416 --list val
    python benchmarks/region_proposals.py ade /data/ADEChallengeData2016 --list validation
    python benchmarks/region_proposals.py --table

An object is a connected part of a class. As many small, medium and large ones are drawn (below 3, 12 and 60 % of
the image), at most one per image, their images at most 512 pixels long. Printed are the IoU of the box alone, of the
proposal for the box, of the proposal for a click in the middle of the object, and processor time of a proposal. Then a
simulated user corrects up to IoU 0.85: always the largest error (by the largest square in it), by a click in its
middle, or by a dab of the brush as large as that. Pixels without a label do not count. Settings were chosen on
``--list train`` of PASCAL.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw

from gfss.common.files import read_json, write_json
from gfss.server.model import Model
from gfss.server.region import Regions

MEASURED = Path(__file__).parent / "measured" / "region_proposals.json"
SIZES = {"small": (0.005, 0.03), "medium": (0.03, 0.12), "large": (0.12, 0.6)}  # share of the image
LONGEST = 512
GOAL = 0.85  # IoU that is enough
MOST_CLICKS, MOST_DABS = 6, 30  # corrections after which the user gives up
UNLABELLED = {"pascal": 255, "ade": 0}

Propose = Callable[..., np.ndarray]


@dataclass(frozen=True)
class Sample:
    """An object of an image.

    Attributes:
        name: of the image.
        size: small, medium or large.
        image: (height, width, 3) uint8.
        mask: (height, width) bool.
        counted: pixels that count, (height, width) bool.
    """

    name: str
    size: str
    image: np.ndarray
    mask: np.ndarray
    counted: np.ndarray


@dataclass(frozen=True)
class Figures:
    """What was measured on one object; corrections are those left to IoU 0.85. None of what was not asked for."""

    size: str
    box_alone: float
    box: float
    box_ms: float
    click: float | None = None
    click_ms: float | None = None
    clicks_after_box: int | None = None
    reached_by_clicks: int | None = None
    dabs_after_box: int | None = None
    reached_by_dabs: int | None = None
    dabs_without_box: int | None = None
    reached_without_box: int | None = None


def files_of(kind: str, root: Path, names: str) -> list[tuple[Path, Path]]:
    """Images and masks of a list."""
    if kind == "ade":
        images = sorted((root / "images" / names).glob("*.jpg"))
        return [(path, root / "annotations" / names / f"{path.stem}.png") for path in images]
    lines = (root / f"{names}.txt").read_text(encoding="utf-8").split()
    images_by_name = {path.stem: path for path in (root / "images").iterdir()}
    return [(images_by_name[Path(line).stem], root / "masks" / f"{Path(line).stem}.png") for line in lines]


def parts_of(mask: np.ndarray) -> Iterator[np.ndarray]:
    """Connected parts of a mask, in no order."""
    left = Image.fromarray(mask.astype(np.uint8))
    while len(places := np.argwhere(np.asarray(left) == 1)):
        ImageDraw.floodfill(left, (int(places[0][1]), int(places[0][0])), 2)
        yield np.asarray(left) == 2
        left = left.point([0, 1, 0] + [0] * 253)


def draw_objects(kind: str, root: Path, names: str, count: int, seed: int) -> Iterator[Sample]:
    """As many objects of every size, at most one per image."""
    rng = np.random.default_rng(seed)
    files = files_of(kind, root, names)
    wanted = {size: count // len(SIZES) for size in SIZES}
    for index in rng.permutation(len(files)):
        image_path, mask_path = files[index]
        labels = Image.open(mask_path)
        scale = min(1.0, LONGEST / max(labels.size))
        size = (round(labels.width * scale), round(labels.height * scale))
        mask = np.asarray(labels.resize(size, Image.Resampling.NEAREST))
        values = [value for value in np.unique(mask) if value not in (0, 255)]
        parts = [part for value in values for part in parts_of(mask == value)]
        for i in rng.permutation(len(parts)):
            share = parts[i].mean()
            found = next((name for name, (low, high) in SIZES.items() if low <= share < high), None)
            if found and wanted[found]:
                wanted[found] -= 1
                image = np.asarray(Image.open(image_path).convert("RGB").resize(size, Image.Resampling.LANCZOS))
                yield Sample(image_path.stem, found, image, parts[i], (mask != UNLABELLED[kind]) | parts[i])
                break
        if not any(wanted.values()):
            return


def box_of(mask: np.ndarray) -> tuple[int, int, int, int]:
    """Left, top, right, bottom."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def iou(found: np.ndarray, sample: Sample) -> float:
    """Overlap with the object, in [0, 1]."""
    together = (found & sample.mask).sum()
    return float(together / (((found | sample.mask) & sample.counted).sum()))


def middle(mask: np.ndarray) -> tuple[tuple[int, int], int]:
    """Column and row of the middle of the largest square in a mask, and half its side; 0 of an empty mask."""
    sums = np.pad(mask, ((1, 0), (1, 0))).cumsum(axis=0).cumsum(axis=1)
    low, high, found = 0, (min(mask.shape) + 1) // 2, np.argwhere(mask)
    if not len(found):
        return (0, 0), 0
    while high - low > 1:  # a square of half side low fits, one of high does not
        half = (low + high) // 2
        side = 2 * half + 1
        inside = sums[side:, side:] - sums[:-side, side:] - sums[side:, :-side] + sums[:-side, :-side]
        places = np.argwhere(inside == side * side)
        low, high, found = (half, high, places + half) if len(places) else (low, half, found)
    row, column = found[len(found) // 2]
    return (int(column), int(row)), low + 1


def dab(mask: np.ndarray, point: tuple[int, int], radius: int, value: bool) -> np.ndarray:
    """A mask after a dab of the brush."""
    rows, columns = np.ogrid[: mask.shape[0], : mask.shape[1]]
    round_dab = (rows - point[1]) ** 2 + (columns - point[0]) ** 2 <= radius**2
    return np.where(round_dab, value, mask)


def correct(sample: Sample, mask: np.ndarray, propose: Propose | None) -> tuple[int, bool]:
    """How many corrections a simulated user makes, and whether the goal is reached; by brush without ``propose``."""
    most = MOST_CLICKS if propose else MOST_DABS
    for done in range(most):
        if iou(mask, sample) >= GOAL:
            return done, True
        (missed, missed_depth), (extra, extra_depth) = (
            middle(sample.mask & ~mask),
            middle(mask & ~sample.mask & sample.counted),
        )
        away = extra_depth > missed_depth
        point, depth = (extra, extra_depth) if away else (missed, missed_depth)
        if propose is None:
            mask = dab(mask, point, depth, not away)
        else:
            change = propose(sample, point=point, painted=mask, away=away)
            mask = mask & ~change if away else mask | change
    return most, iou(mask, sample) >= GOAL


def measure(sample: Sample, regions: Regions, clicked: bool, corrected: bool) -> Figures:
    """All figures of one object."""

    def propose(
        sample: Sample,
        point: tuple[int, int] | None = None,
        box: tuple[int, int, int, int] | None = None,
        painted: np.ndarray | None = None,
        away: bool = False,
    ) -> np.ndarray:
        return regions.propose(sample.name, lambda: sample.image, point, box, painted, away)

    left, top, right, bottom = box = box_of(sample.mask)
    whole = np.zeros_like(sample.mask)
    whole[top:bottom, left:right] = True
    begin = time.process_time()
    boxed = propose(sample, box=box)
    box_ms = 1000 * (time.process_time() - begin)
    figures = Figures(sample.size, iou(whole, sample), iou(boxed, sample), box_ms)
    if clicked:
        begin = time.process_time()
        found = propose(sample, point=middle(sample.mask)[0])
        figures = replace(figures, click_ms=1000 * (time.process_time() - begin), click=iou(found, sample))
    if corrected:
        (clicks, by_clicks), (dabs, by_dabs), (without, reached) = (
            correct(sample, start, by)
            for start, by in ((boxed, propose), (boxed, None), (np.zeros_like(sample.mask), None))
        )
        figures = replace(
            figures,
            clicks_after_box=clicks,
            reached_by_clicks=by_clicks,
            dabs_after_box=dabs,
            reached_by_dabs=by_dabs,
            dabs_without_box=without,
            reached_without_box=reached,
        )
    return figures


def summary(figures: list[Figures]) -> dict[str, dict[str, float]]:
    """Means (times: medians) over all objects and those of each size."""
    rows: dict[str, dict[str, float]] = {}
    for size in ("all", *SIZES):
        chosen = [asdict(one) for one in figures if size in ("all", one.size)]
        row: dict[str, float] = {"objects": len(chosen)}
        for key in Figures.__annotations__:
            values = [float(one[key]) for one in chosen if key != "size" and one[key] is not None]
            if values:
                row[key] = round((statistics.median if key.endswith("_ms") else statistics.fmean)(values), 3)
        rows[size] = row
    return rows


def keep(name: str | None, rows: dict[str, dict[str, float]]) -> None:
    """Put figures into the record, as far as they are there."""
    if name is not None:
        record = read_json(MEASURED) if MEASURED.exists() else {}
        write_json(MEASURED, {**record, name: rows})


def table() -> str:
    """The record as a Markdown table."""
    columns = [key for key in Figures.__annotations__ if key != "size"]
    lines = ["| | objects | " + " | ".join(columns) + " |", "|---" * (len(columns) + 2) + "|"]
    for source, rows in read_json(MEASURED).items():
        for size, row in rows.items():
            digits = {key: 0 if key.endswith("_ms") else 2 for key in columns}
            cells = [f"{row[key]:.{digits[key]}f}" if key in row else "" for key in columns]
            lines.append(f"| {source}, {size} | {row['objects']:.0f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, add to the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", nargs="?", choices=tuple(UNLABELLED))
    parser.add_argument("root", nargs="?", type=Path)
    parser.add_argument("--list", default="val")
    parser.add_argument("--objects", type=int, default=102)
    parser.add_argument("--clicked", type=int, default=102, help="click on the first so many of them")
    parser.add_argument("--corrected", type=int, default=24, help="simulate a user on the first so many of them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="voc20-lite0")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--record", metavar="NAME", help=f"keep the figures under this name in {MEASURED.name}")
    parser.add_argument("--table", action="store_true", help="print the record as a table")
    options = parser.parse_args()
    if options.table:
        print(table())
        return
    if options.root is None:
        parser.error("name a data set, pascal or ade, and its folder")
    torch.set_num_threads(options.threads)
    regions = Regions(Model(options.model, Path("no-such-folder/model"), Path("no-such-folder/history")))
    figures: list[Figures] = []
    for sample in draw_objects(options.kind, options.root, options.list, options.objects, options.seed):
        figures.append(measure(sample, regions, len(figures) < options.clicked, len(figures) < options.corrected))
        if len(figures) % 6 == 0:
            print(len(figures), summary(figures)["all"], flush=True)
            keep(options.record, summary(figures))
    for size, row in summary(figures).items():
        print(f"{size:>8}", row)
    keep(options.record, summary(figures))


if __name__ == "__main__":
    main()
