"""How cost grows with the number of taught classes, of support images and of images to segment.

    python benchmarks/scale.py --json benchmarks/measured/scale.json --figure docs/images/scale.svg

Processor time of one thread, so that other load on the machine counts little. Images are generated scenes.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gfss
from gfss.common.files import read_json, write_json
from gfss.data.datasets.scenes import labelled_scene

Curve = dict[str, float]
"""Seconds by number."""
SHAPES = ("ring", "key", "fish", "heart", "star")
SUPPORTS = (1, 2, 5, 10, 20, 50)
CLASSES = (1, 10, 50, 100, 150)
IMAGES = (100, 1000, 10_000)
DAY = 86_400


def seconds(run: Callable[[], object]) -> float:
    """Processor time of a call."""
    start = time.process_time()
    run()
    return time.process_time() - start


def scenes(count: int, shape: str = "ring") -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Labelled images of a shape."""
    pairs = [labelled_scene(shape, seed) for seed in range(count)]
    return [image for image, _ in pairs], [mask for _, mask in pairs]


def teaching(model: str, supports: Sequence[int]) -> Curve:
    """Teaching one class, by the number of its images."""
    images, masks = scenes(max(supports))
    found: Curve = {}
    for count in supports:
        fresh = gfss.load(model)
        found[str(count)] = seconds(lambda n=count, m=fresh: m.teach("hoop", images[:n], masks[:n]))
        print(f"{count} supports: {found[str(count)]:.2f} s", flush=True)
    return found


def growing(model: str, classes: Sequence[int], looks: int) -> tuple[Curve, Curve, dict[str, int]]:
    """Teaching one class after another from one image: time of all so far, and of an image by the model then.

    Returns also the peak memory in bytes by then.
    """
    import resource

    grown = gfss.load(model)
    taught, segmented, memory = Curve(), Curve(), dict[str, int]()
    images, _ = scenes(looks)
    spent = 0.0
    for number in range(1, max(classes) + 1):
        image, mask = labelled_scene(SHAPES[number % len(SHAPES)], number)
        spent += seconds(lambda n=number, i=image, m=mask: grown.teach(f"class {n}", i, m))
        if number in classes:
            taught[str(number)] = spent
            segmented[str(number)] = median([seconds(lambda i=i: grown.segment(i)) for i in images])
            print(f"{number} classes: {spent:.2f} s, {segmented[str(number)]:.4f} s an image", flush=True)
            memory[str(number)] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return taught, segmented, memory


def segmenting(model: str, counts: Sequence[int]) -> Curve:
    """Segmenting so many images."""
    loaded = gfss.load(model)
    images, _ = scenes(50)
    loaded.segment(images[0])
    return {
        str(n): seconds(lambda n=n: consume(loaded.segment(i).mask for i in islice(cycle(images), n))) for n in counts
    }


def consume(items: Iterator[object]) -> None:
    """Go through all, keep none."""
    for _ in items:
        pass


def median(values: Sequence[float]) -> float:
    return float(np.median(values))


def exponent(curve: Curve) -> float:
    """Of a power that goes through the last two points of a curve: 1 is linear, 2 quadratic."""
    (a, first), (b, last) = [(float(number), value) for number, value in curve.items()][-2:]
    return float(np.log(last / first) / np.log(b / a))


def draw(record: dict[str, Any], path: Path) -> None:
    """The curves, both axes logarithmic, beside a line of linear growth."""
    from matplotlib.figure import Figure

    titles = {
        "teach_supports": "teaching a class: support images",
        "teach_classes": "teaching classes one after another",
        "segment_images": "segmenting: images",
        "segment_classes": "segmenting an image: taught classes",
    }
    figure = Figure(figsize=(9, 6), layout="constrained")
    for axes, (key, title) in zip(figure.subplots(2, 2).flat, titles.items(), strict=True):
        numbers, values = [float(n) for n in record[key]], list(record[key].values())
        axes.loglog(numbers, values, "o-", color="#00897b", label="measured")
        axes.loglog(numbers, [values[0] * n / numbers[0] for n in numbers], ":", color="0.6", label="linear")
        axes.set(title=f"{title}\nlast exponent {exponent(record[key]):.2f}", ylabel="seconds of one thread")
        axes.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})


def table(record: dict[str, Any]) -> str:
    """What was measured, and what large numbers would take, as Markdown."""
    image = record["image_seconds"]
    names = {
        "teach_supports": "teach a class, by support images",
        "teach_classes": "teach classes from one image each, all together",
        "segment_classes": "segment an image, by taught classes",
        "segment_images": "segment images",
    }
    lines = ["| cost | seconds of one thread | exponent at the end |", "|---|---|---|"]
    for key, name in names.items():
        points = ", ".join(f"{int(n):,}: {value:.3g}" for n, value in record[key].items())
        lines.append(f"| {name} | {points} | {exponent(record[key]):.2f} |")
    classes, last = list(record["segment_classes"].items())[-1]
    lines += [
        "",
        f"By arithmetic, from {image:.3f} s for an image with {record['model']}: a million images take "
        f"{1e6 * image / DAY:.1f} days of one thread, {24e6 * image / DAY / 32:.1f} hours of 32 workers. "
        "A thousand taught classes "
        f"would take at most {1000 / float(classes) * last:.1f} s an image with {record['small_model']} "
        "(a mask names at most 254).",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="voc20-lite0", help="for the time of an image")
    parser.add_argument("--small-model", default="scenes-tiny", help="for all curves")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--small", action="store_true", help="a run of seconds, whose figures mean nothing")
    parser.add_argument("--read", action="store_true", help="draw from the record, measure nothing")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.read:
        record = read_json(given.json)
    else:
        supports, classes, images = ((1, 2), (1, 2), (2, 4)) if given.small else (SUPPORTS, CLASSES, IMAGES)
        record = {"model": given.model, "small_model": given.small_model, "torch": torch.__version__}
        own, (image, *_) = gfss.load(given.model), scenes(1)[0]
        record["image_seconds"] = median([seconds(lambda: own.segment(image)) for _ in range(12)][2:])
        record["teach_supports"] = teaching(given.small_model, supports)
        taught, segmented, memory = growing(given.small_model, classes, 2 if given.small else 10)
        record |= {"teach_classes": taught, "segment_classes": segmented, "peak_memory": memory}
        record["segment_images"] = segmenting(given.small_model, images)
        record["load"] = os.getloadavg()[0]
        if given.json:
            write_json(given.json, record)
    if given.figure:
        draw(record, given.figure)
    print(table(record))


if __name__ == "__main__":
    main()
