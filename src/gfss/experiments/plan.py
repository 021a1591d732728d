"""The plan of a recipe as data: which steps it has and which of them are done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch

from gfss.common.devices import CPU
from gfss.common.errors import GfssError
from gfss.common.files import read_json
from gfss.data.episodes import shots_in_words
from gfss.evaluation.protocols import ProtocolName
from gfss.evaluation.records import Record, read_record
from gfss.experiments.estimate import Cost, Estimate
from gfss.experiments.evaluator import record_path
from gfss.experiments.experiment import Experiment
from gfss.experiments.recipes import Recipe
from gfss.methods import inner_method, training_shots
from gfss.models.encoders import usual_stride
from gfss.training.checkpoints import has_checkpoint

State = Literal["done", "todo", "not needed"]


@dataclass(frozen=True)
class Step:
    """One thing to do.

    Attributes:
        kind: ``base`` (stage 1), ``measure`` (a base model without a record), ``train`` (stage 2) or ``evaluate``.
        fold: number of the fold.
        methods: methods that the step is about; of an evaluation, those without a record.
        shots: labelled images per novel class; 0 for the base model.
        protocol: of an evaluation.
        tasks: of an evaluation.
        seed: of an evaluation's tasks, or of training.
        state: ``not needed`` if all that would be built on the step has its record already.
        cost: estimate; nothing for what needs not be done.
    """

    kind: Literal["base", "measure", "train", "evaluate"]
    fold: int
    methods: tuple[str, ...]
    shots: int
    protocol: ProtocolName
    tasks: int
    seed: int
    state: State
    cost: Cost

    @property
    def words(self) -> str:
        """The step for people."""
        place = f"fold {self.fold}"
        if self.kind == "base":
            return f"{place}: train the base model"
        if self.kind == "measure":
            return f"{place}: measure the base model on val"
        shots = shots_in_words(self.shots)
        if self.kind == "train":
            return f"{place}, {shots}: train {self.methods[0]}"
        names = f"{len(self.methods)} methods" if len(self.methods) > 4 else ", ".join(self.methods)
        return f"{place}, {shots}: evaluate {names} on {self.tasks:,} {self.protocol} tasks (seed {self.seed})"


@dataclass(frozen=True)
class Plan:
    """All steps of a recipe, in an order in which they can be done.

    Attributes:
        runs: folder of trained parts.
        out: folder of records.
        root: folder of the data set, where it is not found by itself.
        weights: file with the encoder's weights.
        device: where to train and evaluate.
        records: evaluate; else the plan is only about the trained parts, whatever records there are.
    """

    recipe: Recipe
    runs: Path = Path("runs")
    out: Path = Path("results")
    root: Path | None = None
    weights: Path | None = None
    device: torch.device = CPU
    records: bool = True

    def experiment(self, fold: int) -> Experiment:
        """The experiment of one fold."""
        return self.recipe.experiment(fold, self.runs, self.root, self.weights, self.device)

    def record_path(self, fold: int, method: str, shots: int, protocol: str, seed: int) -> Path:
        """Where one record goes."""
        return record_path(self.out, self.experiment(fold), method, shots, protocol, seed)

    @cached_property
    def steps(self) -> list[Step]:
        """Every step with its state."""
        estimate = Estimate(self.recipe)
        return [step for fold in self.recipe.folds for step in self._fold(fold, estimate)]

    @property
    def todo(self) -> list[Step]:
        """Steps that are left."""
        return [step for step in self.steps if step.state == "todo"]

    def _fold(self, fold: int, estimate: Estimate) -> Iterator[Step]:
        recipe, experiment = self.recipe, self.experiment(fold)
        evaluations = [
            self._evaluation(experiment, fold, shots, protocol, seed, estimate)
            for shots in recipe.shots
            for protocol in recipe.protocols
            for seed in recipe.seeds
            if self.records
        ]
        open_methods = {(e.shots, name) for e in evaluations if e.state == "todo" for name in e.methods}
        if not self.records:
            open_methods = {(shots, name) for shots in recipe.shots for name in recipe.methods}
        base_done = has_checkpoint(experiment.base_folder, "base")
        state = _state(base_done, bool(open_methods))
        if base_done and open_methods:
            _refuse_other_base(experiment, recipe)
        cost = estimate.base(first=fold == recipe.folds[0]) if state == "todo" else Cost(0, 0, 0)
        yield Step("base", fold, (), 0, "paired", 0, recipe.seed, state, cost)
        if self.records and base_done and open_methods and not self._is_measured(fold):
            yield Step("measure", fold, (), 0, "joint", 1, recipe.seed, "todo", estimate.measuring())
        planned: set[tuple[str, int]] = set()
        counted: set[int] = set()  # parts of held-out base models that a step is planned for
        for shots in recipe.shots:
            for name in self._trained(tuple(n for n in recipe.methods if (shots, n) in open_methods)):
                if (name, training_shots(name, shots)) not in planned:
                    planned.add((name, training_shots(name, shots)))
                    yield self._training(experiment, fold, name, shots, estimate, counted)
            yield from (e for e in evaluations if e.shots == shots)

    def _trained(self, methods: tuple[str, ...]) -> list[str]:
        """Methods of stage 2 in order: what a calibrator stands on comes before it."""
        wanted: dict[str, None] = {}
        for name in methods:
            inner = inner_method(name)
            wanted |= {part: None for part in (inner, name) if self.recipe.is_trained(part)}
        return list(wanted)

    def _training(
        self, experiment: Experiment, fold: int, name: str, shots: int, estimate: Estimate, counted: set[int]
    ) -> Step:
        folder = experiment.method_folder(name, shots)
        done = has_checkpoint(folder, "method")
        if done:
            wanted = self.recipe.settings(name, shots)["training"]
            about = read_json(folder / "method.json")
            _refuse_difference(folder, _dated(about.get("training", {})), wanted, complete=True)
            stood_on = about.get("base", {}).get("training", {})
            _refuse_difference(folder, stood_on, _base_settings(self.recipe), what="on a base model with")
            fitted, novel = about.get("training", {}).get("novel", {}), self.recipe.settings(name, shots)["novel"]
            _refuse_difference(folder, fitted, novel, what="on novel classifiers with")
            _refuse_other_files(experiment, folder, about.get("base", {}))
        cost = Cost(0, 0, 0) if done else estimate.method(name, shots)
        parts = self._held_out_parts(experiment, name, shots)
        if not done and parts and parts not in counted:
            counted.add(parts)
            cost = cost.and_then(estimate.held_out(parts))
        return Step("train", fold, (name,), shots, "paired", 0, self.recipe.seed, _state(done, True), cost)

    def _held_out_parts(self, experiment: Experiment, name: str, shots: int) -> int:
        """In how many parts base models are held out for a calibrator; 0 if it needs none or all are there."""
        inner = inner_method(name)
        if self.recipe.calibrator(name) is None or (inner != name and self.recipe.is_trained(inner)):
            return 0
        parts = self.recipe.training(name, shots).held_out
        there = all(has_checkpoint(experiment.held_out_folder(part, parts), "base") for part in range(parts))
        return 0 if there else parts

    def _evaluation(
        self, experiment: Experiment, fold: int, shots: int, protocol: ProtocolName, seed: int, estimate: Estimate
    ) -> Step:
        recipe, tasks = self.recipe, self.recipe.protocols[protocol]
        left = tuple(name for name in recipe.methods if not self.has_record(experiment, name, shots, protocol, seed))
        cost = estimate.evaluation(left, shots, protocol, tasks) if left else Cost(0, 0, 0)
        return Step(
            "evaluate", fold, left or recipe.methods, shots, protocol, tasks, seed, _state(not left, True), cost
        )

    def _is_measured(self, fold: int) -> bool:
        """Whether the base model's record is there, and of a base model with these settings."""
        path = self.record_path(fold, "base", 0, "joint", self.recipe.seed)
        return path.exists() and not differences(read_record(path).recipe, {"base": _base_settings(self.recipe)})

    def has_record(self, experiment: Experiment, method: str, shots: int, protocol: ProtocolName, seed: int) -> bool:
        """Whether a record is there that this recipe would write again, or one of more tasks.

        One of other settings, or of own data that have changed, is outdated; one of more tasks is worth more and stays.
        """
        path = record_path(self.out, experiment, method, shots, protocol, seed)
        if not path.exists():
            return False
        record: Record = read_record(path)
        if experiment.own:
            now = {"files": experiment.val_set.fingerprint, "train_files": experiment.train_set.fingerprint}
            if any(record.recipe.get(key, value) != value for key, value in now.items()):
                return False
        wanted = self.recipe.settings(method, shots)
        parts = [(record.recipe.get(part, {}), wanted.pop(part, {})) for part in ("training", "diam")]
        made = [words for found, asked in parts for words in differences(_dated(found), asked, complete=True)]
        special = {key: record.recipe[key] for key in ("output_stride", "contiguous") if key in record.recipe}
        same = special == self.recipe.special and not made and not differences(record.recipe, wanted)
        return record.tasks >= self.recipe.protocols[protocol] and same


