"""Examination of an experiment: its methods on the tasks of a protocol, its base model on val; one record each."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any, cast

from gfss.common.devices import device_name
from gfss.common.distributed import Workers, start_workers, started_processes
from gfss.common.errors import GfssError, unknown
from gfss.common.files import read_json
from gfss.data.episodes import Task
from gfss.evaluation.partial_results import kept_results
from gfss.evaluation.protocols import ProtocolName, draw_tasks, examine
from gfss.evaluation.records import MetricName, Record, Run, peak_memory_mb, versions
from gfss.evaluation.results import Result
from gfss.evaluation.summary import summarise
from gfss.experiments.experiment import Experiment
from gfss.features.sampler import EpisodeSampler
from gfss.methods import LABEL_ONLY
from gfss.methods.base import Method
from gfss.methods.pcn import Calibrated


def evaluate_stage(
    experiment: Experiment,
    names: Sequence[str],
    shots: int,
    protocol: ProtocolName = "paired",
    tasks: int = 1000,
    seed: int = 0,
    supports_from: str = "val",
    write: Callable[[Sequence[Record]], None] = lambda records: None,
) -> list[Record]:
    """Examine methods on the same tasks; one record each, the same whether one process works or several.

    Args:
        supports_from: split of the support images, ``val`` or (in the joint protocol) ``train``.
        write: is given the records in the first process; if that fails, the same call finds all results still there.
    """
    if supports_from not in ("val", "train"):
        raise unknown("split", supports_from, ("val", "train"))
    if supports_from == "train" and protocol != "joint":
        raise GfssError("supports come from the train list only in the joint protocol; leave --supports out")
    start = time.perf_counter()
    methods = [experiment.method(name, shots) for name in names]
    blind = all(name in LABEL_ONLY for name in names)
    source = experiment.blind_source() if blind else experiment.val_source
    supports = None
    if supports_from == "train":
        supports = experiment.blind_source("train") if blind else experiment.train_source
    drawn = draw_tasks(source, protocol, shots, tasks, seed, supports)
    prepared = time.perf_counter() - start
    workers = start_workers(experiment.device) if started_processes() > 1 else Workers()
    share = drawn[workers.rank :: workers.world]
    recipe: dict[str, Any] = {"size": experiment.size, **experiment.special}
    if supports_from != "val":
        recipe["supports"] = supports_from
    if experiment.own:
        recipe["files"] = experiment.val_set.fingerprint
    if not blind:
        recipe |= {"base": experiment.model.card.training, "novel": asdict(experiment.novel_options)}
        if experiment.own and experiment.model.card.files:
            recipe["train_files"] = experiment.model.card.files
    data = [experiment.val_set.fingerprint, (supports or source).dataset.fingerprint]
    settings = {method.name: _settings_of(experiment, method, shots) for method in methods}
    about: dict[str, Any] = {"data": data, "fold": fold_name(experiment), "recipe": recipe, "methods": settings}
    about |= {"trained": _checksums(experiment, methods, shots, blind), "share": [workers.rank, workers.world]}
    about |= {"device": experiment.device.type, "protocol": protocol, "shots": shots, "seed": seed}
    kept = kept_results(about)
    parts = workers.gather(examine(methods, source, share, supports, kept))
    results = {name: reduce(add, (part[name] for part in parts)) for name in parts[0]}
    total = time.perf_counter() - start
    records = [
        make_record(
            experiment,
            results[method.name],
            drawn,
            supports or source,
            data=experiment.name,
            fold=fold_name(experiment),
            shots=shots,
            method=method.name,
            protocol=protocol,
            seed=seed,
            recipe=recipe | settings[method.name],
            seconds={"prepare": prepared, "all methods": total},
        )
        for method in methods
    ]
    if workers.rank == 0:
        write(records)
    workers.wait()  # until the first process has written them
    kept.remove()
    return records


def make_record(
    experiment: Experiment,
    result: Result,
    drawn: Sequence[Task],
    source: EpisodeSampler,
    *,
    recipe: dict[str, Any],
    seconds: Mapping[str, float] | None = None,
    **place: Any,
) -> Record:
    """The record of one method.

    Args:
        drawn: the tasks.
        source: of their supports; its fold has the base and novel classes.
        seconds: time of further parts of the run.
        place: the record's data, fold, shots, method, protocol and seed.
    """
    ids, names = source.dataset.ids, source.dataset.classes
    return Record(
        encoder=experiment.encoder,
        tasks=len(drawn),
        recipe=json.loads(json.dumps(recipe)),
        base_classes=[names[c - 1] for c in source.fold.base],
        novel_classes=[names[c - 1] for c in source.fold.novel],
        supports=[[ids[i] for group in task.supports for i in group] for task in drawn],
        figures={cast(MetricName, key): metric.summary() for key, metric in result.metrics.items()},
        run=Run(
            seconds={**result.seconds, **(seconds or {})},
            peak_memory_mb=peak_memory_mb(),
            versions=versions(device_name(experiment.device)),
        ),
        **place,
    )


def base_record(experiment: Experiment, iou: Mapping[str, float | None]) -> Record:
    """The base classifier alone on every val image, as a record with 0 shots (accumulated IoU, novel pixels void).

    Args:
        iou: from :func:`gfss.experiments.stages.train_base_stage`.
    """
    card = experiment.model.card
    unseen = dict.fromkeys(card.novel)
    figures = summarise({name: iou[name] for name in card.classes}, unseen, iou["background"])
    return Record(
        data=experiment.name,
        fold=fold_name(experiment),
        shots=0,
        encoder=experiment.encoder,
        method="base",
        protocol="joint",
        tasks=1,
        seed=int(card.training.get("seed", 0)),
        recipe=json.loads(json.dumps({"size": experiment.size, **experiment.special, "base": card.training})),
        base_classes=list(card.classes),
        novel_classes=list(card.novel),
        supports=[[]],
        figures={"accumulated": figures},
        run=Run(peak_memory_mb=peak_memory_mb(), versions=versions(device_name(experiment.device))),
    )


def record_path(
    out: Path, experiment: Experiment, method: str, shots: int, protocol: str, seed: int, supports: str = "val"
) -> Path:
    """Where a record goes below a folder of results.

    Args:
        supports: split of the support images.
    """
    fold = f"fold{fold_name(experiment)}" + ("-contiguous" if experiment.contiguous else "")
    words = [method, f"{shots}shot", protocol, *([f"{supports}-supports"] if supports != "val" else []), f"seed{seed}"]
    return out / experiment.folder.parent.name / fold / f"{'-'.join(words)}.json"


def _settings_of(experiment: Experiment, method: Method, shots: int) -> dict[str, Any]:
    """How a method was made: its options, or from its checkpoint how it was trained, which has them too."""
    if method.module is None:
        return method.settings
    about = read_json(experiment.method_folder(method.name, shots) / "method.json")
    return {"training": about["training"]}


def _checksums(experiment: Experiment, methods: Sequence[Method], shots: int, blind: bool) -> list[str]:
    """Of the trained parts that results depend on."""
    files = [] if blind else [experiment.base_folder / "base.json"]
    inner = [m.inner for m in methods if isinstance(m, Calibrated)]
    learned = [m for m in [*methods, *inner] if m.module is not None]
    files += [experiment.method_folder(m.name, shots) / "method.json" for m in learned]
    return [read_json(file)["sha256"] for file in files]


def fold_name(experiment: Experiment) -> int | str:
    """The fold in records: its number, or the novel classes' names."""
    if experiment.novel:
        return ",".join(experiment.novel)
    return "all" if experiment.fold is None else experiment.fold
