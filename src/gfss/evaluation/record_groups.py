"""Records that were made and examined alike, told apart from those of other base models, folds or supports."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gfss.evaluation.records import Record

USUAL = {"train_encoder": False, "contiguous": False, "supports": "val"}  # where a record does not say
WORDS = {
    "train_encoder": {True: "encoder trained too", False: "encoder frozen"},
    "contiguous": {True: "contiguous folds", False: "interleaved folds"},
    "supports": {"train": "supports of the train list", "val": "supports of the val list"},
}


def families(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Records of one data set and encoder by how they were made and examined, in words; "" if all are alike.

    Settings that some records do not have, from before these existed, and seeds make no difference.
    """
    made = [_made(record) for record in records]
    known = [one for one in made if "train_encoder" in one]
    common = set.intersection(*(set(one) for one in known)) if known else {"contiguous", "supports"}
    differing = sorted(key for key in common if len({json.dumps(one[key]) for one in known or made}) > 1)
    if "train_encoder" in differing:  # says enough of base models
        differing = [key for key in differing if key in USUAL]
    groups: dict[str, list[Record]] = {}
    for record, one in zip(records, made, strict=True):
        words = ", ".join(_words(key, one[key]) for key in differing if key in one)
        groups.setdefault(words, []).append(record)
    return groups


def _made(record: Record) -> dict[str, Any]:
    """How a record's base model was trained, nothing for methods that look at none, and what it was examined on."""
    base = record.recipe.get("base")
    made = {"train_encoder": USUAL["train_encoder"], **base} if isinstance(base, dict) else {}
    made.pop("seed", None)
    return made | {key: record.recipe.get(key, USUAL[key]) for key in ("contiguous", "supports")}


def _words(key: str, value: Any) -> str:
    return WORDS[key][value] if key in WORDS else f"{key.replace('_', ' ')} {value}"
