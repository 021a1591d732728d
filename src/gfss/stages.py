"""The stages of an experiment: base model, trained methods, evaluation. What is done already is not done again."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any, cast

import torch

from gfss.errors import GfssError, unknown
from gfss.evaluation.protocols import ProtocolName, draw_tasks, examine
from gfss.evaluation.records import MetricName, Record, Run, peak_memory_mb, versions
from gfss.evaluation.summary import summarise
from gfss.experiment import Experiment
from gfss.files import read_json
from gfss.methods import BLIND, training_shots
from gfss.methods.base import Method
from gfss.methods.fitted import Calibrated
from gfss.training import base as base_training
from gfss.training import episodic
from gfss.training.base import BaseOptions, base_miou, train_base
from gfss.training.checkpoint import has_checkpoint
from gfss.training.episodic import EpisodicOptions, train_calibrator, train_method
from gfss.training.loop import finish
from gfss.training.parallel import Workers, start_workers, started_processes
from gfss.training.source import HeldOutSources
from gfss.training.trained import save_method

# embedded scenes: a tiny encoder trained from scratch together with the head
SCRATCH = BaseOptions(
    levels=("layer2", "layer3", "layer4"),
    pyramid=24,
    width=96,
    epochs=14,
    batch=8,
    rate=2e-3,
    shuffle_colours=True,
    label_stride=2,
    train_encoder=True,
)
BASE_RECIPES = {"frozen": BaseOptions(), "paper": base_training.PAPER, "scratch": SCRATCH}
EPISODIC_RECIPES = {"frozen": EpisodicOptions(), "paper": episodic.PAPER}


def train_base_stage(
    experiment: Experiment,
    recipe: str = "",
    *,
    epochs: int = 0,
    frozen_until: str = "",
    seed: int = 0,
    resume: bool = False,
    options: BaseOptions | None = None,
) -> dict[str, float]:
    """Train the base model of an experiment; returns its IoU on val in percent, ``base`` first."""
    recipe = recipe or ("scratch" if experiment.data == "scenes" else "frozen")
    if recipe not in BASE_RECIPES:
        raise unknown("recipe", recipe, BASE_RECIPES)
    options = options or BASE_RECIPES[recipe]
    if epochs:
        options = replace(options, epochs=epochs)
    if frozen_until:
        options = replace(options, frozen_until=frozen_until)
    workers = start_workers()
    encoder = experiment.pretrained
    train_base(
        experiment.train_set,
        experiment.classes,
        encoder,
        getattr(encoder, "name", experiment.encoder),
        options,
        size=experiment.size,
        fold_number=None if experiment.novel else experiment.fold,
        bank=None if options.train_encoder else experiment.bank("train", encoder),
        seed=seed,
        folder=experiment.base_folder,
        resume=resume,
        workers=workers,
    )
    workers.wait()  # the first process writes the model that all read now
    return base_miou(experiment.model, experiment.bank("val"), experiment.val_set, experiment.classes)


def train_held_out_stage(experiment: Experiment, groups: int, resume: bool = False) -> HeldOutSources:
    """One base model without each part of the base classes and of the images, trained where it is missing.

    They are trained like the base model, in two thirds of the epochs; a frozen encoder's bank serves all of them.
    """
    if groups > len(experiment.classes.base) // 2:
        raise GfssError(
            f"{len(experiment.classes.base)} base classes cannot be held out in {groups} parts; take fewer parts"
        )
    training = dict(experiment.model.card.training)
    seed = training.pop("seed", 0)
    levels = tuple(training.pop("levels"))
    options = BaseOptions(levels, **training)
    options = replace(options, epochs=max(1, 2 * options.epochs // 3))
    for group in range(groups):
        folder = experiment.held_out_folder(group, groups)
        if has_checkpoint(folder, "base"):
            continue
        workers = start_workers()
        encoder = experiment.fresh_encoder() if options.changes_encoder else experiment.model.encoder
        train_base(
            experiment.train_set,
            experiment.held_out_fold(group, groups),
            encoder,
            experiment.model.card.encoder,
            options,
            size=experiment.size,
            bank=None if options.train_encoder else experiment.bank("train", encoder),
            seed=seed,
            folder=folder,
            resume=resume,
            workers=workers,
            avoid=experiment.held_out_images(group, groups),
        )
        workers.wait()
    return HeldOutSources(tuple(experiment.held_out_source(group, groups) for group in range(groups)))


def base_record(experiment: Experiment) -> Record:
    """The base classifier alone on every val image, as a record with 0 shots (accumulated IoU, novel pixels void)."""
    start = time.perf_counter()
    iou = base_miou(experiment.model, experiment.bank("val"), experiment.val_set, experiment.classes)
    card = experiment.model.card
    unseen = dict.fromkeys(card.novel)
    figures = summarise({name: iou[name] for name in card.classes}, unseen, iou["background"])
    return Record(
        data=experiment.name,
        fold=_fold_name(experiment),
        shots=0,
        encoder=experiment.encoder,
        method="base",
        protocol="joint",
        tasks=1,
        seed=int(card.training.get("seed", 0)),
        recipe=json.loads(json.dumps({"size": experiment.size, "base": card.training})),
        base_classes=list(card.classes),
        novel_classes=list(card.novel),
        supports=[[]],
        figures={"accumulated": figures},
        run=Run(
            seconds={"evaluate": time.perf_counter() - start},
            peak_memory_mb=peak_memory_mb(),
            versions=versions(),
        ),
    )


def train_method_stage(
    experiment: Experiment,
    name: str,
    shots: int,
    recipe: str = "frozen",
    *,
    iterations: int = 0,
    episodes: int = 0,
    seed: int = 0,
    resume: bool = False,
    options: EpisodicOptions | None = None,
) -> float:
    """Train a method (or a calibrator on one) for a number of shots; returns the mean of the last losses."""
    if recipe not in EPISODIC_RECIPES:
        raise unknown("recipe", recipe, EPISODIC_RECIPES)
    options = replace(options or EPISODIC_RECIPES[recipe], shots=training_shots(name, shots), seed=seed)
    if iterations:
        options = replace(options, iterations=iterations)
    if episodes:
        options = replace(options, episodes=episodes)
    workers = start_workers()
    method = experiment.method(name, shots, seed, trained=False)
    if method.module is None:
        raise GfssError(f"method '{name}' needs no training; evaluate it right away")
    folder = experiment.method_folder(name, shots)
    common = {"folder": folder, "resume": resume, "workers": workers}
    if isinstance(method, Calibrated):
        inner = method.inner
        key = json.dumps([inner.name, experiment.model.card.as_json(), asdict(experiment.novel_options)], default=str)
        key += _weights_hash(experiment.model.head)
        if inner.module is not None:
            key += _weights_hash(inner.module)
        source = experiment.train_source
        if options.held_out and inner.module is None:
            source = train_held_out_stage(experiment, options.held_out, resume)
            key += "".join(hashlib.sha256(one.store.rows().numpy().tobytes()).hexdigest() for one in source.sources)
        losses = train_calibrator(method, source, options, key=key, **common)
    else:
        losses = train_method(method, experiment.train_source, options, **common)
    if workers.rank == 0:
        training = asdict(options)
        if isinstance(method, Calibrated):
            training |= {"calibrator": asdict(method.calibrator.options), "novel": asdict(experiment.novel_options)}
        save_method(folder, method, experiment.model.card, training)
        finish(folder)
    return sum(losses[-50:]) / max(1, len(losses[-50:]))


def evaluate_stage(
    experiment: Experiment,
    names: Sequence[str],
    shots: int,
    protocol: ProtocolName = "paired",
    tasks: int = 1000,
    seed: int = 0,
    supports_from: str = "val",
) -> list[Record]:
    """Examine methods on the same tasks; one record each, the same whether one process works or several.

    Args:
        supports_from: split of the support images, ``val`` or (in the joint protocol) ``train``.
    """
    if supports_from not in ("val", "train"):
        raise unknown("split", supports_from, ("val", "train"))
    if supports_from == "train" and protocol != "joint":
        raise GfssError("supports come from the train list only in the joint protocol; leave --supports out")
    start = time.perf_counter()
    methods = [experiment.method(name, shots) for name in names]
    blind = all(name in BLIND for name in names)
    source = experiment.blind_source() if blind else experiment.val_source
    supports = None
    if supports_from == "train":
        supports = experiment.blind_source("train") if blind else experiment.train_source
    drawn = draw_tasks(source, protocol, shots, tasks, seed, supports)
    prepared = time.perf_counter() - start
    workers = start_workers() if started_processes() > 1 else Workers()
    share = drawn[workers.rank :: workers.world]
    parts = workers.gather(examine(methods, source, share, len(share), supports))
    results = {name: reduce(add, (part[name] for part in parts)) for name in parts[0]}
    total = time.perf_counter() - start
    ids = (supports or source).dataset.ids
    support_ids = [[ids[i] for group in task.supports for i in group] for task in drawn]
    names_of = experiment.val_set.classes
    recipe: dict[str, Any] = {"size": experiment.size}
    if supports_from != "val":
        recipe["supports"] = supports_from
    if not blind:
        recipe |= {"base": experiment.model.card.training, "novel": asdict(experiment.novel_options)}
    return [
        Record(
            data=experiment.name,
            fold=_fold_name(experiment),
            shots=shots,
            encoder=experiment.encoder,
            method=method.name,
            protocol=protocol,
            tasks=len(drawn),
            seed=seed,
            recipe=json.loads(json.dumps(recipe | _training_of(experiment, method, shots))),
            base_classes=[names_of[c - 1] for c in experiment.classes.base],
            novel_classes=[names_of[c - 1] for c in experiment.classes.novel],
            supports=support_ids,
            figures={cast(MetricName, key): m.summary() for key, m in results[method.name].metrics.items()},
            run=Run(
                seconds={**results[method.name].seconds, "prepare": prepared, "all methods": total},
                peak_memory_mb=peak_memory_mb(),
                versions=versions(),
            ),
        )
        for method in methods
    ]


def record_path(folder: Path, record: Record, tag: str = "") -> Path:
    """Where a record goes below a folder of results.

    Args:
        tag: of the experiment.
    """
    name = f"{record.method}-{record.shots}shot-{record.protocol}-seed{record.seed}.json"
    system = f"{record.data}-{record.encoder}"
    return folder / (f"{system}-{tag}" if tag else system) / f"fold{record.fold}" / name


def _training_of(experiment: Experiment, method: Method, shots: int) -> dict[str, Any]:
    """How a trained method was trained, from its checkpoint."""
    if method.module is None:
        return {}
    about = read_json(experiment.method_folder(method.name, shots) / "method.json")
    return {"training": about["training"]}


def _fold_name(experiment: Experiment) -> int | str:
    if experiment.novel:
        return ",".join(experiment.novel)
    return "all" if experiment.fold is None else experiment.fold


def _weights_hash(module: torch.nn.Module) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()
