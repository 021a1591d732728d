from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from gfss.errors import GfssError
from gfss.training.checkpoint import (
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


@pytest.mark.parametrize(
    "moment", ["writing tensors", "renaming tensors", "writing json", "renaming json", "cleaning up"]
)
def test_a_crash_at_any_moment_leaves_one_whole_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    save_checkpoint(tmp_path, tensors(0), {"seed": 0})
    kind, what = moment.split()
    suffix = {"tensors": ".safetensors", "json": ".json", "up": ".safetensors"}[what]

    def crash(path: object) -> None:
        if str(path).endswith(suffix):
            raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        if kind == "renaming":
            patched.setattr(os, "replace", crash_at_call(crash, os.replace))
        elif kind == "cleaning":
            patched.setattr(Path, "unlink", lambda self, missing_ok=False: crash(self))
        else:
            patched.setattr(os, "fsync", crash_at_number(1 if what == "tensors" else 2, os.fsync))
        save_checkpoint(tmp_path, tensors(1), {"seed": 1})

    read, about = load_checkpoint(tmp_path)
    assert about["seed"] == (1 if kind == "cleaning" else 0)
    assert_same(read, tensors(about["seed"]))

    save_checkpoint(tmp_path, tensors(2), {"seed": 2})
    assert_same(load_checkpoint(tmp_path)[0], tensors(2))
    assert len(list(tmp_path.glob("*.safetensors"))) == 1


def crash_at_call(crash, replace):
    def patched(source: object, target: object) -> None:
        crash(target)
        replace(source, target)

    return patched


def crash_at_number(number: int, function):
    calls = []

    def patched(*arguments: object) -> None:
        calls.append(arguments)
        if len(calls) == number:
            raise KeyboardInterrupt
        function(*arguments)

    return patched


@pytest.mark.parametrize("damage", ["flipped", "truncated", "emptied"])
def test_damaged_tensors_are_refused_by_name(tmp_path: Path, damage: str) -> None:
    save_checkpoint(tmp_path, tensors(), {})
    (file,) = tmp_path.glob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes({"flipped": bytes(content), "truncated": content[:-7], "emptied": b""}[damage])
    with pytest.raises(GfssError, match=f"{file.name} is truncated or was altered"):
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
    restore_optimiser(other, optimiser_tensors(optimiser))
    for _ in range(3):
        step(first, optimiser)
        step(second, other)
    assert torch.equal(first, second)
