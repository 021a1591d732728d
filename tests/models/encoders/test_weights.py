"""Reading foreign weight files, and strict loading."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from gfss.common.errors import GfssError
from gfss.models.encoders import build_encoder
from gfss.models.encoders.weights import read_weights


@pytest.fixture(scope="module")
def state() -> dict[str, Tensor]:
    return build_encoder("resnet18", seed=3).state_dict()


def half(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: value.half() if value.is_floating_point() else value for key, value in state.items()}


@pytest.mark.parametrize("form", ["plain", "state_dict", "model", "module.", "safetensors"])
def test_usual_files_load(tmp_path: Path, state: dict[str, Tensor], form: str) -> None:
    content = {**half(state), "fc.weight": torch.zeros(1000, 512), "fc.bias": torch.zeros(1000)}
    path = tmp_path / "weights.pth"
    if form == "safetensors":
        path = path.with_suffix(".safetensors")
        save_file(content, path)
    elif form == "module.":
        torch.save({"epoch": 1, "state_dict": {f"module.{key}": value for key, value in content.items()}}, path)
    else:
        torch.save(content if form == "plain" else {form: content}, path)
    loaded = build_encoder("resnet18", path).state_dict()
    assert all(value.dtype == state[key].dtype for key, value in loaded.items())
    torch.testing.assert_close(loaded["layer4.1.conv2.weight"], state["layer4.1.conv2.weight"].half().float())


def test_what_does_not_fit_is_named_key_by_key(tmp_path: Path, state: dict[str, Tensor]) -> None:
    wrong = {**state, "extra": torch.zeros(1), "conv1.weight": torch.zeros(64, 3, 3, 3)}
    del wrong["layer2.0.conv1.weight"]
    save_file(wrong, tmp_path / "w.safetensors")
    with pytest.raises(GfssError) as error:
        build_encoder("resnet18", tmp_path / "w.safetensors")
    for part in (
        "missing layer2.0.conv1.weight",
        "unexpected extra",
        "conv1.weight has shape (64, 3, 3, 3) instead of (64, 3, 7, 7)",
    ):
        assert part in str(error.value)


class Dangerous:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("code from a weight file ran",)


def test_pickled_code_is_never_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"state_dict": Dangerous()}, tmp_path / "evil.pth")
    with pytest.raises(GfssError, match="not opened for safety"):
        read_weights(tmp_path / "evil.pth")
    assert "ran" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.pth", None, "does not exist"),
        ("notes.txt", b"hello", r"neither \.safetensors nor \.pth"),
        ("torn.safetensors", b"\x00" * 20, "not a readable safetensors file"),
        ("torn.pth", b"PK\x03\x04 torn", "not a readable weight file|not opened for safety"),
        ("empty.pth", b"", "not a readable weight file|not opened for safety"),
    ],
)
def test_bad_files_are_answered_in_one_sentence(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(GfssError, match=message):
        read_weights(tmp_path / name)


def test_file_without_named_tensors_is_refused(tmp_path: Path) -> None:
    torch.save([torch.zeros(1)], tmp_path / "list.pth")
    with pytest.raises(GfssError, match="not a table of named tensors"):
        read_weights(tmp_path / "list.pth")


def test_empty_file_is_not_taken_for_no_file(tmp_path: Path) -> None:
    torch.save({}, tmp_path / "empty.pth")
    with pytest.raises(GfssError, match=r"missing bn1\.bias"):
        build_encoder("resnet18", tmp_path / "empty.pth")
