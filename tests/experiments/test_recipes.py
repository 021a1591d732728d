"""Recipes: every file is valid, mistakes are answered with the nearest right name, contradictions are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gfss.common.errors import GfssError
from gfss.experiments.recipe_files import find_recipe, make_recipe, read_recipe, recipe_names, with_change
from gfss.methods.diam_options import CHOSEN, PUBLISHED
from gfss.models.calibrators.options import AS_PRINTED, PAPER, PRESETS
from gfss.reporting.paper_tables import TABLES
from gfss.training import base, episodic_options

SMALL: dict[str, Any] = {"data": "pascal", "encoder": "lite0", "methods": ["nsf", "pcn-support"]}


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_file_is_valid_and_says_what_it_is(name: str) -> None:
    assert read_recipe(find_recipe(name)).about


def test_there_are_both_families_and_the_scenes() -> None:
    families = {name.partition("/")[0] for name in recipe_names()}
    assert families == {"paper", "frozen", "tuning", "scenes", "scenes-systems"}
    assert {recipe for table in TABLES.values() for recipe in table.recipes} <= set(recipe_names())


@pytest.mark.parametrize(("data", "epochs", "iterations"), [("pascal", 100, 10_000), ("coco", 20, 30_000)])
def test_paper_recipes_are_section_iv_b(data: str, epochs: int, iterations: int) -> None:
    recipe = read_recipe(find_recipe(f"paper/{data}-resnet50"))
    stage1, stage2 = recipe.base, recipe.training("pcn", 1)
    assert (stage1.epochs, stage1.batch, stage1.rate, recipe.size) == (epochs, 12, 2.5e-3, 417)
    assert (stage1.optimiser, stage1.train_encoder, stage1.levels) == ("sgd", True, ("layer4",))
    assert (recipe.novel.steps, recipe.novel.rate, recipe.novel.features) == (50, 0.1, ("bottleneck",))
    assert (stage2.iterations, stage2.batch, stage2.rate, stage2.episodes) == (iterations, 8, 1e-2, None)
    assert recipe.calibrator("pcn") == PAPER
    assert dict(recipe.protocols) == {"paired": 1000}
    assert (recipe.output_stride, recipe.folds, recipe.shots) == (8, (0, 1, 2, 3), (1, 5))


@pytest.mark.parametrize(
    ("key", "wrong", "right"),
    [
        ("encodr", "lite0", "encoder"),
        ("base", {"epoch": 3}, "epochs"),
        ("base", {"preset": "papers"}, "paper"),
        ("novel", {"step": 3}, "steps"),
        ("episodic", {"iteration": 3}, "iterations"),
        ("calibrators", {"pcn-support": {"dimensions": 3}}, "dimension"),
        ("calibrators", {"pcn-support": "pcn-as-printd"}, "pcn-as-printed"),
        ("diams", {"diam": {"distilation_weight": 3}}, "distillation_weight"),
        ("diams", {"diam": "publish"}, "published"),
        ("methods", ["pcm"], "pcn"),
        ("encoder", "lite00", "lite0"),
        ("novel", {"features": ["layer33"]}, "layer3"),
        ("base", {"levels": ["layer44"]}, "layer4"),
    ],
)
def test_a_wrong_name_is_answered_with_the_nearest(key: str, wrong: object, right: str) -> None:
    with pytest.raises(GfssError, match=f"did you mean '{right}'"):
        make_recipe({**SMALL, key: wrong})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"folds": [4]}, "folds are 0 to 3"),
        ({"folds": [1, 1]}, "'folds' names something twice"),
        ({"novel_classes": ["cat"]}, "for own data"),
        ({"data": "mine", "novel_classes": ["cat"], "folds": [0, 1]}, "leave 'folds' out"),
        ({"contiguous": True}, "folds of coco"),
        ({"encoder": "hf:some/vit", "output_stride": 8}, "output stride"),
        ({"base": {"train_encoder": True, "frozen_until": "layer3"}}, "contradicts"),
        ({"episodic": {"shots": 5}}, "contradicts the recipe's own 'shots'"),
        ({"calibrators": {"linear": "pcn-as-printed"}}, "not among 'methods'"),
        ({"diams": {"diam-30": {"distillation_weight": 30}}}, "not among 'methods'"),
        ({"diams": {"diam": {"iterations": "many"}}, "methods": ["diam"]}, "iterations"),
        ({"diams": {"diam": {"iterations": 0}}, "methods": ["diam"]}, "iterations"),
        ({"diams": {"nsf": "published"}, "methods": ["nsf"]}, "'nsf' is another method already"),
        ({"diams": {"diam+T": "published"}, "methods": ["diam+T"]}, "another method already"),
        ({"calibrators": {"score": "pcn-as-printed"}, "methods": ["score"]}, "'score' is another method already"),
        ({"episodic": {"episodes": 0}}, "episodes"),
        ({"base": {"label_stride": 0}}, "label_stride"),
        ({"novel": {"rate": -1}}, "rate"),
        ({"per_method": {"nsf": {"iterations": 3}}}, "without training"),
        ({"shots": [0]}, "shots.0"),
        ({"base": {"epochs": "many"}}, "epochs"),
        ({"protocols": {"pared": 3}}, "protocols"),
        ({"base": 3}, "table of keys"),
    ],
)
def test_contradictions_and_wrong_values_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(GfssError, match=words) as error:
        make_recipe({**SMALL, **changes})
    assert "\n" not in str(error.value)


def test_options_of_a_known_name_start_from_its_own() -> None:
    recipe = make_recipe({**SMALL, "methods": ["pcn-as-printed"], "calibrators": {"pcn-as-printed": {"dimension": 8}}})
    assert recipe.calibrator("pcn-as-printed") == replace(AS_PRINTED, dimension=8)
    diam = {"methods": ["diam"], "diams": {"diam": {"iterations": 50}}}
    assert make_recipe({**SMALL, **diam}).diam("diam") == replace(CHOSEN, iterations=50)
    assert make_recipe({**SMALL, **diam, "published": True}).diam("diam") == replace(PUBLISHED, iterations=50)


def test_fewer_methods_need_no_other_change() -> None:
    recipe = read_recipe(find_recipe("frozen/pascal-lite0-ablations"), ["methods=[nsf, acastle, diam-published]"])
    assert recipe.methods == ("nsf", "acastle", "diam-published")
    assert (set(recipe.per_method), set(recipe.calibrators), set(recipe.diams)) == (
        {"acastle"}, set(), {"diam-published"},
    )  # fmt: skip
    with pytest.raises(GfssError, match="not among 'methods'"):
        read_recipe(find_recipe("frozen/pascal-lite0"), ["methods=nsf", "per_method.capl.iterations=3"])


def test_what_a_calibrator_stands_on_may_have_settings() -> None:
    recipe = make_recipe({**SMALL, "methods": ["acastle+T"], "per_method": {"acastle": {"iterations": 3}}})
    assert recipe.training("acastle", 1).iterations == 3


def test_published_width_is_a_setting_of_the_systems_that_have_one() -> None:
    wide, usual = (make_recipe({**SMALL, "methods": ["denet", "nsf"], "published": value}) for value in (True, False))
    assert wide.settings("denet", 1)["training"]["published"] is True
    assert usual.settings("denet", 1)["training"]["published"] is False
    assert wide.settings("nsf", 1) == usual.settings("nsf", 1)


def test_a_missing_key_is_named() -> None:
    with pytest.raises(GfssError, match="'methods' is missing"):
        make_recipe({"data": "pascal", "encoder": "lite0"})


def test_changes_lead_into_nested_options(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump({**SMALL, "base": "paper"}))
    changes = ["base.epochs=3", "base.rate=1e-4", "folds=2", "protocols.joint=5", "calibrators.pcn-support.heads=4"]
    recipe = read_recipe(path, changes)
    assert recipe.base == base.BaseOptions(**{**vars(base.PAPER), "epochs": 3, "rate": 1e-4})
    assert recipe.folds == (2,)
    assert dict(recipe.protocols) == {"joint": 5}
    assert (recipe.calibrator("pcn-support") or AS_PRINTED).heads == 4


def test_a_change_without_value_is_refused() -> None:
    with pytest.raises(GfssError, match="key=value"):
        with_change({}, "base.epochs")


@pytest.mark.parametrize("text", ["- a list", "a: [", ""])
def test_files_that_hold_no_recipe_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(GfssError, match=r"bad\.yaml"):
        read_recipe(tmp_path / "bad.yaml")


def test_an_unknown_recipe_gets_the_nearest_name() -> None:
    with pytest.raises(GfssError, match="did you mean 'frozen/pascal-lite0'"):
        find_recipe("frozen/pascal-lite")


def test_options_of_a_method_are_the_recipes_with_its_own_changes() -> None:
    content = {**SMALL, "seed": 7, "episodic": "paper", "per_method": {"pcn-support": {"iterations": 5}}}
    recipe = make_recipe(content)
    own = recipe.training("pcn-support", 5)
    assert (own.iterations, own.shots, own.seed, own.rate) == (5, 5, 7, episodic_options.PAPER.rate)
    assert recipe.training("acastle", 1).iterations == episodic_options.PAPER.iterations
    assert recipe.settings("pcn-support", 5)["training"]["calibrator"]["kind"] == PRESETS["pcn-support"].kind
    assert "training" not in recipe.settings("nsf", 5)
    assert "overlap" in recipe.settings("pcn-support", 5)["training"]
    learned = recipe.settings("acastle", 5)["training"]
    assert not learned.keys() & set(episodic_options.CALIBRATOR_ONLY)
    assert "iterations" in learned


def test_an_own_folder_of_recipes_does_not_hide_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "recipes" / "frozen").mkdir(parents=True)
    own = tmp_path / "recipes" / "mine.yaml"
    own.write_text("data: scenes")
    monkeypatch.chdir(tmp_path)
    assert find_recipe("mine").resolve() == own
    assert find_recipe("frozen/pascal-lite0").is_file()
    assert {"mine", "frozen/pascal-lite0"} <= set(recipe_names())
