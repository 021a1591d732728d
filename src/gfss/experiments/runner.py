"""Doing the steps of a plan; interrupted anywhere, the same call continues.

Processes started together by ``torchrun`` train as one and share the tasks of an evaluation; the first one writes.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any, cast

import torch

from gfss.common import devices
from gfss.common.cluster import Cluster
from gfss.common.devices import Workers, connected_cluster, is_first, start_workers, started_processes
from gfss.common.errors import GfssError
from gfss.common.files import read_json, versions
from gfss.data.episodes import Task, task
from gfss.evaluation.base_model import base_miou
from gfss.evaluation.costs import TrainingCost, add_cost
from gfss.evaluation.metrics import summarise
from gfss.evaluation.protocols import Kept, MethodResult, draw_tasks, evaluate_methods, kept_results
from gfss.evaluation.records import (
    MetricName,
    Record,
    Run,
    peak_memory_mb,
    per_task,
    write_records,
)
from gfss.experiments.artifacts import Artifact, Evaluation, evaluations, is_stored, plain
from gfss.experiments.experiment import Experiment
from gfss.experiments.recipes import missing
from gfss.experiments.sharing import SHARES, Piece, map_experiments, waves
from gfss.experiments.spec import Recipe
from gfss.experiments.steps import Plan, Step
from gfss.features.bank import Bank, check_bank
from gfss.features.episodes import EpisodeSampler
from gfss.methods.pcn import Calibrated
from gfss.training.base import BaseData, train_base
from gfss.training.checkpoints import has_checkpoint, save_method
from gfss.training.episodic import train_calibrator, train_method
from gfss.training.loop import TrainingRun, remove_training_state

IN_RECORDS_TWICE = ("data", "fold", "encoder")  # keys of a specification that a record has by themselves


def run_plan(plan: Plan, say: Callable[[str], None] = lambda words: None) -> list[Record]:
    """Do every step that is left; returns the records that were written.

    Args:
        say: is told each step before it starts.
    """
    steps, records = plan.todo, list[Record]()
    if steps and (sentence := missing(plan.recipe)):
        raise GfssError(sentence)
    if plan.tuning and started_processes() > 1:
        raise GfssError("settings are compared by one process; start gfss tune without torchrun")
    if cluster := connected_cluster():
        _train_on(cluster, plan, say)
        steps = [step for step in steps if step.evaluation]
    experiment = None
    for number, step in enumerate(steps, start=1):
        say(f"step {number} of {len(steps)}: {step.words}")
        if experiment is None or step.fold != experiment.fold:  # the features of one fold are in memory at a time
            experiment = Experiment(plan.recipe, step.fold, plan.runs, plan.device)
        if step.evaluation:
            records += evaluate_together(experiment, step.evaluation, step.left, plan.out)
        else:
            _note_cost(plan, step, train_step(experiment, step))
    return records


def _train_on(cluster: Cluster, plan: Plan, say: Callable[[str], None]) -> None:
    """The training steps that are left, on the workers of a cluster; those that do not need each other side by side."""
    for wave in waves(plan):
        if not plan.recipe.base.changes_encoder:  # one bank for all steps, made by all workers together
            experiment = Experiment(plan.recipe, wave[0].fold, plan.runs)
            experiment.bank("train", experiment.pretrained)
        costs = map_experiments(cluster, train_step, plan.recipe, plan.runs, [(step.fold, (step,)) for step in wave])
        for step, cost in zip(wave, costs, strict=True):
            say(f"done: {step.words}")
            _note_cost(plan, step, cost)


def train_step(experiment: Experiment, step: Step) -> TrainingCost | None:
    """Do a step that trains; returns what a method cost."""
    if step.kind == "method":
        return train_method_step(experiment, step)
    return train_base_step(experiment, step)


def evaluate_recipe(recipe: Recipe, runs: Path, device: torch.device, out: Path | None) -> Iterator[Record]:
    """Evaluate the methods of a recipe with what is trained already; nothing is trained.

    Args:
        out: folder of records, None to write nothing.
    """
    if sentence := missing(recipe):
        raise GfssError(sentence)
    for fold in recipe.folds:
        experiment = Experiment(recipe, fold, runs, device)
        for evaluation in evaluations(recipe, fold):
            yield from evaluate_together(experiment, evaluation, recipe.evaluated, out)


def build_banks(recipe: Recipe, runs: Path, device: torch.device) -> list[Bank]:
    """The feature banks of a frozen encoder, checked against their checksums."""
    if recipe.base.train_encoder:
        raise GfssError("an encoder that is trained has a feature bank of every fold, which is made when it is needed")
    experiment = Experiment(recipe, recipe.folds[0], runs, device)
    banks = [experiment.bank(split, experiment.pretrained) for split in ("train", "val")]
    for bank in banks:
        check_bank(bank)
    return banks


@contextmanager
def making(experiment: Experiment, artifact: Artifact) -> Iterator[tuple[Path, Workers, dict[str, Any]]]:
    """The folder of an artefact while it is made, and what it costs; complete afterwards."""
    workers = start_workers(experiment.device)
    folder = artifact.folder(experiment.runs)
    cost: dict[str, Any] = {"resumed": has_checkpoint(folder, "train")}
    workers.wait()
    if workers.rank == 0:
        artifact.begin(experiment.runs)
    start = time.perf_counter()
    yield folder, workers, cost
    cost["seconds"] = round(time.perf_counter() - start, 1)
    cost["peak_memory_mb"] = devices.peak_memory_mb(experiment.device) or peak_memory_mb()
    cost["versions"] = versions(devices.device_name(experiment.device))
    if workers.rank == 0:
        artifact.complete(experiment.runs, cost)
    workers.wait()  # the first process writes what all read now


def train_base_step(experiment: Experiment, step: Step) -> None:
    """Stage 1: the base model of a fold, or one without a part."""
    recipe, part = experiment.recipe, step.part
    assert step.artifact is not None
    options = step.artifact.own["base"]
    encoder = experiment.fresh_encoder() if options.changes_encoder else experiment.pretrained
    with making(experiment, step.artifact) as (folder, workers, _):
        data = BaseData(
            experiment.train_set,
            experiment.classes_without(part) if part else experiment.classes,
            None if part or experiment.fold == "all" else experiment.fold,
            None if options.train_encoder else experiment.bank("train", encoder),
            experiment.images_of(part) if part else (),
        )
        run = TrainingRun(recipe.seed, folder, resume=True, workers=workers)
        train_base(data, encoder, getattr(encoder, "name", recipe.encoder), options, size=recipe.size, run=run)


def train_method_step(experiment: Experiment, step: Step) -> TrainingCost:
    """Stage 2 of one method; returns what it cost."""
    assert step.artifact is not None
    own, shots, left_out = step.artifact.own, step.shots, step.part
    options = own["training"]
    method = experiment.method(step.method, shots, trained=False, left_out=left_out)
    assert method.module is not None
    with making(experiment, step.artifact) as (folder, workers, cost):
        common = {"folder": folder, "resume": True, "workers": workers, "key": _key(experiment, step.artifact)}
        if isinstance(method, Calibrated):
            held_out = left_out.count if left_out else options.held_out
            source = experiment.held_out_sources(held_out, left_out) if held_out else experiment.train_source
            train_calibrator(method, source, options, **common)
        else:
            train_method(method, experiment.train_source, options, **common)
        if workers.rank == 0:
            training = {**plain(options), "calibrator": plain(own.get("calibrator")), "novel": plain(own.get("novel"))}
            if on := own.get("on"):
                training["novel"] = plain(on.get("novel"))
            card = experiment.base_model(left_out).card
            save_method(folder, method, card, {key: value for key, value in training.items() if value is not None})
            remove_training_state(folder)
    cpu = cost["versions"].get("device") or cost["versions"]["cpu"]
    used = (cost["seconds"], cost["peak_memory_mb"], cost["resumed"], cpu)
    return TrainingCost(step.method, shots, *used, step.artifact.identity)


def _note_cost(plan: Plan, step: Step, cost: TrainingCost | None) -> None:
    """Write what a training cost beside the records of its fold."""
    if cost and is_first() and not (plan.only or step.part):
        evaluation = Evaluation(plan.recipe, step.fold, step.shots, "paired", 1, 0)
        add_cost(evaluation.record_path(plan.out, step.method).parent / "costs.csv", cost)


def _key(experiment: Experiment, artifact: Artifact) -> str:
    """What the episodes of a method depend on besides its options of stage 2: trained parents and what it stands on."""
    parents = [parent.folder(experiment.runs) for parent in artifact.parents if is_stored(parent)]
    sums = [read_json(path)["sha256"] for folder in parents for path in folder.glob("[bm]*.json")]
    content = [sums, plain(artifact.own.get("on", {})), experiment.device.type]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def evaluate_together(
    experiment: Experiment, evaluation: Evaluation, names: Sequence[str], out: Path | None
) -> list[Record]:
    """Evaluate methods on the same tasks; one record each, the same whether one process works or several.

    Args:
        names: of the methods.
        out: folder of records; if writing fails, the same call finds all results still there. None writes nothing.
    """
    if not evaluation.shots:
        records = [_base_record(experiment, evaluation)]
        _write(records, evaluation, out)
        return records
    start = time.perf_counter()
    source, supports, drawn = _opened(experiment, evaluation)
    prepared = time.perf_counter() - start
    cluster = connected_cluster()
    workers = start_workers(experiment.device) if started_processes() > 1 else Workers()
    world = min(SHARES, len(drawn)) if cluster else workers.world
    shares = [Workers(rank, world) for rank in range(world)]
    if cluster:
        pieces: list[Piece] = [(experiment.fold, (evaluation, names, one)) for one in shares]
        shared = list(map_experiments(cluster, evaluate_share, experiment.recipe, experiment.runs, pieces))
    else:
        shared = workers.gather(evaluate_share(experiment, evaluation, names, workers))
    results = {name: reduce(add, (part[name] for part in shared)) for name in shared[0]}
    seconds = {"prepare": prepared, "all methods": time.perf_counter() - start}
    order = [number for one in shares for number in range(len(drawn))[one.rank :: one.world]]
    records = [
        _record(experiment, evaluation, name, results[name], (drawn, order), supports or source, seconds)
        for name in names
    ]
    if workers.rank == 0:
        _write(records, evaluation, out)
    workers.wait()  # until the first process has written them
    for one in shares if cluster else [workers]:
        _kept(experiment, evaluation, names, one, len(drawn[one.rank :: one.world])).remove()
    return records


def evaluate_share(
    experiment: Experiment, evaluation: Evaluation, names: Sequence[str], share: Workers
) -> dict[str, MethodResult]:
    """Results of one of the processes, or workers of a cluster, that share the tasks of an evaluation."""
    source, supports, drawn = _opened(experiment, evaluation)
    methods = [experiment.method(name, evaluation.shots, left_out=evaluation.part) for name in names]
    own = drawn[share.rank :: share.world]
    return evaluate_methods(methods, source, own, supports, _kept(experiment, evaluation, names, share, len(own)))


def _kept(experiment: Experiment, evaluation: Evaluation, names: Sequence[str], share: Workers, tasks: int) -> Kept:
    artifacts = {name: evaluation.artifact(name) for name in names}
    about = {"evaluations": {name: one.identity for name, one in artifacts.items()}, "device": experiment.device.type}
    about |= {"trained": [_key(experiment, one) for one in artifacts.values()], "share": [share.rank, share.world]}
    return kept_results(about, tasks)


def _opened(experiment: Experiment, evaluation: Evaluation) -> tuple[EpisodeSampler, EpisodeSampler | None, list[Task]]:
    """Where queries come from, where supports come from if that is elsewhere, and the tasks."""
    source = experiment.source(evaluation.part) if evaluation.part else experiment.val_source
    supports = experiment.train_source if experiment.recipe.supports == "train" else None
    return source, supports, _tasks(evaluation, source, supports)


def _tasks(evaluation: Evaluation, source: EpisodeSampler, supports: EpisodeSampler | None) -> list[Task]:
    if evaluation.part:
        numbers = range(evaluation.tasks)
        return [task(source.dataset, source.fold, evaluation.seed, i, evaluation.shots, source.avoid) for i in numbers]
    kind = (evaluation.protocol, evaluation.shots, evaluation.tasks, evaluation.seed)
    return draw_tasks(source, *kind, supports, evaluation.recipe.support_area)


def _write(records: list[Record], evaluation: Evaluation, out: Path | None) -> None:
    if out is not None:
        write_records({evaluation.record_path(out, record.method): record for record in records})


def _record(
    experiment: Experiment,
    evaluation: Evaluation,
    name: str,
    result: MethodResult,
    tasks: tuple[list[Task], list[int]],
    source: EpisodeSampler,
    seconds: Mapping[str, float],
) -> Record:
    """The record of one method.

    Args:
        tasks: all tasks, and the order in which their results came.
        source: of the supports.
    """
    drawn, order = tasks
    ids, names = source.dataset.ids, source.dataset.classes
    return Record(
        **_place(experiment, evaluation, name),
        base_classes=[names[c - 1] for c in source.fold.base],
        novel_classes=[names[c - 1] for c in source.fold.novel],
        supports=[[ids[i] for group in task.supports for i in group] for task in drawn],
        figures={cast(MetricName, key): metric.summary() for key, metric in result.metrics.items()},
        per_task=per_task(result.metrics, order),
        run=_run(experiment, {**result.seconds, **seconds}),
    )


def _base_record(experiment: Experiment, evaluation: Evaluation) -> Record:
    """The base classifier alone on every val image, as a record with 0 shots (accumulated IoU, novel pixels void)."""
    iou = base_miou(experiment.model, experiment.bank("val"), experiment.val_set, experiment.classes)
    card = experiment.model.card
    figures = summarise({name: iou[name] for name in card.classes}, dict.fromkeys(card.novel), iou["background"])
    return Record(
        **_place(experiment, evaluation, "base"),
        base_classes=list(card.classes),
        novel_classes=list(card.novel),
        supports=[[]],
        figures={"accumulated": figures},
        run=_run(experiment, {}),
    )


def _place(experiment: Experiment, evaluation: Evaluation, name: str) -> dict[str, Any]:
    """What a record is about."""
    recipe, part, artifact = experiment.recipe, evaluation.part, evaluation.artifact(name)
    return {
        "data": f"{recipe.data_name}, base classes held out" if part else recipe.data_name,  # not mixed in tables
        "fold": f"{experiment.fold_name}, part {part.number} of {part.count}" if part else experiment.fold_name,
        "shots": evaluation.shots,
        "encoder": recipe.encoder,
        "method": name,
        "protocol": evaluation.protocol,
        "tasks": evaluation.tasks,
        "seed": evaluation.seed,
        "spec": {key: value for key, value in artifact.spec.items() if key not in IN_RECORDS_TWICE},
        "artifacts": [one.identity for one in (artifact, *artifact.parents) if one is artifact or is_stored(one)],
    }


def _run(experiment: Experiment, seconds: Mapping[str, float]) -> Run:
    used = versions(devices.device_name(experiment.device))
    return Run(seconds=dict(seconds), peak_memory_mb=peak_memory_mb(), versions=used)
