"""Recipes: every file is valid, mistakes are answered with the place and the right name, contradictions are refused."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gfss.common.errors import GfssError
from gfss.data import own_path
from gfss.experiments.recipes import find_recipe, make_recipe, read_recipe, recipe_names, with_change
from gfss.experiments.spec import Recipe
from gfss.methods.diam_options import CHOSEN, PROGRAM, PUBLISHED
from gfss.models.calibrators.calibrator import AS_PRINTED, PAPER
from gfss.reporting.paper_tables import TABLES
from gfss.training import base, episodic_options

SMALL: dict[str, Any] = {"data": "pascal", "encoder": "lite0", "methods": ["nsf", "pcn-support"]}


def method(name: str, **options: Any) -> dict[str, Any]:
    """A change of the methods' table."""
    return {"methods": {name: options}}


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_file_is_valid_and_says_what_it_is(name: str) -> None:
    assert read_recipe(name).about


def test_the_recipes_of_all_tables_are_there() -> None:
    groups = {name.partition("/")[0] for name in recipe_names()}
    assert groups == {"paper", "frozen", "tuning", "scenes", "scenes-systems", "quickstart"}
    assert {recipe for table in TABLES.values() for recipe in table.recipes} <= set(recipe_names())


@pytest.mark.parametrize(("data", "epochs", "iterations"), [("pascal", 100, 10_000), ("coco", 20, 30_000)])
def test_paper_recipes_are_section_iv_b(data: str, epochs: int, iterations: int) -> None:
    recipe = read_recipe(f"paper/{data}-resnet50")
    stage1, stage2 = recipe.base, recipe.training_of("pcn", 1)
    assert (stage1.epochs, stage1.batch, stage1.rate, recipe.size) == (epochs, 12, 2.5e-3, 417)
    assert (stage1.optimiser, stage1.train_encoder, stage1.levels) == ("sgd", True, ("layer4",))
    assert (recipe.novel.steps, recipe.novel.rate, recipe.novel.features) == (50, 0.1, ("bottleneck",))
    assert (stage2.iterations, stage2.batch, stage2.rate, stage2.episodes) == (iterations, 8, 1e-2, None)
    assert recipe.calibrator("pcn") == PAPER
    assert dict(recipe.protocols) == {"paired": 1000}
    assert (recipe.output_stride, recipe.folds, recipe.shots) == (8, (0, 1, 2, 3), (1, 5))


