"""Where recipes lie, and finding one by its name."""

from __future__ import annotations

from pathlib import Path

import gfss
from gfss.errors import unknown

SUFFIX = ".yaml"


def recipe_folder() -> Path:
    """The folder of recipes: the working folder's, else the project's, else the installed package's."""
    package = Path(gfss.__file__).parent
    places = (Path("recipes"), package.parents[1] / "recipes", package / "_recipes")
    return next((place for place in places if place.is_dir()), places[0])


def recipe_names() -> list[str]:
    """Names of all recipes, as ``frozen/pascal-lite0``."""
    folder = recipe_folder()
    return sorted(str(path.relative_to(folder).with_suffix("")) for path in folder.rglob(f"*{SUFFIX}"))


def find_recipe(name: str) -> Path:
    """The file of a recipe, from a path or a name."""
    if Path(name).is_file():
        return Path(name)
    plain = name.removesuffix(SUFFIX).removeprefix("recipes/")
    if plain not in recipe_names():
        raise unknown("recipe", name, recipe_names())
    return recipe_folder() / f"{plain}{SUFFIX}"
