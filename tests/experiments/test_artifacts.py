"""Identities: what something depends on changes its name, what it does not depend on leaves it alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.conftest import REPOSITORY

from gfss.common.files import read_json
from gfss.evaluation.record_groups import with_later_options
from gfss.experiments import artifacts
from gfss.experiments.artifacts import Artifact, Evaluation, Part, base_artifact, method_artifact
from gfss.experiments.recipes import make_recipe, read_recipe
from gfss.experiments.spec import Recipe
from gfss.experiments.storage import distinguishing, remove, stored_artifacts, unneeded
from gfss.training.base import BaseOptions


def recipe(**changes: Any) -> Recipe:
    content = {"data": "coco", "encoder": "lite0", "methods": {"nsf": None, "pcn-support": None, "acastle": None}}
    return make_recipe(content | changes)


def identities(of: Recipe, shots: int = 1) -> dict[str, str]:
    found = {name: method_artifact(of, 0, name, shots).identity for name in ("nsf", "pcn-support", "acastle")}
    return found | {"base": base_artifact(of, 0).identity}


EVERYTHING = {"base", "nsf", "pcn-support", "acastle"}


@pytest.mark.parametrize(
    ("changes", "changed"),
    [
        ({}, set()),
        ({"output_stride": 16}, set()),  # the usual one
        ({"output_stride": 8}, EVERYTHING),
        ({"contiguous": True}, EVERYTHING),
        ({"size": 321}, EVERYTHING),
        ({"base": {"epochs": 3}}, EVERYTHING),
        ({"seed": 1}, EVERYTHING),
        ({"novel": {"rate": 0.1}}, {"nsf", "pcn-support"}),
        ({"training": {"iterations": 3}}, {"pcn-support", "acastle"}),
        ({"training": {"overlap": 0}}, {"pcn-support"}),  # only calibrators have it
        ({"training": {"held_out": 2}}, {"pcn-support"}),
        ({"about": "other words", "shots": [1, 5], "seeds": [3], "protocols": {"joint": 5}}, set()),
        ({"root": "elsewhere"}, set()),
    ],
)
def test_another_option_is_another_artefact(changes: dict[str, Any], changed: set[str]) -> None:
    first, second = identities(recipe()), identities(recipe(**changes))
    assert {name for name in first if first[name] != second[name]} == changed


@pytest.mark.parametrize("name", ["../../../X", "/etc/X", "..", "a/../../b", "~"])
def test_names_of_classes_do_not_lead_out_of_the_folder(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(artifacts, "_fingerprint", lambda recipe, split: "")
    of = recipe(data="mine", novel_classes=[name], encoder=f"hf:{name}")
    evaluation = Evaluation(of, 0, 1, "paired", 5, 0)
    places = [base_artifact(of, 0).folder(tmp_path), method_artifact(of, 0, "pcn-support", 1).folder(tmp_path)]
    for place in (*places, evaluation.record_path(tmp_path, "nsf")):
        assert place.resolve().is_relative_to(tmp_path)
        assert len(place.relative_to(tmp_path).parts) <= 3


def test_shots_matter_to_calibrators_only() -> None:
    one, five = identities(recipe(), 1), identities(recipe(), 5)
    assert {name for name in one if one[name] != five[name]} == {"pcn-support"}


def test_the_name_of_a_calibrator_is_none_of_its_options() -> None:
    named = recipe(methods={"mine": {"calibrator": "pcn-support"}})
    assert method_artifact(named, 0, "mine", 1).identity == identities(recipe())["pcn-support"]


def test_evaluations_differ_in_everything_that_is_asked() -> None:
    usual = Evaluation(recipe(), 0, 1, "paired", 10, 0)
    others = [
        Evaluation(recipe(), 1, 1, "paired", 10, 0),
        Evaluation(recipe(), 0, 5, "paired", 10, 0),
        Evaluation(recipe(), 0, 1, "joint", 10, 0),
        Evaluation(recipe(), 0, 1, "paired", 11, 0),
        Evaluation(recipe(), 0, 1, "paired", 10, 1),
        Evaluation(recipe(), 0, 1, "paired", 10, 0, Part(1, 3)),
        Evaluation(recipe(supports="train", protocols={"joint": 5}), 0, 1, "paired", 10, 0),
    ]
    found = [one.artifact("nsf").identity for one in (usual, *others)] + [usual.artifact("score").identity]
    assert len(set(found)) == len(found)


def test_an_option_at_its_default_leaves_the_identity_alone() -> None:
    """So that options that come later do not make everything outdated."""
    assert artifacts.plain({"base": BaseOptions()}, changed_only=True) == {"base": {}}
    assert artifacts.plain({"base": BaseOptions(epochs=9)}, changed_only=True) == {"base": {"epochs": 9}}
    assert artifacts.plain(BaseOptions())["epochs"] == BaseOptions().epochs


def test_a_new_format_is_another_artefact(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identities(recipe())
    monkeypatch.setitem(artifacts.FORMATS, "method", 99)
    after = identities(recipe())
    assert {name for name in before if before[name] != after[name]} == {"nsf", "pcn-support", "acastle"}


def make(runs: Path, words: str, rate: float, *parents: Artifact, complete: bool = True) -> Artifact:
    artifact = Artifact("method" if parents else "base", words, {"rate": rate}, parents)
    (artifact.begin(runs) / "weights").write_bytes(bytes(1000))
    if complete:
        artifact.complete(runs, {"seconds": 1})
    return artifact


def test_artefacts_are_listed_with_what_tells_them_apart_and_pruned(tmp_path: Path) -> None:
    base, other = make(tmp_path, "base", 1), make(tmp_path, "base", 2, complete=False)
    child = make(tmp_path, "child", 3, base)
    found = stored_artifacts(tmp_path)
    assert [(one.kind, one.identity) for one in found[2:]] == [("method", child.identity)]
    assert {one.is_complete for one in found if one.kind == "base"} == {True, False}
    assert not other.is_complete(tmp_path)
    assert sorted(distinguishing(found[:2])) == ["rate=1", "rate=2"]
    assert found[0].bytes > 1000
    assert [one.identity for one in unneeded(found, [child.identity])] == [other.identity]
    for one in unneeded(found, [child.identity]):
        remove(one)
    assert {one.identity for one in stored_artifacts(tmp_path)} == {base.identity, child.identity}
    assert child.is_complete(tmp_path)


def test_a_folder_is_found_by_its_identity_whatever_its_words(tmp_path: Path) -> None:
    artifact = make(tmp_path, "first words", 1)
    again = Artifact("base", "other words", {"rate": 1})
    assert again.folder(tmp_path) == artifact.folder(tmp_path)
    assert again.is_complete(tmp_path)


def test_the_recipe_finds_the_committed_checkpoints() -> None:
    """Their specifications are those of the recipe of today: else a default was changed without a new format."""
    runs, frozen = REPOSITORY / "trained", read_recipe("frozen/pascal-lite0")
    for fold in frozen.folds:
        wanted = [base_artifact(frozen, fold)]
        names = [
            ("pcn-support", 1),
            ("pcn-support", 5),
            *((name, 1) for name in ("acastle", "capl", "denet", "pfenet")),
        ]
        wanted += [method_artifact(frozen, fold, name, shots) for name, shots in names]
        for artifact in wanted:
            assert artifact.is_complete(runs), artifact.words
            stored = read_json(artifact.folder(runs) / "spec.json")["spec"]
            assert with_later_options(stored) == artifact.spec
