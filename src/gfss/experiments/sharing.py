"""Steps of a plan and shares of an evaluation on the workers of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from gfss.common.cluster import Cluster
from gfss.experiments.artifacts import FoldName, is_stored
from gfss.experiments.experiment import Experiment
from gfss.experiments.spec import Recipe
from gfss.experiments.steps import Plan, Step
from gfss.methods import LOADED, load_installed, load_plugin

SHARES = 64  # of an evaluation, at most; the same on any cluster, so that what was done is found again
Output = TypeVar("Output")
Piece = tuple[FoldName, tuple[Any, ...]]
"""A fold, and what a function is called with beside its experiment."""


def map_experiments(
    cluster: Cluster, function: Callable[..., Output], recipe: Recipe, runs: Path, pieces: Iterable[Piece]
) -> Iterator[Output]:
    """Results of a function of an experiment and more, in the order of the pieces."""
    return cluster.map(partial(_job, function, recipe, runs, tuple(LOADED)), pieces)


def _job(
    function: Callable[..., Output], recipe: Recipe, runs: Path, plugins: Sequence[Path]
) -> Callable[[Piece], Output]:
    load_installed()
    for path in plugins:
        load_plugin(path)
    opened: list[Experiment] = []

    def job(piece: Piece) -> Output:
        fold, arguments = piece
        if not opened or opened[0].fold != fold:  # the features of one fold are in memory at a time
            opened[:] = [Experiment(recipe, fold, runs)]
        return function(opened[0], *arguments)

    return job


def waves(plan: Plan) -> Iterator[list[Step]]:
    """The training steps that are left: first those that need no other, then those that need only them, and so on."""
    left = [step for step in plan.todo if step.artifact]
    done = set[str]()
    while left:
        ready = [step for step in left if _parents(step, plan.runs) <= done]
        assert ready, "a step needs another that is not in the plan"
        yield ready
        done |= {step.artifact.identity for step in ready if step.artifact}
        left = [step for step in left if step not in ready]


def _parents(step: Step, runs: Path) -> set[str]:
    """Identities of what a step is made from and what is not there yet."""
    assert step.artifact is not None
    return {one.identity for one in step.artifact.parents if is_stored(one) and not one.is_complete(runs)}
