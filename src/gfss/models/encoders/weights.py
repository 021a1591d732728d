"""Reading weight files that others made, without ever running code from them."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gfss.common.errors import GfssError
from gfss.models.encoders.lite4_weights import read_onnx

WRAPPERS = ("state_dict", "model")  # entries under which training scripts keep the weights
PREFIX = "module."  # left by multi-process training


def read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Weights of a ``.safetensors``, ``.pth`` or ``.pt`` file, and its metadata (safetensors only).

    Of ONNX files only EfficientNet-Lite4's is understood.
    """
    if not path.is_file():
        raise GfssError(f"the weight file {path} does not exist; give the path of a .safetensors or .pth file")
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    if path.suffix in (".pth", ".pt"):
        return _read_pth(path), {}
    if path.suffix == ".onnx":
        return read_onnx(path), {}
    raise GfssError(f"the weight file {path} is neither .safetensors nor .pth; convert it to one of them")


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except SafetensorError as error:
        raise GfssError(f"{path} is not a readable safetensors file ({error}); fetch it again") from None


def _read_pth(path: Path) -> dict[str, Tensor]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise GfssError(
            f"{path} holds more than tensors and is not opened for safety; save its state_dict alone and give that file"
        ) from None
    except (RuntimeError, EOFError, ValueError):
        raise GfssError(f"{path} is not a readable weight file; fetch it again") from None
    for wrapper in WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise GfssError(f"{path} is not a table of named tensors; save a state_dict and give that file")
    return {str(key).removeprefix(PREFIX): value for key, value in content.items()}
