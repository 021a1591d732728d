"""Settings of records: what tells one system from another, whatever its folds, seeds and tasks are."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gfss.evaluation.records import Record

VARYING = ("fold", "seed", "low_rank")  # settings that tables average over; a low rank changes figures by 0.02 at most


def split_settings(record: Record) -> tuple[str, str]:
    """The settings of a record's recipe without folds and seeds, and its seeds, as JSON."""
    settings = _flat(record.recipe)
    seeds = {"": record.seed} | {key: value for key, value in settings.items() if _last(key) == "seed"}
    others = {key: value for key, value in settings.items() if _last(key) not in VARYING}
    return json.dumps(others, sort_keys=True), json.dumps(seeds, sort_keys=True)


def by_settings(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Records of one method by their settings; of a fold and seed only the one with most tasks."""
    groups: dict[str, dict[tuple[object, str], Record]] = {}
    for record in records:
        settings, seeds = split_settings(record)
        group = groups.setdefault(settings, {})
        known = group.get((record.fold, seeds))
        if known is None or known.tasks < record.tasks:
            group[record.fold, seeds] = record
    return {settings: list(group.values()) for settings, group in groups.items()}


def differences(settings: Sequence[str]) -> list[str]:
    """For each of some settings, as JSON, its values where they are not all alike, in words.

    A setting that is not there says nothing: the record is of a time when there was no choice.

    >>> differences(['{"rate": 1, "size": 417}', '{"rate": 2, "size": 417}', '{"size": 417}'])
    ['rate=1', 'rate=2', '']
    """
    given: list[Mapping[str, Any]] = [json.loads(one) for one in settings]
    keys = sorted({key for one in given for key in one})
    differing = [key for key in keys if len({json.dumps(one.get(key)) for one in given}) > 1]
    return [", ".join(f"{key}={_value(one[key])}" for key in differing if key in one) for one in given]


def _flat(recipe: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under names with dots."""
    flat: dict[str, Any] = {}
    for key, value in recipe.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _last(key: str) -> str:
    return key.split(".")[-1]


def _value(setting: object) -> str:
    return setting if isinstance(setting, str) else json.dumps(setting)
