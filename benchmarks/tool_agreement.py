"""Do the commands give the figures of the evaluation harness? All novel classes of a fold, the whole val split.

    python benchmarks/tool_agreement.py --root PASCAL --runs runs --fold 0 --json agreement.json

The support images of one draw of the joint protocol are taught one class after another with ``gfss teach``, all other
val images are segmented with ``gfss segment``, and the masks that it wrote are counted. The harness evaluates
``pcn-support`` on the same draw.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from gfss.cli import main as gfss
from gfss.common.files import write_json
from gfss.data.episodes import Task, joint_task
from gfss.data.images import read_mask
from gfss.data.transforms import square_label
from gfss.evaluation.metrics import METRICS, image_counts
from gfss.evaluation.protocols import evaluate_methods
from gfss.experiments.experiment import Experiment
from gfss.experiments.recipes import read_recipe


def through_the_commands(experiment: Experiment, task: Task, shots: int, folder: Path) -> dict[str, dict[str, Any]]:
    """Teach and segment with the commands; the figures of the masks on disk."""
    data, fold, size = experiment.val_set, experiment.classes, experiment.recipe.size
    model, masks = folder / "model", folder / "masks"
    start: Path | str = experiment.method_artifact("pcn-support", shots).folder(experiment.runs)
    for class_id, supports in zip(task.novel, task.supports, strict=True):
        shown = folder / data.classes[class_id - 1]
        for part in ("images", "masks"):
            (shown / part).mkdir(parents=True)
        for support in supports:
            image, mask = data.images[support], data.mask(support)
            (shown / "images" / image.name).symlink_to(image.resolve())
            binary = np.where(mask == 255, 255, np.where(mask == class_id, 1, 0)).astype(np.uint8)
            Image.fromarray(binary).save(shown / "masks" / f"{image.stem}.png")
        places = ["--images", str(shown / "images"), "--masks", str(shown / "masks"), "-o", str(model)]
        if gfss(["teach", str(start), "--name", shown.name, *places]):
            raise SystemExit("gfss teach failed")
        start = model
    images = [str(data.images[i]) for i in task.queries]
    if gfss(["segment", str(model), *images, "-o", str(masks), "--no-overlay"]):
        raise SystemExit("gfss segment failed")

    table = fold.label_table(task.novel)
    novel = [data.classes[c - 1] for c in task.novel]
    metrics = {key: metric([data.classes[c - 1] for c in fold.base], novel) for key, metric in METRICS.items()}
    counts: list[torch.Tensor] = []
    for i in task.queries:
        predicted = square_label(read_mask(masks / f"{data.ids[i]}.png"), size)
        predicted = np.where(predicted == 255, 0, predicted).astype(np.uint8)  # padding, void in the truth
        truth = table[square_label(data.mask(i), size)]
        maps = [torch.from_numpy(part)[None] for part in (predicted, truth)]
        counts.append(image_counts(maps[0], maps[1], 1 + len(fold.base) + len(novel)))
    for metric in metrics.values():
        metric.update(torch.cat(counts), novel)
    return {key: metric.summary().model_dump() for key, metric in metrics.items()}


def experiment_parser(about: str | None) -> argparse.ArgumentParser:
    """A parser that knows how to find an experiment; for :func:`opened`."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="frozen/pascal-lite0")
    parser.add_argument("--root", type=Path)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--fold", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the figures here")
    return parser


def opened(options: argparse.Namespace) -> Experiment:
    """The experiment that was asked for, on so many threads."""
    torch.set_num_threads(options.threads)
    recipe = read_recipe(options.recipe).only(root=options.root)
    return Experiment(recipe, options.fold, options.runs)


def main() -> None:
    """Compare, print both, write JSON if asked."""
    parser = experiment_parser(__doc__)
    parser.add_argument("--shots", type=int, default=1)
    options = parser.parse_args()
    experiment = opened(options)
    task = joint_task(experiment.val_set, experiment.classes, 0, 0, options.shots)
    start = time.perf_counter()
    harness = evaluate_methods([experiment.method("pcn-support", options.shots)], experiment.val_source, [task])[
        "pcn-support"
    ].metrics
    expected = {key: metric.summary().model_dump() for key, metric in harness.items()}
    evaluated = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        found = through_the_commands(experiment, task, options.shots, Path(folder))
    seconds = {"harness": evaluated - start, "commands": time.perf_counter() - evaluated}
    largest = 0.0
    print(f"{len(task.queries)} images, novel: {', '.join(experiment.val_set.classes[c - 1] for c in task.novel)}")
    for key in METRICS:
        ours, theirs = found[key], expected[key]
        differences = [abs((ours["classes"][name] or 0) - (theirs["classes"][name] or 0)) for name in ours["classes"]]
        largest = max(largest, *differences)
        for words, figures in (("commands", ours), ("harness", theirs)):
            parts = "  ".join(f"{part} {figures[part]:.3f}" for part in ("base", "novel", "harmonic"))
            print(f"{key:<12} {words:<9} {parts}")
    print(f"largest difference of a class: {largest:.4f} points")
    if options.json:
        about = {"images": len(task.queries), "shots": options.shots, "fold": options.fold, "largest": largest}
        write_json(options.json, {**about, "commands": found, "harness": expected, "seconds": seconds})


if __name__ == "__main__":
    main()
