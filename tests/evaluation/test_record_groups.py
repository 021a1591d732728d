from __future__ import annotations

from tests.experiments.tiny_recipe import fake_record

from gfss.evaluation.record_groups import by_base_models, by_settings, flat


def test_records_of_like_base_models_belong_together() -> None:
    bases = ({"epochs": 6, "seed": 0}, {"epochs": 6, "seed": 1})
    records = [fake_record(spec={"base": base, "supports": "val", "fold": fold}) for fold, base in enumerate(bases)]
    assert by_base_models(records) == {"": records}
    assert by_base_models([]) == {}


def test_groups_are_named_by_what_differs() -> None:
    first = fake_record(spec={"base": {"epochs": 6, "rate": 0.1}})
    second = fake_record(spec={"base": {"epochs": 4, "rate": 0.1}})
    assert by_base_models([first, second]) == {"epochs 6": [first], "epochs 4": [second]}


def test_a_trained_encoder_says_enough() -> None:
    first = fake_record(spec={"base": {"epochs": 6, "train_encoder": False}})
    second = fake_record(spec={"base": {"epochs": 100, "train_encoder": True}})
    assert by_base_models([first, second]) == {"encoder frozen": [first], "encoder trained too": [second]}


def test_supports_and_folds_of_another_kind_are_apart() -> None:
    records = [fake_record(spec={"supports": split, "contiguous": split == "train"}) for split in ("val", "train")]
    assert list(by_base_models(records)) == [
        "interleaved folds, supports of the val list",
        "contiguous folds, supports of the train list",
    ]


def test_of_a_fold_and_seed_the_record_with_most_tasks_is_taken() -> None:
    few, many = fake_record(tasks=10, spec={"rate": 1}), fake_record(tasks=20, spec={"rate": 1})
    other = fake_record(tasks=10, spec={"rate": 2})
    assert list(by_settings([few, many, other]).values()) == [[many], [other]]


def test_nested_settings_get_names_with_dots() -> None:
    assert flat({"base": {"epochs": 3, "deep": {"er": 1}}, "size": 33}) == {
        "base.epochs": 3, "base.deep.er": 1, "size": 33,
    }  # fmt: skip


def test_an_option_that_came_later_has_its_default_in_older_records() -> None:
    older = fake_record(spec={"base": {"epochs": 6}})
    newer = fake_record(spec={"base": {"epochs": 6, "decoder": 0, "novel_pixels": "void"}})
    other = fake_record(spec={"base": {"epochs": 6, "decoder": 128}})
    assert by_base_models([older, newer]) == {"": [older, newer]}
    assert by_base_models([older, other]) == {"decoder 0": [older], "decoder 128": [other]}
    assert len(by_settings([older, newer])) == 1
