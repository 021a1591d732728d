"""Where recipes lie, and finding one by its name."""

from __future__ import annotations

from pathlib import Path

import gfss
from gfss.errors import unknown

SUFFIX = ".yaml"


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
