"""Artefacts: what an experiment makes and keeps, named by a hash of everything that it depends on.

    runs/<kind>/<readable words>-<identity>/
        spec.json        what it is made from, and the identities of its parents
        complete.json    the mark that it is complete, with what it cost

Another option is another artefact in another folder, so nothing is ever compared or refused: an artefact is done if its
folder is complete. An option at its default does not enter the identity, so that options that are added later leave
older artefacts valid; whoever changes a default, or what training makes of the same options, raises the number in
:data:`FORMATS`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

from gfss.common.errors import GfssError
from gfss.common.files import read_json, write_json
from gfss.data import NAMES as PUBLIC_DATA
from gfss.data import open_dataset
from gfss.data.datasets.base import MIN_AREA
from gfss.data.episodes import shots_in_words
from gfss.evaluation.protocols import ProtocolName
from gfss.experiments.recipes import find_weights
from gfss.experiments.spec import Recipe
from gfss.methods import LEARNED, SOURCES, inner_method, needed_levels
from gfss.training.episodic_options import CALIBRATOR_ONLY, EpisodicOptions

Kind = Literal["base", "method", "evaluation"]
FORMATS: dict[Kind, int] = {"base": 1, "method": 1, "evaluation": 1}
SPEC, COMPLETE = "spec.json", "complete.json"
FoldName = int | Literal["all"]
WITHOUT_NOVEL_CLASSIFIER = (
    *("base", "npf", "npf-fitted", "imprint", "imprint-centred", "bcm-published", "diam"),
    *LEARNED,
)


@dataclass(frozen=True, eq=False)
class Artifact:
    """Something that is made once.

    Attributes:
        words: readable part of the folder's name.
        own: what it depends on besides its parents, options as dataclasses.
        parents: what it is made from.
        about: ``own`` together with what the parents are about, to be written down.
    """

    kind: Kind
    words: str
    own: Mapping[str, Any]
    parents: tuple[Artifact, ...] = ()
    about: Mapping[str, Any] | None = None

    @cached_property
    def identity(self) -> str:
        """Hash of all that it depends on."""
        parents = [parent.identity for parent in self.parents]
        content = [self.kind, FORMATS[self.kind], plain(self.own, changed_only=True), parents]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def spec(self) -> dict[str, Any]:
        """All options in full, as JSON."""
        return plain(self.own if self.about is None else self.about)

    def folder(self, runs: Path) -> Path:
        """Where it lies, or will."""
        place = runs / self.kind
        return next(place.glob(f"*-{self.identity}"), place / f"{self.words}-{self.identity}")

    def is_complete(self, runs: Path) -> bool:
        """Whether it is done."""
        return (self.folder(runs) / COMPLETE).exists()

    def begin(self, runs: Path) -> Path:
        """Its folder, with its specification inside."""
        folder = self.folder(runs)
        parents = [parent.identity for parent in self.parents]
        write_json(folder / SPEC, {"kind": self.kind, "parents": parents, "spec": self.spec})
        return folder

    def complete(self, runs: Path, cost: Mapping[str, Any]) -> None:
        """Mark it as done."""
        write_json(self.folder(runs) / COMPLETE, dict(cost))


def plain(value: Any, changed_only: bool = False) -> Any:
    """Nested options as JSON.

    Args:
        changed_only: leave out fields of options that have their default value.
    """
    if is_dataclass(value) and not isinstance(value, type):
        named = {field.name: (field, getattr(value, field.name)) for field in fields(value)}
        return {
            name: plain(one, changed_only)
            for name, (field, one) in named.items()
            if not (changed_only and plain(one) == plain(_default(field)))
        }
    if isinstance(value, Mapping):
        return {str(key): plain(one, changed_only) for key, one in value.items()}
    return [plain(one, changed_only) for one in value] if isinstance(value, list | tuple) else value


def _default(field: Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


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


def evaluations(recipe: Recipe, fold: FoldName, left_out: Sequence[Part | None] = (None,)) -> list[Evaluation]:
    """Everything that is evaluated on a fold; nothing on one without novel classes.

    Args:
        left_out: parts of the base classes that are the novel ones.
    """
    return [
        Evaluation(recipe, fold, shots, protocol, tasks, seed, part)
        for shots in recipe.shots
        for protocol, tasks in recipe.protocols.items()
        for seed in recipe.seeds
        for part in left_out
        if fold != "all" and not (part and protocol != "paired")
    ]
