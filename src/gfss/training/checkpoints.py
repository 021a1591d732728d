"""Checkpoints: safetensors for tensors, JSON for the rest, written aside and then renamed; no pickle."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from gfss.common.errors import GfssError
from gfss.common.files import read_json, write_atomically, write_json


def save_checkpoint(folder: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any], name: str = "model") -> None:
    """Write ``name.safetensors`` and ``name.json``; a crash at any moment leaves the old pair readable.

    The JSON holds the hash of the tensor file it belongs to. The tensor file carries the hash in its name,
    so the pair changes in one step: when the JSON is renamed.
    """
    content = save_tensors({key: value.detach().cpu().contiguous() for key, value in tensors.items()})
    digest = hashlib.sha256(content).hexdigest()
    file = f"{name}-{digest[:12]}.safetensors"
    with write_atomically(folder / file) as handle:
        handle.write(content)
    write_json(folder / f"{name}.json", {**about, "tensors": file, "sha256": digest})
    for old in folder.glob(f"{name}-*.safetensors"):
        if old.name != file:
            old.unlink(missing_ok=True)


def load_checkpoint(folder: Path, name: str = "model") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a checkpoint back, refusing torn or altered files by name."""
    about = read_json(folder / f"{name}.json")
    if not isinstance(about, dict) or "tensors" not in about or "sha256" not in about:
        raise GfssError(f"{folder / f'{name}.json'} is not a checkpoint of gfss; it does not name its tensors")
    path = folder / Path(str(about["tensors"])).name
    try:
        content = path.read_bytes()
    except OSError:
        raise GfssError(f"{path} belongs to {name}.json but cannot be read; copy the whole folder again") from None
    if hashlib.sha256(content).hexdigest() != about["sha256"]:
        raise GfssError(f"{path} is truncated or was modified (its checksum differs); copy it again or retrain")
    try:
        return load_tensors(content), about
    except SafetensorError as error:
        raise GfssError(f"{path} is not a safetensors file ({error})") from None


def has_checkpoint(folder: Path, name: str = "model") -> bool:
    """Whether a finished checkpoint lies in a folder."""
    return (folder / f"{name}.json").exists()


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """State of an optimiser as named tensors."""
    state = optimiser.state_dict()["state"]
    return {
        f"{index}.{key}": torch.as_tensor(value)
        for index, entries in state.items()
        for key, value in entries.items()
        if value is not None
    }


def restore_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Give an optimiser the state that :func:`optimiser_tensors` returned."""
    state = optimiser.state_dict()
    entries: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        index, key = name.split(".", 1)
        entries.setdefault(int(index), {})[key] = value
    optimiser.load_state_dict({"state": entries, "param_groups": state["param_groups"]})
