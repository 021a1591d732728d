"""What lies on the disk: artefacts in a folder of runs, feature banks in the cache; what of it nothing needs."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gfss.common.errors import GfssError
from gfss.common.files import cache_folder, read_json
from gfss.evaluation.record_groups import differences, flat, with_later_options
from gfss.evaluation.records import read_records
from gfss.experiments.artifacts import COMPLETE, SPEC
from gfss.experiments.recipes import read_recipe, recipe_names
from gfss.experiments.steps import Plan


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


BANK, DAY = "bank.json", 86400


@dataclass(frozen=True)
class StoredBank:
    """A feature bank in the cache. Its description is written again whenever it is opened."""

    folder: Path

    @property
    def words(self) -> str:
        """What it holds."""
        if not (self.folder / BANK).exists():
            return "not complete"
        about = read_json(self.folder / BANK)
        return f"{about['data']}, {about['count']} images at {about['size']} px, {' '.join(about['channels'])}"

    @property
    def unused(self) -> float:
        """Days since it was opened or written to."""
        files = [path.stat().st_mtime for path in self.folder.iterdir()]
        return (time.time() - max(files, default=self.folder.stat().st_mtime)) / DAY

    @property
    def bytes(self) -> int:
        """Space that it takes."""
        return sum(path.stat().st_size for path in self.folder.iterdir())


def stored_banks() -> list[StoredBank]:
    """All feature banks, by name."""
    return [StoredBank(path) for path in sorted(cache_folder("banks").iterdir()) if path.is_dir()]


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


def remove(one: Stored | StoredBank) -> None:
    """Delete an artefact or a bank; its mark goes first, so that half of one is never taken for a whole one."""
    (one.folder / (COMPLETE if isinstance(one, Stored) else BANK)).unlink(missing_ok=True)
    shutil.rmtree(one.folder)


def needed_artifacts(folders: Sequence[Path] = (Path("results"), Path("tuning"))) -> set[str]:
    """Identities of all artefacts that the recipes at hand or the records in some folders name."""
    needed: set[str] = set()
    for name in recipe_names():
        recipe = read_recipe(name)
        for plan in (Plan(recipe), Plan(recipe, tuning=True)) if name.startswith("tuning/") else (Plan(recipe),):
            needed.update(identity for fold in recipe.folds for identity in plan.artifacts(fold))
    there = [folder for folder in folders if any(folder.rglob("*.json"))]
    return needed.union(*(record.artifacts for record in (read_records(there) if there else ())))