@pytest.mark.parametrize(
    ("changes", "right"),
    [
        ({"encodr": "lite0"}, "encoder"),
        ({"base": {"epoch": 3}}, "base.epochs"),
        ({"base": {"preset": "papers"}}, "paper"),
        ({"novel": {"step": 3}}, "novel.steps"),
        ({"training": {"iteration": 3}}, "training.iterations"),
        (method("pcn-support", calibrator={"dimensions": 3}), "methods.pcn-support.calibrator.dimension"),
        (method("pcn-support", calibrator="pcn-as-printd"), "pcn-as-printed"),
        (method("pcn-support", trainin={}), "methods.pcn-support.training"),
        (method("diam", diam={"distilation_weight": 3}), "methods.diam.diam.distillation_weight"),
        (method("diam", diam="publish"), "published"),
        ({"methods": ["pcm"]}, "pcn"),
        ({"encoder": "lite00"}, "lite0"),
        ({"novel": {"features": ["layer33"]}}, "layer3"),
        ({"base": {"levels": ["layer44"]}}, "layer4"),
    ],
)
def test_a_wrong_name_is_answered_with_the_nearest(changes: dict[str, Any], right: str) -> None:
    with pytest.raises(GfssError, match=f"did you mean '{right}'"):
        make_recipe({**SMALL, **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"folds": [4]}, r"'folds\.0' is 4; expected at most 3"),
        ({"folds": [1, 1]}, "'folds' names something twice"),
        ({"methods": ["nsf", "nsf"]}, "'methods': a method is named twice"),
        ({"novel_classes": ["cat"]}, "for custom data"),
        ({"data": "mine", "novel_classes": ["cat"], "folds": [0, 1]}, "leave 'folds' out"),
        ({"contiguous": True}, "folds of coco"),
        ({"encoder": "hf:some/vit", "output_stride": 8}, "output stride"),
        ({"base": {"train_encoder": True, "frozen_until": "layer3"}}, "contradicts"),
        ({"base": {"optimiser": "adam"}}, "'base.optimiser' is 'adam'; expected 'sgd' or 'adamw'"),
        ({"training": {"shots": 5}}, "'training': its 'shots' would contradict the recipe's own"),
        (method("pcn-support", training={"seed": 5}), "its 'seed' would contradict the recipe's own"),
        (method("diam", diam={"iterations": "many"}), r"methods\.diam\.diam\.iterations"),
        (method("diam", diam={"iterations": 0}), "iterations"),
        (method("nsf", diam="published"), "'methods.nsf' is another method already"),
        (method("diam+T", diam="published"), "another method already"),
        (method("score", calibrator="pcn-as-printed"), "'methods.score' is another method already"),
        (method("nsf", training={"iterations": 3}), "the method has no training"),
        (method("nsf", published=True), "is only for acastle, capl, denet, pfenet, diam"),
        ({"training": {"episodes": 0}}, "episodes"),
        ({"base": {"label_stride": 0}}, "label_stride"),
        ({"novel": {"rate": -1}}, "rate"),
        ({"shots": [0]}, "shots.0"),
        ({"base": {"epochs": "many"}}, "'base.epochs' is 'many'"),
        ({"protocols": {"pared": 3}}, "protocols.pared.*'paired' or 'joint'"),
        ({"supports": "train"}, "joint protocol"),
        ({"base": 3}, "'base' is 3"),
        ({"base": {"preset": [1]}}, r"'base': a preset is named by a word, not by \[1\]; known: frozen"),
        (method("pcn", calibrator={"preset": {}}), "a preset is named by a word"),
        ({"methods": [["nsf"]]}, "names of methods are words"),
        ({"methods": {0: None}}, "names of methods are words"),
        (method("../../../x", calibrator="pcn"), "the method name '../../../x' would be part of a path"),
        ({"size": -7}, "'size' is -7; expected more than 0"),
        (method("nsf", **{"[None]": True}), r"unknown key 'methods\.nsf\.\[None\]'"),
        ({"training": {"held_out": 2**31}}, "'training.held_out' is 2147483648; expected at most 60"),
        ({"shots": [10**4000]}, "a whole number beyond 2\\^63; expected at most 9223372036854775807"),
        ({"data": "a\0b"}, "null character"),
        ({"about": "\ud800"}, "half a character"),
    ],
)
def test_contradictions_and_wrong_values_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(GfssError, match=words) as error:
        make_recipe({**SMALL, **changes})
    assert "\n" not in str(error.value)


def test_options_of_a_known_name_start_from_its_own() -> None:
    recipe = make_recipe({**SMALL, **method("pcn-as-printed", calibrator={"dimension": 8})})
    assert recipe.calibrator("pcn-as-printed") == replace(AS_PRINTED, dimension=8)
    assert make_recipe({**SMALL, **method("diam", diam={"iterations": 50})}).diam("diam") == replace(
        CHOSEN, iterations=50
    )
    assert make_recipe({**SMALL, **method("diam", published=True)}).diam("diam") == PROGRAM
    assert make_recipe({**SMALL, **method("diam")}).diam("diam") == CHOSEN


def test_fewer_methods_need_no_other_change() -> None:
    recipe = read_recipe("frozen/pascal-lite0-ablations", ["methods=[nsf, acastle, diam-published]"])
    assert recipe.evaluated == ("nsf", "acastle", "diam-published")
    assert recipe.training_of("acastle", 1).iterations == 600
    assert recipe.diam("diam-published") == PUBLISHED


def test_what_a_calibrator_stands_on_keeps_its_options() -> None:
    recipe = read_recipe("frozen/pascal-lite0-ablations", ["methods=acastle+T"])
    assert recipe.evaluated == ("acastle+T",)
    assert recipe.training_of("acastle", 1).iterations == 600
    again = read_recipe("frozen/pascal-lite0-ablations").only(["acastle+T"])
    assert (again.evaluated, again.training_of("acastle", 1).iterations) == (("acastle+T",), 600)


