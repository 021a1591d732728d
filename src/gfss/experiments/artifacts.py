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
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from gfss.common.errors import GfssError
from gfss.common.files import read_json, write_json
from gfss.evaluation.record_groups import differences, flat, with_later_options

Kind = Literal["base", "method", "evaluation"]
FORMATS: dict[Kind, int] = {"base": 1, "method": 1, "evaluation": 1}
SPEC, COMPLETE = "spec.json", "complete.json"


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
class Stored:
    """An artefact that lies in a folder of runs, from its specification there."""

    folder: Path
    kind: str
    parents: tuple[str, ...]
    spec: Mapping[str, Any]

    @property
    def identity(self) -> str:
        return self.folder.name.rpartition("-")[2]

    @property
    def is_complete(self) -> bool:
        return (self.folder / COMPLETE).exists()

    @property
    def bytes(self) -> int:
        """Space that it takes."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())


def stored_artifacts(runs: Path) -> list[Stored]:
    """All artefacts below a folder of runs, by kind and name."""
    found: list[Stored] = []
    for path in sorted(runs.glob(f"*/*/{SPEC}")):
        content = read_json(path)
        try:
            spec = with_later_options(content["spec"])
            found.append(Stored(path.parent, content["kind"], tuple(content["parents"]), spec))
        except (KeyError, TypeError, AttributeError):
            raise GfssError(f"{path} is not a specification of gfss; remove its folder") from None
    return found


def distinguishing(artifacts: Sequence[Stored]) -> list[str]:
    """For every artefact of one kind the settings in which it is not like all others, in words."""
    return differences([json.dumps(flat(one.spec)) for one in artifacts])


def unneeded(artifacts: Sequence[Stored], needed: Iterable[str]) -> list[Stored]:
    """Artefacts that are neither needed themselves nor parents of one that is."""
    parents = {one.identity: one.parents for one in artifacts}
    keep, left = set[str](), list(needed)
    while left:
        identity = left.pop()
        if identity not in keep:
            keep.add(identity)
            left += parents.get(identity, ())
    return [one for one in artifacts if one.identity not in keep]


def remove(artifact: Stored) -> None:
    """Delete an artefact; its mark goes first, so that half of one is never taken for a whole one."""
    (artifact.folder / COMPLETE).unlink(missing_ok=True)
    shutil.rmtree(artifact.folder)
