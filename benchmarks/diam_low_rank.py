"""DIaM's descent along leading directions against the descent in full: time, label maps and figures.

    python benchmarks/diam_low_rank.py --root PASCAL --runs trained --json diam_low_rank.json

In full, rows and biases move along all directions of the features and every step reads every support position. Both
ways score some images of the same tasks, one after the other, and are compared pixel by pixel and in their H.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))  # benchmarks are scripts, not a package

from end_to_end import experiment_parser, opened

from gfss.common.files import write_json
from gfss.data.catalog import VOID
from gfss.evaluation.metrics import METRICS, image_counts
from gfss.evaluation.protocols import CHUNK, ProtocolName, draw_tasks
from gfss.experiments.experiment import Experiment
from gfss.methods.diam import Diam
from gfss.methods.diam_low_rank import LowRankForm
from gfss.methods.diam_options import CHOSEN
from gfss.models.ops.upsample import class_map

WAYS = ("full", "leading")
WHOLE = LowRankForm(support_rank=sys.maxsize, query_rank=sys.maxsize, dense=sys.maxsize)  # nothing is left out


@torch.no_grad()
def measure(experiment: Experiment, protocol: ProtocolName, shots: int, tasks: int, each: int) -> dict[str, Any]:
    """Both ways on the same tasks, on ``each`` query images of every task (all if it has fewer)."""
    source = experiment.val_source
    fold, names = source.fold, source.dataset.classes
    methods = {"full": Diam(CHOSEN, form=WHOLE), "leading": Diam(CHOSEN)}
    classes = [names[c - 1] for c in fold.base], [names[c - 1] for c in fold.novel]
    metrics = {way: {key: metric(*classes) for key, metric in METRICS.items()} for way in WAYS}
    seconds = dict.fromkeys(WAYS, 0.0)
    equal = pixels = images = 0

    def answer(way: str, queries: list[int], size: tuple[int, int]) -> Tensor:
        features = source.store.features(queries)
        start = time.perf_counter()
        scores = methods[way].scores(features)
        seconds[way] += time.perf_counter() - start
        return class_map(scores, size)

    for drawn in draw_tasks(source, protocol, shots, tasks, seed=0):
        table = fold.label_table(drawn.novel)
        queries = list(drawn.queries)[:: max(1, len(drawn.queries) // each)][:each]
        chunks = [queries[i : i + CHUNK] for i in range(0, len(queries), CHUNK)]
        truths = [source.store.labels(chunk, table) for chunk in chunks]
        sizes = [(truth.shape[-2], truth.shape[-1]) for truth in truths]
        support = source.support(drawn, fold)
        maps: dict[str, list[Tensor]] = {}
        for way, method in methods.items():
            method.learn(support)
            maps[way] = [answer(way, chunk, size) for chunk, size in zip(chunks, sizes, strict=True)]
        for i, truth in enumerate(truths):
            labelled = truth != VOID
            equal += int((maps["full"][i] == maps["leading"][i])[labelled].sum())
            pixels += int(labelled.sum())
        images += len(queries)
        for way in WAYS:
            outputs = 1 + len(fold.base) + len(drawn.novel)
            counts = [image_counts(found, truth, outputs) for found, truth in zip(maps[way], truths, strict=True)]
            for metric in metrics[way].values():
                metric.update(torch.cat(counts), [names[c - 1] for c in drawn.novel])
    figures = {way: {key: metric.summary().harmonic for key, metric in metrics[way].items()} for way in WAYS}
    return {
        "protocol": protocol,
        "shots": shots,
        "tasks": tasks,
        "images": images,
        "milliseconds_per_image": {way: 1e3 * seconds[way] / images for way in WAYS},
        "ratio": seconds["full"] / seconds["leading"],
        "equal_pixels": equal / pixels,
        "harmonic": figures,
    }


def main() -> None:
    """Compare both protocols at 1 and 5 shots, print a line each, write JSON if asked."""
    parser = experiment_parser(__doc__)
    parser.set_defaults(threads=1)
    parser.add_argument("--tasks", type=int, default=6)
    parser.add_argument("--each", type=int, default=10, help="images of a task")
    options = parser.parse_args()
    experiment = opened(options)
    rows: list[dict[str, Any]] = []
    for protocol, shots in (("paired", 1), ("paired", 5), ("joint", 1), ("joint", 5)):
        row = measure(experiment, protocol, shots, options.tasks, options.each)
        rows.append(row)
        times, both = row["milliseconds_per_image"], row["harmonic"]
        print(
            f"{protocol:<6} {shots} shots: {times['full']:.0f} ms per image in full, {times['leading']:.0f} ms "
            f"({row['ratio']:.1f} x), {100 * row['equal_pixels']:.2f} % of the pixels equal, H "
            + " and ".join(f"{both['full'][key]:.2f} / {both['leading'][key]:.2f} {key}" for key in METRICS)
        )
    if options.json:
        write_json(options.json, {"fold": options.fold, "rows": rows})


if __name__ == "__main__":
    main()
