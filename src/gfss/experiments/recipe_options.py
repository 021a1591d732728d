"""Options inside a recipe: a preset by name, or a preset with changes, checked key by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from gfss.common.errors import GfssError, unknown
from gfss.methods import inner_method
from gfss.methods.diam_options import CHOSEN, PUBLISHED, DiamOptions
from gfss.models.calibrators.options import CalibratorOptions
from gfss.models.novel import classifier as novel
from gfss.models.novel.classifier import NovelOptions
from gfss.training.base import BaseOptions
from gfss.training.episodic_options import EpisodicOptions

Options = TypeVar("Options", BaseOptions, NovelOptions, EpisodicOptions, CalibratorOptions, DiamOptions)

OF_METHODS = ("calibrators", "per_method", "diams")  # keys of a recipe that are tables by method

# section IV-B; the width and the resolution of the loss are not printed
NOVEL_PRESETS = {
    "frozen": novel.FROZEN,
    "paper": novel.PAPER,
}

DIAM_PRESETS = {"chosen": CHOSEN, "published": PUBLISHED}


def options_from(place: str, given: Any, presets: Mapping[str, Options], usual: str = "") -> Options:
    """Options from the name of a preset, or from a table with changes of one.

    Args:
        usual: preset that is changed if none is named; the first if left out.
    """
    changes = {"preset": given} if isinstance(given, str) else dict(table(place, given))
    name = changes.pop("preset", usual or next(iter(presets)))
    if name not in presets:
        raise unknown(f"preset of '{place}'", name, presets)
    known = [field.name for field in fields(presets[name])]
    for key in changes:
        if key not in known:
            raise unknown(f"key in '{place}'", key, ["preset", *known])
    try:
        return TypeAdapter(type(presets[name])).validate_python({**asdict(presets[name]), **changes})
    except ValidationError as error:
        raise GfssError(f"'{place}': {first_mistake(error)}") from None


def episodic_from(place: str, given: Any, presets: Mapping[str, EpisodicOptions]) -> EpisodicOptions:
    """Options of stage 2; shots and seed belong to the recipe as a whole."""
    for key in ("shots", "seed"):
        if isinstance(given, Mapping) and key in given:
            raise GfssError(f"'{place}.{key}' contradicts the recipe's own '{key}'; leave it out")
    return options_from(place, given, presets)


def about_methods(settings: Mapping[str, Any], methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What a recipe says of single methods (its keys :data:`OF_METHODS`), without that of methods not named.

    What a calibrator ``NAME+T`` stands on counts as named.
    """
    names = {*methods, *(inner_method(name) for name in methods)}
    tables = {key: settings[key] for key in OF_METHODS if isinstance(settings.get(key), Mapping)}
    return {key: {name: value for name, value in of.items() if name in names} for key, of in tables.items()}


def table(place: str, given: Any) -> Mapping[str, Any]:
    """A nested table of a recipe; refuses anything else."""
    if not isinstance(given, Mapping):
        raise GfssError(f"'{place}' is {given!r}, but should be a table of keys and values")
    return given


def first_mistake(error: ValidationError) -> str:
    """The first thing that is wrong, in words."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    if first["type"] == "missing":
        return f"'{place}' is missing"
    return f"'{place}' is {first['input']!r:.60}, but {first['msg'][0].lower()}{first['msg'][1:]}"
