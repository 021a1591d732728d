from __future__ import annotations

from tests.experiments.tiny_recipe import fake_record

from gfss.evaluation.record_groups import families


def test_records_of_like_base_models_are_one_family() -> None:
    bases = ({"epochs": 6, "seed": 0}, {"epochs": 6, "seed": 1}, {"epochs": 6, "seed": 0, "warmup": 0})
    records = [fake_record(recipe={"base": base}) for base in bases]
    assert families(records) == {"": records}
    assert families([]) == {}


def test_families_are_named_by_what_differs() -> None:
    first = fake_record(recipe={"base": {"epochs": 6, "rate": 0.1}})
    second = fake_record(recipe={"base": {"epochs": 4, "rate": 0.1}})
    blind = fake_record("oracle", recipe={"size": 33})
    assert families([first, second, blind]) == {"epochs 6": [first], "epochs 4": [second], "": [blind]}


def test_a_trained_encoder_says_enough() -> None:
    first = fake_record(recipe={"base": {"epochs": 6, "train_encoder": False}})
    second = fake_record(recipe={"base": {"epochs": 100, "train_encoder": True}})
    assert families([first, second]) == {"encoder frozen": [first], "encoder trained too": [second]}


def test_what_a_record_does_not_say_is_as_usual() -> None:
    old = fake_record(recipe={"base": {"epochs": 6}})
    trained = fake_record(recipe={"base": {"epochs": 6, "train_encoder": True}})
    supports = fake_record(recipe={"base": {"epochs": 6}, "supports": "train"})
    assert families([old, trained]) == {"encoder frozen": [old], "encoder trained too": [trained]}
    assert families([old, supports]) == {"supports of the val list": [old], "supports of the train list": [supports]}
    blind = [fake_record("oracle", recipe=recipe) for recipe in ({}, {"supports": "train"})]
    assert list(families(blind)) == ["supports of the val list", "supports of the train list"]
