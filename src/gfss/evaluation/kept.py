"""Results so far: an interrupted evaluation goes on where it stopped, and a longer one where a shorter one ended."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from gfss.errors import GfssError
from gfss.evaluation.results import Result
from gfss.files import cache_folder, read_json, write_json

KEEP_SECONDS = 60


@dataclass
class Kept:
    """Results of the first tasks of an evaluation, in a file.

    Attributes:
        path: named by all that the results depend on (:func:`kept_results`).
    """

    path: Path
    _kept: float = field(default_factory=time.monotonic)

    def restore(self, results: Mapping[str, Result], most: int) -> int:
        """Fill in what is known of the first tasks, how many they are; none if the file is torn or holds too many."""
        blank = {name: result.state() for name, result in results.items()}
        try:
            content = read_json(self.path)
            if (done := int(content["tasks"])) > most:
                return 0
            for name, result in results.items():
                result.restore(content["results"][name])
        except (GfssError, KeyError, TypeError, ValueError, RuntimeError):
            for name, result in results.items():
                result.restore(blank[name])
            return 0
        return done

    def keep(self, results: Mapping[str, Result], tasks: int, complete: bool = False) -> None:
        """Write the results of the first tasks, at most once a minute until they are complete."""
        if complete or time.monotonic() - self._kept >= KEEP_SECONDS:
            states = {name: result.state() for name, result in results.items()}
            write_json(self.path, {"tasks": tasks, "results": states})
            self._kept = time.monotonic()


@cache
def program_hash() -> str:
    """Changes with every line of code that results could depend on, so that none of an older program is taken."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for folder in ("data", "evaluation", "methods", "models", "training"):
        for path in sorted((package / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def kept_results(about: Mapping[str, Any]) -> Kept:
    """Where the results of an evaluation are kept.

    Args:
        about: everything that they depend on but the number of tasks and the program itself, as JSON.
    """
    key = hashlib.sha256(json.dumps([about, program_hash()], sort_keys=True).encode()).hexdigest()[:20]
    return Kept(cache_folder("evaluations") / f"{key}.json")