def test_a_missing_key_is_named() -> None:
    with pytest.raises(GfssError, match="'methods' is missing"):
        make_recipe({"data": "pascal", "encoder": "lite0"})


def test_changes_lead_into_nested_options(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump({**SMALL, "base": "paper"}))
    changes = ["base.epochs=3", "base.rate=1e-4", "folds=2", "protocols.joint=5"]
    recipe = read_recipe(path, [*changes, "methods.pcn-support.calibrator.heads=4"])
    assert recipe.base == replace(base.PAPER, epochs=3, rate=1e-4)
    assert recipe.folds == (2,)
    assert dict(recipe.protocols) == {"joint": 5}
    assert (recipe.calibrator("pcn-support") or AS_PRINTED).heads == 4
    later = read_recipe(path, ["methods=pcn-support", "methods.pcn-support.training.iterations=4"])
    assert later.training_of("pcn-support", 1).iterations == 4


def test_a_change_without_value_is_refused() -> None:
    with pytest.raises(GfssError, match="key=value"):
        with_change({}, "base.epochs")


@pytest.mark.parametrize("text", ["- a list", "a: [", "", "[" * 2000, "a: 2001-99-99", f"a: {'9' * 5000}"])
def test_files_that_hold_no_recipe_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(GfssError, match=r"bad\.yaml"):
        read_recipe(tmp_path / "bad.yaml")


@pytest.mark.parametrize("key", ["folds", "base: {preset", "base: {epochs", "methods"])
def test_aliases_that_stand_for_a_billion_values_are_not_written_out(key: str, tmp_path: Path) -> None:
    lines = ["x0: &x0 [1]", *(f"x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 9)}]" for i in range(1, 10))]
    changed = f"{key}: *x9{'}' if '{' in key else ''}"
    (tmp_path / "bad.yaml").write_text("\n".join([*lines, "data: scenes", "encoder: tiny", changed]))
    with pytest.raises(GfssError) as error:
        read_recipe(tmp_path / "bad.yaml")
    assert len(str(error.value)) < 500


def test_data_whose_name_is_too_long_for_a_file_is_unknown() -> None:
    with pytest.raises(GfssError, match="unknown data set"):
        own_path("a" * 5000)


def test_an_unknown_recipe_gets_the_nearest_name() -> None:
    with pytest.raises(GfssError, match="did you mean 'frozen/pascal-lite0'"):
        find_recipe("frozen/pascl-lite0")


def test_options_of_a_method_are_the_recipes_with_its_own_changes() -> None:
    own = {"nsf": None, "acastle": None, "pcn-support": {"training": {"iterations": 5}}}
    recipe = make_recipe({**SMALL, "seed": 7, "training": "paper", "methods": own})
    changed = recipe.training_of("pcn-support", 5)
    assert (changed.iterations, changed.shots, changed.seed, changed.rate) == (5, 5, 7, episodic_options.PAPER.rate)
    assert recipe.training_of("acastle", 1).iterations == episodic_options.PAPER.iterations
    assert recipe.training_of("acastle", 5).shots == 1  # one training serves any number of shots
    assert recipe.only(trained_shots=2).training_of("pcn-support", 5).shots == 2


def test_the_python_interface_is_the_same_specification() -> None:
    recipe = Recipe(data="pascal", encoder="lite0", base="paper", methods=["nsf"])  # type: ignore[arg-type]
    assert recipe == make_recipe({**SMALL, "base": asdict(base.PAPER), "methods": {"nsf": {}}})


def test_an_own_folder_of_recipes_does_not_hide_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "recipes" / "frozen").mkdir(parents=True)
    own = tmp_path / "recipes" / "mine.yaml"
    own.write_text("data: scenes")
    monkeypatch.chdir(tmp_path)
    assert find_recipe("mine").resolve() == own
    assert find_recipe("frozen/pascal-lite0").is_file()
    assert {"mine", "frozen/pascal-lite0"} <= set(recipe_names())
