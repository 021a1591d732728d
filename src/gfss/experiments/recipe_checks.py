"""What a recipe must not say: names that nobody knows, and settings that exclude each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gfss.common.errors import GfssError, unknown
from gfss.experiments.experiment import PUBLIC
from gfss.methods import CALIBRATOR_SUFFIXES, LEARNED, TRAINED, UNTRAINED, inner_method, needed_levels
from gfss.models.encoders import HUGGING_FACE, NAMES

if TYPE_CHECKING:
    from gfss.experiments.recipes import Recipe

HEAD_MAPS = ("pooled", "bottleneck")  # maps that the base model's head adds to the encoder's levels
LISTS = ("folds", "shots", "methods", "seeds")


def refuse_unknown_names(recipe: Recipe, name: str) -> None:
    """Methods, encoders and maps must exist; ``name`` is the recipe's, for the message."""
    own = [method for method in (*recipe.calibrators, *recipe.diams) if inner_method(method) == method]
    known = [*UNTRAINED, *TRAINED, *own]
    for method in (*recipe.methods, *recipe.per_method, *recipe.calibrators):
        if inner_method(method) not in known:
            raise unknown(f"method in {name}", method, [*known, *(f"NAME{suffix}" for suffix in CALIBRATOR_SUFFIXES)])
    if recipe.encoder not in NAMES and not recipe.encoder.startswith(HUGGING_FACE):
        raise unknown(f"encoder in {name}", recipe.encoder, NAMES)
    maps = (*recipe.levels, *HEAD_MAPS)
    wanted = {"base.levels": (recipe.base.levels, recipe.levels), "novel.features": (recipe.novel.features, maps)}
    wanted |= {f"calibrators.{method}.features": (o.features, maps) for method, o in recipe.calibrators.items()}
    for method in recipe.methods:
        options = recipe.calibrator(method)
        if options and (
            options.class_interaction or recipe.per_method.get(method, recipe.episodic).episodes is not None
        ):
            wanted[f"calibrators.{method}.compared"] = (options.compared, maps)
    for place, (asked, there) in wanted.items():
        for one in asked:
            if one not in there:
                raise unknown(f"map in '{place}' of {name}", one, there)
    for method in recipe.methods:
        for levels in needed_levels(method, recipe.published):
            if not set(levels) & set(recipe.levels):
                raise GfssError(
                    f"{name}: method '{method}' needs {' or '.join(levels)}, but 'levels' are only "
                    f"{', '.join(recipe.levels)}; add it there or leave the method out"
                )


def refuse_contradictions(recipe: Recipe, name: str) -> None:
    """Settings that exclude each other."""
    for words, wrong in {**_data_checks(recipe), **_model_checks(recipe)}.items():
        if wrong:
            raise GfssError(f"{name}: {words}")


def _data_checks(recipe: Recipe) -> dict[str, bool]:
    named = bool(recipe.novel_classes)
    return {
        "folds are 0 to 3": max(recipe.folds) > 3,
        f"'novel_classes' is for own data, not for {recipe.data}": named and recipe.data in PUBLIC,
        "'novel_classes' takes the place of several folds; leave 'folds' out": named and len(recipe.folds) > 1,
        f"'contiguous' is about the folds of coco, not of {recipe.data}": recipe.contiguous and recipe.data != "coco",
        **{f"'{key}' names something twice": _repeats(getattr(recipe, key)) for key in LISTS},
    }


def _model_checks(recipe: Recipe) -> dict[str, bool]:
    used = {*recipe.methods, *(inner_method(method) for method in recipe.methods)}
    named = dict.fromkeys((*recipe.calibrators, *recipe.per_method, *recipe.diams))
    unused = [name for name in named if name not in used]
    taken = [name for name in recipe.calibrators if name in UNTRAINED or name in LEARNED]
    others = {*UNTRAINED, *TRAINED, *recipe.calibrators} - {"diam"}
    taken += [name for name in recipe.diams if name in others or inner_method(name) != name]
    untrained = [method for method in recipe.per_method if not recipe.is_trained(method)]
    fixed = recipe.output_stride is not None and recipe.encoder.startswith(HUGGING_FACE)
    both = recipe.base.train_encoder and bool(recipe.base.frozen_until)
    return {
        f"the output stride of {recipe.encoder} is fixed; leave 'output_stride' out": fixed,
        "'base.train_encoder' trains the whole encoder, so 'base.frozen_until' contradicts it": both,
        f"'{', '.join(taken)}' is another method already; take a new name for its settings": bool(taken),
        f"'{', '.join(unused)}' has settings but is not among 'methods'": bool(unused),
        f"'per_method.{', '.join(untrained)}' is a method without training": bool(untrained),
    }


def _repeats(values: tuple[object, ...]) -> bool:
    return len(set(values)) < len(values)
