"""The graph of a recipe as data: artefacts of every fold, what each is made from, and which are still to be made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch

from gfss.common.devices import CPU
from gfss.common.errors import GfssError
from gfss.data.episodes import shots_in_words
from gfss.experiments.artifacts import (
    Artifact,
    Evaluation,
    FoldName,
    Part,
    base_artifact,
    evaluations,
    is_stored,
    method_artifact,
    parts,
)
from gfss.experiments.durations import Durations
from gfss.experiments.spec import Recipe
from gfss.methods import inner_method

Only = Literal["base", "methods"]
State = Literal["done", "todo", "not needed"]
TUNING_PARTS = 3  # parts of the base classes where the recipe's episodes are those of the base model itself


@dataclass(frozen=True, eq=False)
class Step:
    """One thing to do.

    Attributes:
        kind: what it makes.
        method: of a training.
        shots: that a method is trained for.
        part: that a base model is trained without, or that a method's training leaves out.
        artifact: what a training makes.
        evaluation: what is evaluated.
        left: methods without a record.
        seconds: rough time.
    """

    kind: Literal["base", "method", "evaluation"]
    fold: FoldName
    state: State
    seconds: float
    method: str = ""
    shots: int = 0
    part: Part | None = None
    artifact: Artifact | None = None
    evaluation: Evaluation | None = None
    left: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """The step for people."""
        without = f" without {self.part}" if self.part else ""
        if self.kind == "base":
            return f"fold {self.fold}: train the base model{without}"
        if self.kind == "method":
            return f"fold {self.fold}: train {self.method} for {shots_in_words(self.shots)}{without}"
        assert self.evaluation is not None
        names = f"{len(self.left)} methods" if len(self.left) > 4 else ", ".join(self.left)
        return f"fold {self.fold}: evaluate {names} {self.evaluation.words}"


@dataclass(frozen=True)
class Plan:
    """All steps of a recipe, in an order in which they can be done.

    Attributes:
        runs: folder of artefacts.
        out: folder of records.
        device: where to train and evaluate.
        only: stop after the base models or the trained methods, whatever records there are.
        tuning: compare the methods on base classes held out, never on novel ones.
    """

    recipe: Recipe
    runs: Path = Path("runs")
    out: Path = Path("results")
    device: torch.device = CPU
    only: Only | None = None
    tuning: bool = False

    def __post_init__(self) -> None:
        if self.tuning:
            _refuse_what_cannot_be_tuned(self.recipe)

    @cached_property
    def steps(self) -> list[Step]:
        """Every step with its state."""
        return [step for fold in self.recipe.folds for step in self._fold(fold)]

    @property
    def todo(self) -> list[Step]:
        """Steps that are left."""
        return [step for step in self.steps if step.state == "todo"]

    def evaluations(self, fold: FoldName) -> list[Evaluation]:
        """Everything that is evaluated on a fold."""
        recipe = self.recipe
        left_out = parts(recipe.training.held_out or TUNING_PARTS) if self.tuning else [None]
        found = evaluations(recipe, fold, left_out)
        return found if self.tuning else [Evaluation(recipe, fold, 0, "joint", 1, recipe.seed), *found]

    def artifacts(self, fold: FoldName) -> dict[str, Step]:
        """What the evaluations of a fold stand on, by identity, parents first."""
        found: dict[str, Step] = {}
        durations = Durations(self.recipe)
        left_out = parts(self.recipe.training.held_out or TUNING_PARTS) if self.tuning else [None]

        def add(artifact: Artifact, **about: Any) -> None:
            if is_stored(artifact) and artifact.identity not in found:
                step = Step(artifact.kind, fold, "done", 0, artifact=artifact, **about)
                found[artifact.identity] = replace(step, seconds=durations.of(step))

        if not self.tuning:
            add(base_artifact(self.recipe, fold))
        methods = [(s, n) for s in self.recipe.shots for n in _with_inner(self.recipe.methods)]
        for count in {p.count for p in left_out if p} or {self._held_out(n, s) for s, n in methods}:
            for part in parts(count):
                add(base_artifact(self.recipe, fold, part), part=part)
        for part in left_out:
            for shots, name in methods:
                add(
                    method_artifact(self.recipe, fold, name, shots, part),
                    method=name,
                    shots=self.recipe.training_of(name, shots).shots,
                    part=part,
                )
        return found

    def _held_out(self, name: str, shots: int) -> int:
        made = self.recipe.is_calibrated(name) and self.recipe.is_trained(name)
        return self.recipe.training_of(name, shots).held_out if made else 0

    def _fold(self, fold: FoldName) -> Iterator[Step]:
        evaluations = [] if self.only else [self._evaluation(one) for one in self.evaluations(fold)]
        making = self.artifacts(fold)
        if self.only == "base":
            wanted = [base_artifact(self.recipe, fold)]
        elif self.only == "methods":
            wanted = [step.artifact for step in making.values() if step.artifact and step.kind == "method"]
        else:
            left = [(s.evaluation, name) for s in evaluations if s.state == "todo" for name in s.left]
            wanted = [parent for one, name in left if one for parent in one.artifact(name).parents]
        missing = self._missing(wanted)
        for identity, step in making.items():
            assert step.artifact is not None
            done = step.artifact.is_complete(self.runs)
            yield replace(step, state="done" if done else "todo" if identity in missing else "not needed")
        yield from evaluations

    def _missing(self, wanted: Iterable[Artifact]) -> set[str]:
        """Identities of artefacts that must be made: those that are not complete, and what they are made from."""
        missing: set[str] = set()
        left = list(wanted)
        while left:
            artifact = left.pop()
            if artifact.identity in missing or (is_stored(artifact) and artifact.is_complete(self.runs)):
                continue
            missing.add(artifact.identity)
            left += artifact.parents
        return missing

    def _evaluation(self, one: Evaluation) -> Step:
        names = self.recipe.evaluated if one.shots else ("base",)
        left = tuple(name for name in names if not one.record_path(self.out, name).exists())
        step = Step("evaluation", one.fold, "todo" if left else "done", 0, evaluation=one, left=left or names)
        return replace(step, seconds=Durations(self.recipe).of(step))


def _with_inner(names: Iterable[str]) -> list[str]:
    """Methods in an order of training: what a calibrator stands on comes before it."""
    return list(dict.fromkeys(part for name in names for part in (inner_method(name), name)))


def _refuse_what_cannot_be_tuned(recipe: Recipe) -> None:
    if recipe.training.held_out == 1:
        raise GfssError("with 'training.held_out: 1' nothing is left to train on; take two parts or more")
    for name in _with_inner(recipe.methods):
        if recipe.is_trained(name) and not recipe.is_calibrated(name):
            raise GfssError(
                f"method '{name}' is trained on the features of one base model; only methods without training and "
                "calibrators on them can be evaluated on held-out base classes"
            )
