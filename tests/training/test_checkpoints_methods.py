from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from tests.methods.cases import make_context

from gfss.common.errors import GfssError
from gfss.methods import build_method
from gfss.methods.base import Method
from gfss.methods.pcn import Calibrated
from gfss.training.checkpoints import load_method, save_method


def method(name: str = "pixel", size: tuple[int, int] = (9, 9), seed: int = 0) -> Method:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build_method(name, make_context(size))


CARD = make_context().model.card


def test_a_saved_method_is_read_back_and_ready(tmp_path: Path) -> None:
    first, second = method(seed=0), method(seed=1)
    assert first.module is not None
    assert second.module is not None
    save_method(tmp_path, first, CARD, {"iterations": 3})
    assert not second.trained
    load_method(tmp_path, second, CARD)
    assert second.trained
    assert not second.module.training
    assert not any(parameter.requires_grad for parameter in second.module.parameters())
    state = second.module.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in first.module.state_dict().items())


def test_methods_without_a_trained_part_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(GfssError, match="method 'nsf' has nothing to save"):
        save_method(tmp_path, method("nsf"), CARD, {})


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("encoder", "lite0", "encoder is tiny, not lite0"),
        ("encoder_hash", "1" * 16, f"encoder hash is {'0' * 16}, not {'1' * 16}"),
        ("size", 417, "size is 33, not 417"),
    ],
)
def test_another_base_model_is_refused(tmp_path: Path, field: str, value: object, words: str) -> None:
    save_method(tmp_path, method(), CARD, {})
    with pytest.raises(GfssError, match=f"a base model whose {words}; train the method on this one"):
        load_method(tmp_path, method(), replace(CARD, **{field: value}))


def test_another_feature_size_is_refused(tmp_path: Path) -> None:
    save_method(tmp_path, method("pcn-as-printed"), CARD, {})
    with pytest.raises(GfssError, match=r"should be \(512, 121\) but is \(512, 81\).*another feature size"):
        load_method(tmp_path, method("pcn-as-printed", size=(11, 11)), CARD)


def test_a_calibrator_serves_other_classes(tmp_path: Path) -> None:
    save_method(tmp_path, method(), CARD, {})
    load_method(tmp_path, ours := method(), replace(CARD, classes=("cat",)))
    assert ours.trained


def test_a_calibrator_comes_back_with_the_options_it_was_trained_with(tmp_path: Path) -> None:
    saved, usual = method("pcn-support"), method("pcn-support")
    assert isinstance(saved, Calibrated)
    assert isinstance(usual, Calibrated)
    options = replace(saved.calibrator.options, both_fusions=False)
    save_method(tmp_path, saved, CARD, {"calibrator": asdict(options)})
    load_method(tmp_path, usual, CARD)
    assert usual.calibrator.options == options
    assert usual.module is usual.calibrator
    assert usual.calibrator.class_interaction is not None
    assert not usual.calibrator.class_interaction.both_fusions
