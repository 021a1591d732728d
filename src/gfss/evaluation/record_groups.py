"""Which records belong together: settings that tell systems apart, whatever their folds, seeds and tasks are."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gfss.evaluation.records import Record
from gfss.training.base import BaseOptions

# settings that tables average over, a part of the base classes that is held out (without), and nearly equal forms
VARYING = ("fold", "seed", "without", "low_rank")
OF_BASE_MODELS = (
    "base",
    "contiguous",
    "supports",
    "support_area",
)  # records that differ in these are never in one table
WORDS = {
    "base.train_encoder": {True: "encoder trained too", False: "encoder frozen"},
    "contiguous": {True: "contiguous folds", False: "interleaved folds"},
    "supports": {"train": "supports of the train list", "val": "supports of the val list"},
}


def flat(spec: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under names with dots."""
    found: dict[str, Any] = {}
    for key, value in spec.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def with_later_options(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A stored specification in which options of stage 1 that it does not know yet have their defaults."""
    base = spec.get("base")
    if not isinstance(base, Mapping):
        return dict(spec)
    return {**spec, "base": json.loads(json.dumps(asdict(BaseOptions()))) | dict(base)}


def settings_of(record: Record) -> dict[str, Any]:
    """The settings of a record under names with dots."""
    return flat(with_later_options(record.spec))


def split_settings(record: Record) -> tuple[str, str]:
    """The settings of a record without folds and seeds, and its seeds, as JSON."""
    settings = settings_of(record)
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


def by_base_models(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Records of one data set and encoder by how their base models and tasks were made, in words; "" if all are alike.

    Where some encoders were trained and others not, that says enough.
    """
    made = [{key: value for key, value in settings_of(record).items() if _of_base(key)} for record in records]
    differing = _differing(made)
    if "base.train_encoder" in differing:
        differing = [key for key in differing if key in WORDS]
    groups: dict[str, list[Record]] = {}
    for record, one in zip(records, made, strict=True):
        words = ", ".join(_words(key, one[key]) for key in differing if key in one)
        groups.setdefault(words, []).append(record)
    return groups


def differences(settings: Sequence[str]) -> list[str]:
    """For each of some settings, as JSON, its values where they are not all alike, in words.

    >>> differences(['{"rate": 1, "size": 417}', '{"rate": 2, "size": 417}', '{"size": 417}'])
    ['rate=1', 'rate=2', '']
    """
    given: list[Mapping[str, Any]] = [json.loads(one) for one in settings]
    differing = _differing(given)
    return [", ".join(f"{key}={_value(one[key])}" for key in differing if key in one) for one in given]


def _differing(given: Sequence[Mapping[str, Any]]) -> list[str]:
    keys = sorted({key for one in given for key in one})
    return [key for key in keys if len({json.dumps(one.get(key)) for one in given}) > 1]


def _of_base(key: str) -> bool:
    return key.partition(".")[0] in OF_BASE_MODELS and _last(key) not in VARYING


def _words(key: str, value: Any) -> str:
    return WORDS[key][value] if key in WORDS else f"{_last(key).replace('_', ' ')} {value}"


def _last(key: str) -> str:
    return key.split(".")[-1]


def _value(setting: object) -> str:
    return setting if isinstance(setting, str) else json.dumps(setting)
