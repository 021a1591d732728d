"""Doing the steps of a plan; interrupted anywhere, the same call continues.

Processes started together by ``torchrun`` train as one and share the tasks of an evaluation; the first one writes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from gfss.common import devices
from gfss.common.distributed import is_first
from gfss.common.errors import GfssError
from gfss.evaluation.costs import TrainingCost, add_cost
from gfss.evaluation.records import Record, peak_memory_mb, versions, write_record, write_records
from gfss.experiments.evaluator import base_record, evaluate_stage
from gfss.experiments.experiment import Experiment
from gfss.experiments.plan import Plan, Step
from gfss.experiments.requirements import missing
from gfss.experiments.stages import measure_base, train_base_stage, train_method_stage
from gfss.training.checkpoints import has_checkpoint


def run_plan(plan: Plan, say: Callable[[str], None] = lambda words: None) -> int:
    """Do every step that is left; returns how many there were.

    Args:
        say: is told each step before it starts.
    """
    steps = plan.todo
    if steps and (sentence := missing(plan.recipe.data, plan.recipe.encoder, plan.root, plan.weights)):
        raise GfssError(sentence)
    fold, experiment = -1, None
    for number, step in enumerate(steps, start=1):
        say(f"step {number} of {len(steps)}: {step.words}")
        if experiment is None or step.fold != fold:  # the features of one fold are in memory at a time
            fold, experiment = step.fold, plan.experiment(step.fold)
        _do(plan, step, experiment)
    return len(steps)


def _do(plan: Plan, step: Step, experiment: Experiment) -> None:
    if step.kind in ("base", "measure"):
        if step.kind == "base":
            iou = train_base_stage(experiment, seed=step.seed, resume=True, options=plan.recipe.base)
        else:
            iou = measure_base(experiment)
        if is_first():
            write_record(plan.record_path(step.fold, "base", 0, "joint", step.seed), base_record(experiment, iou))
        _wait_for_others()
    elif step.kind == "train":
        _train(plan, step, experiment)
    else:

        def write(records: Sequence[Record]) -> None:
            where = (step.shots, step.protocol, step.seed)
            # what another command has written meanwhile stays
            new = [r for r in records if not plan.has_record(experiment, r.method, *where)]
            write_records({plan.record_path(step.fold, r.method, *where): r for r in new})

        what = (experiment, step.methods, step.shots, step.protocol, step.tasks, step.seed)
        evaluate_stage(*what, write=write)


def _train(plan: Plan, step: Step, experiment: Experiment) -> None:
    """Train a method, and note what it cost beside the records."""
    (name,) = step.methods
    resumed = has_checkpoint(experiment.method_folder(name, step.shots), "train")
    start = time.perf_counter()
    options = plan.recipe.training(name, step.shots)
    train_method_stage(experiment, name, step.shots, seed=step.seed, resume=True, options=options)
    cost = TrainingCost(
        method=name,
        shots=step.shots,
        seconds=time.perf_counter() - start,
        peak_memory_mb=devices.peak_memory_mb(experiment.device) or peak_memory_mb(),
        resumed=resumed,
        cpu=versions()["cpu"] if experiment.device.type == "cpu" else devices.device_name(experiment.device),
    )
    if is_first():
        add_cost(plan.record_path(step.fold, name, step.shots, "paired", 0).parent / "costs.csv", cost)
    _wait_for_others()


def _wait_for_others() -> None:
    """Until the first process has written what the others will read."""
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        distributed.barrier()
