"""The graph of a recipe as data: artefacts of every fold, what each is made from, and which are still to be made."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import torch

from gfss.common.devices import CPU
from gfss.common.errors import GfssError
from gfss.common.files import read_json
from gfss.data import NAMES as PUBLIC_DATA
from gfss.data import open_dataset
from gfss.data.datasets.base import MIN_AREA
from gfss.data.episodes import shots_in_words
from gfss.evaluation.protocols import ProtocolName
from gfss.experiments.artifacts import Artifact
from gfss.experiments.durations import Durations
from gfss.experiments.requirements import find_weights
from gfss.experiments.spec import Recipe
from gfss.methods import LEARNED, inner_method, needed_levels
from gfss.methods.plugins import SOURCES
from gfss.training.episodic_options import CALIBRATOR_ONLY, EpisodicOptions

FoldName = int | Literal["all"]
Only = Literal["base", "methods"]
State = Literal["done", "todo", "not needed"]
WITHOUT_NOVEL_CLASSIFIER = (
    *("base", "npf", "npf-fitted", "imprint", "imprint-centred", "bcm-published", "diam"),
    *LEARNED,
)
TUNING_PARTS = 3  # parts of the base classes where the recipe's episodes are those of the base model itself


@dataclass(frozen=True)
class Part:
    """One of several parts of the base classes and training images, which a base model is trained without.

    Attributes:
        number: from 1.
        count: how many parts there are.
    """

    number: int
    count: int

    def __str__(self) -> str:
        return f"part{self.number}of{self.count}"


def parts(count: int) -> list[Part]:
    """All parts."""
    return [Part(number, count) for number in range(1, count + 1)]


def base_artifact(recipe: Recipe, fold: FoldName, part: Part | None = None) -> Artifact:
    """The base model of a fold, or one that is trained without a part, in two thirds of the epochs."""
    options = replace(recipe.base, epochs=max(1, 2 * recipe.base.epochs // 3)) if part else recipe.base
    own = {
        "data": recipe.data_name,
        "files": _fingerprint(recipe, "train"),
        "fold": None if recipe.novel_classes else fold,
        "novel_classes": recipe.novel_classes,
        "contiguous": recipe.contiguous,
        "encoder": recipe.encoder,
        "weights": _weights_hash(find_weights(recipe.encoder, recipe.weights)),
        "output_stride": recipe.stride,
        "size": recipe.size,
        "base": options,
        "seed": recipe.seed,
        "without": str(part) if part else None,
    }
    words = _words(recipe, fold) + (f"-without-{part}" if part else "")
    return Artifact("base", words, own)


def method_artifact(recipe: Recipe, fold: FoldName, name: str, shots: int, left_out: Part | None = None) -> Artifact:
    """A method on the base model of a fold; one without training has no folder, only an identity.

    Args:
        left_out: its calibrator is trained on all parts of the base classes but this one, to be evaluated there.
    """
    own: dict[str, Any] = {"method": name} | ({"plugin": SOURCES[name]} if name in SOURCES else {})
    base = base_artifact(recipe, fold, left_out)
    parents = [base]
    if borrowed := recipe.options_of(name).borrowed:
        on = inner_method(name)
        inner = method_artifact(recipe, fold, "nsf" if on == name else on, shots, left_out)
        own = {"method": "calibrator", "on": inner.own, "borrowed": _checkpoint_hash(borrowed)}
        parents += [inner] if is_stored(inner) else []
    elif calibrator := recipe.calibrator(name):
        training = recipe.training_of(name, shots)
        on = inner_method(name)
        inner = method_artifact(recipe, fold, "nsf" if on == name else on, shots, left_out)
        own = {"method": "calibrator", "on": inner.own, "calibrator": calibrator, "training": training}
        every = parts(left_out.count if left_out else training.held_out)
        parents = [base_artifact(recipe, fold, part) for part in every if part != left_out]
        parents += [] if left_out else [base]
        parents += [inner] if is_stored(inner) else []
        if left_out:
            own["training"] = replace(training, held_out=left_out.count)
    elif recipe.is_trained(name):
        usual = EpisodicOptions()
        own["training"] = replace(
            recipe.training_of(name, shots), **{key: getattr(usual, key) for key in CALIBRATOR_ONLY}
        )
        own["published"] = recipe.is_published(name)
    elif diam := recipe.diam(name):
        own = {"method": "diam", "diam": diam}
    if own["method"] not in (*WITHOUT_NOVEL_CLASSIFIER, "calibrator"):
        own["novel"] = recipe.novel
    if needed_levels(name):
        own["levels"] = recipe.levels
    shots_of = recipe.training_of(name, shots).shots
    words = f"{_words(recipe, fold)}-{name}-{shots_of}shot" + (f"-without-{left_out}" if left_out else "")
    return Artifact("method", words, own, tuple(parents), {**base.own, **own})


def is_stored(artifact: Artifact) -> bool:
    """Whether an artefact is something that is trained and kept."""
    return artifact.kind == "base" or "training" in artifact.own


@dataclass(frozen=True)
class Evaluation:
    """Methods on the same tasks.

    Attributes:
        shots: 0 for the base model alone on every val image.
        part: of the base classes that are the novel ones here, when settings are tuned.
    """

    recipe: Recipe
    fold: FoldName
    shots: int
    protocol: ProtocolName
    tasks: int
    seed: int
    part: Part | None = None

    def artifact(self, name: str) -> Artifact:
        """The evaluation of one method."""
        recipe = self.recipe
        method = method_artifact(recipe, self.fold, name, max(1, self.shots), self.part)
        own = {
            "method": name,
            "files": _fingerprint(recipe, "val"),
            "shots": self.shots,
            "protocol": self.protocol,
            "tasks": self.tasks,
            "seed": self.seed,
            "supports": recipe.supports,
            **self._support_area,
        }
        words = [name, f"{self.shots}shot", *([] if self.part else [self.protocol])]
        words += ["train-supports"] if recipe.supports == "train" else []
        words += ["large-supports"] if self._support_area else []
        base = base_artifact(recipe, self.fold, self.part)
        about = {**base.own, **method.own, "supports": recipe.supports, **self._support_area}
        return Artifact("evaluation", "-".join([*words, f"seed{self.seed}"]), own, (method, base), about)

    @property
    def _support_area(self) -> dict[str, int]:
        """Where it is not the usual one, so that records written before it could be chosen stay valid."""
        area = self.recipe.support_area
        return {} if area == MIN_AREA or self.protocol != "joint" else {"support_area": area}

    def record_path(self, out: Path, name: str) -> Path:
        """Where the record of a method is, or will be."""
        recipe, artifact = self.recipe, self.artifact(name)
        fold = ",".join(map(_plain, recipe.novel_classes)) or f"fold{self.fold}"
        place = f"{fold}{'-contiguous' if recipe.contiguous else ''}{f'-{self.part}' if self.part else ''}"
        folder = out / f"{recipe.data_name}-{_plain(recipe.encoder)}" / place
        return next(folder.glob(f"*-{artifact.identity}.json"), folder / f"{artifact.words}-{artifact.identity}.json")

    @property
    def words(self) -> str:
        """What is done, for people, after the names of the methods."""
        if not self.shots:
            return "on every val image"
        place = f" of the base classes held out, {self.part}" if self.part else ""
        return f"on {self.tasks:,} {self.protocol} tasks{place}, {shots_in_words(self.shots)} (seed {self.seed})"


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
        found = [
            Evaluation(recipe, fold, shots, protocol, tasks, seed, part)
            for shots in recipe.shots
            for protocol, tasks in recipe.protocols.items()
            for seed in recipe.seeds
            for part in left_out
            if fold != "all" and not (self.tuning and protocol != "paired")
        ]
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


def _words(recipe: Recipe, fold: FoldName) -> str:
    place = "-".join(map(_plain, recipe.novel_classes)) or (f"fold{fold}" if fold != "all" else "all")
    return f"{_plain(recipe.data_name)}-{place}-{_plain(recipe.encoder)}"


def _plain(name: str) -> str:
    """A name as part of a path, which it cannot lead out of.

    >>> _plain("hf:org/dinov2"), _plain("../../X"), _plain("traffic light")
    ('hf-org-dinov2', 'X', 'traffic-light')
    """
    return re.sub(r"[^\w.+@=]+", "-", name).strip("-.")[:80] or "unnamed"


@lru_cache(maxsize=64)
def data_fingerprint(data: str, root: Path | None, split: str) -> str:
    return open_dataset(data, root, split).fingerprint


def _fingerprint(recipe: Recipe, split: str) -> str:
    """Of the files of custom data; a public data set is known by its name."""
    return "" if recipe.data in PUBLIC_DATA else data_fingerprint(recipe.data, recipe.root, split)


def _checkpoint_hash(folder: Path) -> str:
    """Of a method's checkpoint."""
    if not (folder / "method.json").is_file():
        raise GfssError(f"{folder} is not the folder of a trained method; those of gfss are in trained/method")
    return str(read_json(folder / "method.json")["sha256"])[:12]


@lru_cache(maxsize=8)
def _weights_hash(path: Path | None) -> str:
    """Of a file of encoder weights; empty if they come with a package, or are not here."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12] if path and path.is_file() else ""
