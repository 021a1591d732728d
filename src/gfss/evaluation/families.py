"""Records whose base models were made alike, told apart from those of other base models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gfss.evaluation.records import Record

TRAINED_WORDS = {True: "encoder trained too", False: "encoder frozen"}


def families(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Records of one data set and encoder by how their base models were trained, in words; "" if all are alike.

    Settings that some records do not have, from before these existed, and seeds make no difference.
    """
    made = [_made(record) for record in records]
    known = [base for base in made if base is not None]
    common = set.intersection(*(set(base) for base in known)) if known else set()
    differing = sorted(key for key in common if len({json.dumps(base[key]) for base in known}) > 1)
    if "train_encoder" in differing:  # says enough
        differing = ["train_encoder"]
    groups: dict[str, list[Record]] = {}
    for record, base in zip(records, made, strict=True):
        words = "" if base is None else ", ".join(_words(key, base[key]) for key in differing)
        groups.setdefault(words, []).append(record)
    return groups


def _made(record: Record) -> dict[str, Any] | None:
    """How a record's base model was trained, None for methods that look at none."""
    base = record.recipe.get("base")
    return {key: value for key, value in base.items() if key != "seed"} if isinstance(base, dict) else None


def _words(key: str, value: Any) -> str:
    return TRAINED_WORDS[bool(value)] if key == "train_encoder" else f"{key.replace('_', ' ')} {value}"
