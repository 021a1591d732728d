from __future__ import annotations

import json
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from gfss.common.errors import GfssError
from gfss.training.checkpoints import (
    has_checkpoint,
    load_checkpoint,
    optimiser_tensors,
    restore_optimiser,
    save_checkpoint,
)


def tensors(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "weight": torch.randn(3, 4, generator=generator).T,  # not contiguous
        "half": torch.randn(5, generator=generator).half(),
        "steps": torch.tensor(7),
    }


def assert_same(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert value.dtype == second[name].dtype
        assert torch.equal(value, second[name])


def test_what_is_saved_is_read_back(tmp_path: Path) -> None:
    assert not has_checkpoint(tmp_path)
    save_checkpoint(tmp_path, tensors(), {"iteration": 3, "names": ["a", "b"]})
    assert has_checkpoint(tmp_path)
    read, about = load_checkpoint(tmp_path)
    assert_same(read, tensors())
    assert (about["iteration"], about["names"]) == (3, ["a", "b"])


def test_a_new_pair_replaces_the_old_one_and_no_other(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, tensors(5), {}, "base")
    for seed in (0, 1):
        save_checkpoint(tmp_path, tensors(seed), {"seed": seed}, "train")
    assert_same(load_checkpoint(tmp_path, "train")[0], tensors(1))
    assert_same(load_checkpoint(tmp_path, "base")[0], tensors(5))
    assert len(list(tmp_path.iterdir())) == 4


# how often os.fsync, os.replace and Path.unlink are called by one save: tensors, then JSON, then the old tensors
@pytest.mark.parametrize(
    ("owner", "name", "call", "survivor"),
    [(os, "fsync", 1, 0), (os, "replace", 1, 0), (os, "fsync", 2, 0), (os, "replace", 2, 0), (Path, "unlink", 1, 1)],
    ids=["writing tensors", "renaming tensors", "writing JSON", "renaming JSON", "removing the old tensors"],
)
def test_a_crash_at_any_moment_leaves_one_whole_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, call: int, survivor: int
) -> None:
    save_checkpoint(tmp_path, tensors(0), {"seed": 0})
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, crash_at(call, getattr(owner, name)))
        with pytest.raises(KeyboardInterrupt):
            save_checkpoint(tmp_path, tensors(1), {"seed": 1})
    read, about = load_checkpoint(tmp_path)
    assert about["seed"] == survivor
    assert_same(read, tensors(survivor))

    save_checkpoint(tmp_path, tensors(2), {"seed": 2})
    assert_same(load_checkpoint(tmp_path)[0], tensors(2))
    assert len(list(tmp_path.glob("*.safetensors"))) == 1


def crash_at(call: int, function: Callable[..., None]) -> Callable[..., None]:
    """The function, but interrupted at its so manieth call."""
    calls = count(1)

    def patched(*arguments: object, **more: object) -> None:
        if next(calls) == call:
            raise KeyboardInterrupt
        function(*arguments, **more)

    return patched


@pytest.mark.parametrize("damage", ["flipped", "truncated", "emptied"])
def test_damaged_tensors_are_refused_by_name(tmp_path: Path, damage: str) -> None:
    save_checkpoint(tmp_path, tensors(), {})
    (file,) = tmp_path.glob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes({"flipped": bytes(content), "truncated": content[:-7], "emptied": b""}[damage])
    with pytest.raises(GfssError, match=f"{file.name} is truncated or was modified"):
        load_checkpoint(tmp_path)


def test_missing_parts_are_named(tmp_path: Path) -> None:
    with pytest.raises(GfssError, match=r"model\.json does not exist"):
        load_checkpoint(tmp_path)
    save_checkpoint(tmp_path, tensors(), {})
    (file,) = tmp_path.glob("*.safetensors")
    file.unlink()
    with pytest.raises(GfssError, match=f"{file.name} belongs to model.json but cannot be read"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("content", ["[1]", '{"iteration": 3}'])
def test_json_of_something_else_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "model.json").write_text(content)
    with pytest.raises(GfssError, match=r"model\.json is not a checkpoint"):
        load_checkpoint(tmp_path)


def test_a_torn_json_is_refused_by_name(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, tensors(), {})
    path = tmp_path / "model.json"
    path.write_text(path.read_text()[:-10])
    with pytest.raises(GfssError, match=r"model\.json is not valid JSON"):
        load_checkpoint(tmp_path)


def test_tensors_are_only_read_from_the_checkpoint_folder(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        save_checkpoint(folder, tensors(), {})
    (file,) = outside.glob("*.safetensors")
    for own in inside.glob("*.safetensors"):
        own.unlink()
    about = json.loads((inside / "model.json").read_text())
    (inside / "model.json").write_text(json.dumps({**about, "tensors": f"../outside/{file.name}"}))
    with pytest.raises(GfssError, match="cannot be read"):
        load_checkpoint(inside)


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_a_restored_optimiser_continues_bit_by_bit(kind: str) -> None:
    def make(start: Tensor) -> tuple[nn.Parameter, torch.optim.Optimizer]:
        parameter = nn.Parameter(start.clone())
        if kind == "sgd":
            return parameter, torch.optim.SGD([parameter], 0.1, momentum=0.9, nesterov=True)
        return parameter, torch.optim.AdamW([parameter], 0.1)

    def step(parameter: nn.Parameter, optimiser: torch.optim.Optimizer) -> None:
        parameter.grad = parameter.detach().sin()
        optimiser.step()

    first, optimiser = make(torch.linspace(-1, 1, 5))
    for _ in range(3):
        step(first, optimiser)
    second, other = make(first.detach())
    restore_optimiser(other, {name: value.clone() for name, value in optimiser_tensors(optimiser).items()})
    for _ in range(3):
        step(first, optimiser)
        step(second, other)
    assert torch.equal(first, second)