def differences(
    found: Mapping[str, Any], wanted: Mapping[str, Any], place: str = "", complete: bool = False
) -> list[str]:
    """Settings that both sides have, with different values, as words; what only one side has is no difference.

    Args:
        complete: a setting that only ``wanted`` has is one too: what was found is from before it existed.
    """
    words = [f"{place}{key} = nothing instead of {wanted[key]}" for key in wanted.keys() - found.keys() if complete]
    for key in found.keys() & wanted.keys():
        one, other = found[key], wanted[key]
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            words += differences(one, other, f"{place}{key}.", complete)
        elif _plain(one) != _plain(other):
            words.append(f"{place}{key} = {one} instead of {other}")
    return sorted(words)


def _dated(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as they would be written down now."""
    return {"published": False, **settings}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _state(done: bool, needed: bool) -> State:
    return "done" if done else "todo" if needed else "not needed"


def _refuse_other_base(experiment: Experiment, recipe: Recipe) -> None:
    card = read_json(experiment.base_folder / "base.json").get("card", {})
    shape = {"size": recipe.size, "output_stride": recipe.output_stride or usual_stride(recipe.encoder)}
    wanted = {**_base_settings(recipe), **{key: value for key, value in shape.items() if value}}
    found = {**card.get("training", {}), "size": card.get("size"), "output_stride": card.get("output_stride")}
    _refuse_difference(experiment.base_folder, found, wanted)
    _refuse_other_files(experiment, experiment.base_folder, card)


def _refuse_other_files(experiment: Experiment, folder: Path, card: Mapping[str, Any]) -> None:
    """Raise if own data have changed since a part was trained on them.

    Args:
        card: of the part's base model.
    """
    if experiment.own and card.get("files", "") not in ("", experiment.train_set.fingerprint):
        raise GfssError(
            f"{folder} was trained on other images or masks than those now in {experiment.data}; keep them apart with "
            "--set tag=WORD, or move the folder away"
        )


def _base_settings(recipe: Recipe) -> dict[str, Any]:
    """How the recipe trains base models."""
    return recipe.settings(recipe.methods[0], 1)["base"]


def _refuse_difference(
    folder: Path, found: Mapping[str, Any], wanted: Mapping[str, Any], complete: bool = False, what: str = "with"
) -> None:
    if differing := differences(found, wanted, complete=complete):
        more = " ..." if len(differing) > 3 else ""
        raise GfssError(
            f"{folder} was trained {what} {', '.join(differing[:3])}{more} of this recipe; "
            "change the recipe with --set, keep them apart with --set tag=WORD, or move the folder away"
        )
