"""Recipes as files: finding one by its name, reading it with changes, checking it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

import gfss
from gfss.common.errors import GfssError, unknown
from gfss.experiments.recipe_checks import refuse_contradictions, refuse_unknown_names
from gfss.experiments.recipe_options import about_methods, first_mistake, table
from gfss.experiments.recipes import Recipe

SUFFIX = ".yaml"
LISTS = ("folds", "shots", "seeds", "levels", "methods")  # keys with several values


def recipe_folders() -> list[Path]:
    """Folders of recipes, own ones first: the working folder's, the project's, the installed package's."""
    package = Path(gfss.__file__).parent
    places = (Path("recipes"), package.parents[1] / "recipes", package / "_recipes")
    return [folder for folder in places if folder.is_dir()]


def recipe_names() -> list[str]:
    """Names of all recipes, as ``frozen/pascal-lite0``."""
    found = ((folder, path) for folder in recipe_folders() for path in folder.rglob(f"*{SUFFIX}"))
    return sorted({path.relative_to(folder).with_suffix("").as_posix() for folder, path in found})


def find_recipe(name: str) -> Path:
    """The file of a recipe, from a path or a name."""
    if Path(name).is_file():
        return Path(name)
    plain = name.removesuffix(SUFFIX).removeprefix("recipes/")
    files = (folder / f"{plain}{SUFFIX}" for folder in recipe_folders())
    found = next((file for file in files if file.is_file()), None)
    if found is None:
        raise unknown("recipe", name, recipe_names())
    return found


def read_recipe(path: Path, changes: Sequence[str] = ()) -> Recipe:
    """A recipe file, with changes as ``key=value``; keys with dots lead into nested options."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise GfssError(f"cannot read the recipe {path}: {(error.strerror or '').lower()}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise GfssError(f"{path} is not valid YAML ({' '.join(str(error).split())})") from None
    if not isinstance(content, dict):
        raise GfssError(f"{path} holds no recipe; it should be a table of keys such as data, encoder and methods")
    for change in changes:
        content = with_change(content, change)
        if change.partition("=")[0].strip() == "methods":
            methods = content["methods"]
            content |= about_methods(content, [methods] if isinstance(methods, str) else list(methods or ()))
    return make_recipe(content, str(path))


def make_recipe(content: Mapping[str, Any], name: str = "the recipe") -> Recipe:
    """Check a recipe; the first thing that is wrong is said in one sentence."""
    for key in content:
        if key not in Recipe.model_fields:
            raise unknown(f"key in {name}", key, Recipe.model_fields)
    try:
        recipe = Recipe.model_validate(dict(content))
    except ValidationError as error:
        raise GfssError(f"{name}: {first_mistake(error)}") from None
    refuse_unknown_names(recipe, name)
    refuse_contradictions(recipe, name)
    return recipe


def with_change(content: Mapping[str, Any], change: str) -> dict[str, Any]:
    """A recipe's content with one ``key=value`` applied.

    >>> with_change({"base": "paper"}, "base.epochs=2")
    {'base': {'preset': 'paper', 'epochs': 2}}
    >>> with_change({}, "methods=nsf,pcn")
    {'methods': ['nsf', 'pcn']}
    """
    key, equals, text = change.partition("=")
    if not equals or not key.strip():
        raise GfssError(f"'{change}' is not a change of a recipe; write it as key=value, for instance base.epochs=2")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise GfssError(f"the value of '{change}' is not readable; write a number, a word or a list [0, 1]") from None
    if key.strip() in LISTS and isinstance(value, str) and "," in value:  # as other commands take several names
        value = yaml.safe_load(f"[{text}]")
    return _placed(content, key.strip().split("."), value)


def _placed(content: Mapping[str, Any], keys: Sequence[str], value: Any) -> dict[str, Any]:
    first, *rest = keys
    if not rest:
        return {**content, first: value}
    inside = content.get(first, {})
    if isinstance(inside, str):
        inside = {"preset": inside}
    return {**content, first: _placed(table(first, inside), rest, value)}
