"""PCN on a thousand paired tasks: our way against the plain one, from image files to figures.

    python benchmarks/end_to_end.py --root PASCAL --runs runs --fold 0 --json end_to_end.json

The plain way is what most code of this field does: every image of every task goes through the encoder as it is built,
the novel classifier is fitted by convolutions, queries are scored one by one, all classes upsampled to image size and
the best taken; operations use all threads. Ours computes once what is the same in all tasks (the features of every val
image, with the encoder in its fast form, and what the novel classifier says of them where its fitting begins) and works
on that, one task per thread. Both are timed on the same few tasks, some at a time in turn (ours, being short, twice
before and twice after the plain way; the mean counts), and multiplied out to ``--tasks``; what ours does once is
measured on some images, or all, and multiplied out to all of them. The label maps of both ways are compared.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parent))  # benchmarks are scripts, not a package

from episode import NoBank

from gfss.common.devices import parallel_map
from gfss.common.files import write_json
from gfss.data.episodes import Task
from gfss.evaluation.metrics import image_counts
from gfss.evaluation.protocols import draw_tasks, evaluate_methods
from gfss.evaluation.records import peak_memory_mb
from gfss.experiments.experiment import Experiment
from gfss.experiments.recipes import read_recipe
from gfss.features.bank import build_bank
from gfss.features.episodes import CHUNK, EpisodeSampler, FeatureStore
from gfss.methods.base import Method
from gfss.methods.pcn import Calibrated, NormalisedScoreFusion, NovelFitter
from gfss.models.ops.upsample import class_map

TURN = 16  # tasks of one way before those of the other


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


def plain_way(method: Method, source: EpisodeSampler, drawn: Task) -> Tensor:
    """Examine one task image by image; its label maps."""
    maps: list[Tensor] = []
    table = source.fold.label_table(drawn.novel)
    with torch.no_grad():
        method.learn(source.support(drawn, source.fold))
        for image in drawn.queries:
            scores = method.scores(source.store.features([image]))
            truth = source.store.labels([image], table)
            full = F.interpolate(scores, size=truth.shape[-2:], mode="bilinear", align_corners=True)
            maps.append(full.argmax(dim=1).to(torch.uint8))
            image_counts(maps[-1], truth, scores.shape[1])
    return torch.cat(maps)


def our_maps(method: Method, source: EpisodeSampler, drawn: Task) -> Tensor:
    """Label maps of a task on kept features, for the comparison."""
    size = source.store.size
    with torch.no_grad():
        method.learn(source.support(drawn, source.fold))
        return class_map(method.scores(source.store.features(drawn.queries)), (size, size))


def seconds_once(experiment: Experiment, fitter: NovelFitter, images: int | None) -> dict[str, float]:
    """Time per image of what ours does once: encoder (written to a bank), pyramid head, novel classifier's start."""
    data = experiment.val_set
    some = replace(data, **{key: getattr(data, key)[:images] for key in ("ids", "images", "masks")})
    images = len(some)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        bank = build_bank(
            experiment.model.encoder, some, experiment.recipe.size, experiment.recipe.levels, root=Path(folder)
        )
        built = time.perf_counter()
        store = FeatureStore(experiment.model, bank, cache=True)
        parts = [range(first, min(first + CHUNK, images)) for first in range(0, images, CHUNK)]
        for _ in parallel_map(
            lambda part: fitter.initial_response(store.features(part)), parts
        ):  # in threads, as tasks ask for it
            pass
        return {"bank": (built - start) / images, "head": (time.perf_counter() - built) / images}


