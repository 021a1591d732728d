"""Results so far: an interrupted evaluation goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gfss.common.errors import GfssError
from gfss.common.files import cache_folder, program_hash, read_json, write_json
from gfss.evaluation.results import MethodResult

KEEP_SECONDS = 60
CODE = ("common", "data", "models", "features", "methods", "training", "evaluation")  # what results could depend on


@dataclass
class Kept:
    """Results of the first tasks of an evaluation, in a file.

    Attributes:
        path: named by all that the results depend on (:func:`kept_results`).
    """

    path: Path
    _written: float = field(default_factory=time.monotonic)
    _most: int = 0

    def restore(self, results: dict[str, MethodResult], most: int) -> int:
        """Fill in what is known of the first tasks; how many they are, none if the file is torn or knows too many.

        Args:
            most: tasks that are asked for.
        """
        self._most = most
        known = deepcopy(results)
        try:
            content = read_json(self.path)
            done = int(content["tasks"])
            for name, result in known.items():
                result.restore(content["results"][name])
        except (GfssError, KeyError, TypeError, ValueError, RuntimeError):
            return 0
        if done > most:
            return 0
        results.update(known)
        return done

    def keep(self, results: Mapping[str, MethodResult], tasks: int, complete: bool = False) -> None:
        """Write the results of the first tasks, at most once a minute unless they are complete.

        A file that knows more tasks stays: another evaluation of the same may go on, or be taken up later.
        """
        if complete or time.monotonic() - self._written >= KEEP_SECONDS:
            if self._known() < tasks:
                states = {name: result.state() for name, result in results.items()}
                write_json(self.path, {"tasks": tasks, "results": states})
            self._written = time.monotonic()

    def remove(self) -> None:
        """The records are written; another evaluation computes everything again."""
        if self._known() <= self._most:
            self.path.unlink(missing_ok=True)

    def _known(self) -> int:
        """Tasks that the file knows; 0 if there is none, or a torn one."""
        try:
            return int(read_json(self.path)["tasks"])
        except (GfssError, KeyError, TypeError, ValueError):
            return 0


def kept_results(about: Mapping[str, Any]) -> Kept:
    """Where the results of an evaluation are kept until it is complete.

    Args:
        about: everything that they depend on but the program itself and the number of tasks, as JSON: what was meant
            for many tasks may be finished with fewer.
    """
    key = hashlib.sha256(json.dumps([about, program_hash(*CODE)], sort_keys=True).encode()).hexdigest()[:20]
    return Kept(cache_folder("evaluations") / f"{key}.json")