def measure(experiment: Experiment, sample: int, tasks: int, images: int | None) -> dict[str, Any]:
    """Both ways on the same tasks."""
    method = experiment.method("pcn-support", 1)
    assert isinstance(method, Calibrated)
    assert isinstance(method.inner, NormalisedScoreFusion)
    fitter = method.inner.fitter
    plain = Calibrated(
        NormalisedScoreFusion(NovelFitter(experiment.recipe.novel, form="plain")),
        method.calibrator,
        "pcn-support",
        True,
    )
    kept, bank = experiment.val_source, experiment.bank("val")
    about = (bank.folder, bank.size, bank.channels, bank.count)
    none = NoBank(*about, experiment.model.encoder.eval(), kept.dataset, torch.contiguous_format)
    anew = EpisodeSampler(FeatureStore(experiment.model, none), kept.dataset, kept.fold)
    once = seconds_once(experiment, fitter, images)
    drawn = draw_tasks(kept, "paired", 1, sample, seed=0)
    equal: list[float] = []
    seconds = {"plain": 0.0, "ours": 0.0}
    for begin in range(0, sample, TURN):
        turn = drawn[begin : begin + TURN]
        for task in turn:
            shown = [i for group in task.supports for i in group] + list(task.queries)
            fitter.initial_response(kept.store.features(shown))  # counted in "once"
        marks = [time.perf_counter()]
        evaluate_methods([method], kept, [*turn, *turn])
        marks.append(time.perf_counter())
        expected = [plain_way(plain, anew, task) for task in turn]
        marks.append(time.perf_counter())
        evaluate_methods([method], kept, [*turn, *turn])
        before, between, after = np.diff([*marks, time.perf_counter()]).tolist()
        seconds["ours"] += (before + after) / 4 / sample
        seconds["plain"] += between / sample
        maps = [our_maps(method, kept, task) for task in turn]
        equal += [float((left == right).double().mean()) for left, right in zip(maps, expected, strict=True)]
    total = {
        "plain": tasks * seconds["plain"],
        "ours": tasks * seconds["ours"] + len(kept.dataset) * sum(once.values()),
    }
    return {
        "sample": sample,
        "tasks": tasks,
        "seconds_per_task": seconds,
        "seconds_per_image_once": once,
        "seconds_in_all": total,
        "ratio": total["plain"] / total["ours"],
        "ratio_of_tasks": seconds["plain"] / seconds["ours"],
        "equal_pixels": sum(equal) / sample,
        "peak_memory_mb": peak_memory_mb(),
    }


def main() -> None:
    """Measure, print, write JSON if asked."""
    parser = experiment_parser(__doc__)
    parser.add_argument("--sample", type=int, default=32, help="tasks that are timed")
    parser.add_argument("--tasks", type=int, default=1000, help="tasks that the times are multiplied out to")
    parser.add_argument("--images", type=int, help="images on which the one-time work is timed; all if left out")
    options = parser.parse_args()
    experiment = opened(options)
    figures = measure(experiment, options.sample, options.tasks, options.images)
    about = {"recipe": options.recipe, "fold": options.fold, "threads": options.threads}
    about |= {"torch": str(torch.__version__), "load": os.getloadavg()[0]}
    once, each = figures["seconds_per_image_once"], figures["seconds_per_task"]
    print(f"{options.recipe} fold {options.fold}, {options.threads} threads, load {about['load']:.1f}")
    print(f"plain: {each['plain']:.3f} s per task")
    print(f"ours:  {each['ours']:.3f} s per task, and once {1000 * once['bank']:.1f} ms (encoder, writing the bank)")
    print(f"       and {1000 * once['head']:.1f} ms (head and start) for each of {len(experiment.val_set):,} images")
    print(
        f"{options.tasks:,} tasks: {figures['ratio']:.1f} x as fast ({figures['ratio_of_tasks']:.1f} x per task alone)"
    )
    print(f"{100 * figures['equal_pixels']:.3f} % of the pixels get the same label")
    if figures["peak_memory_mb"] is not None:
        print(f"peak memory of this process, both ways together: {figures['peak_memory_mb']:.0f} MB")
    if options.json:
        write_json(options.json, {**about, **figures})


if __name__ == "__main__":
    main()
