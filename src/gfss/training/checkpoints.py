"""Checkpoints of base models and methods: tensors as safetensors, the rest as JSON, replaced in one step; no pickle."""

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
from gfss.methods.base import Method
from gfss.methods.pcn import Calibrated
from gfss.models.base_model import BaseCard, BaseModel, PyramidHead
from gfss.models.calibrators.calibrator import Calibrator, stored_options
from gfss.models.encoders import build_encoder
from gfss.models.encoders.base import Encoder

OF_ENCODER = ("encoder", "encoder_hash", "size")  # what features depend on


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


def save_base(folder: Path, model: BaseModel) -> None:
    """Write a base model; a frozen encoder's weights are not copied, only their hash."""
    parts = (
        model.state_dict()
        if model.card.trained_encoder
        else {f"head.{k}": v for k, v in model.head.state_dict().items()}
    )
    save_checkpoint(folder, parts, {"card": model.card.as_json(), "head": model.head.config}, "base")


def load_base(folder: Path, encoder: Encoder | None = None, weights: Path | None = None) -> BaseModel:
    """Read a base model back.

    Args:
        encoder: the frozen encoder, if it is at hand already.
        weights: file with the encoder's pretrained weights, where they do not come with a package.
    """
    tensors, about = load_checkpoint(folder, "base")
    card = BaseCard.from_json(about["card"])
    encoder = encoder or build_encoder(card.encoder, weights, card.output_stride, pretrained=not card.trained_encoder)
    head = PyramidHead(**about["head"])
    model = BaseModel(encoder, head, card)
    if card.trained_encoder:
        model.load_state_dict(tensors)
    else:
        head.load_state_dict({k.removeprefix("head."): v for k, v in tensors.items()})
        if encoder.weights_hash() != card.encoder_hash:
            raise GfssError(
                f"the base model in {folder} was trained on encoder weights {card.encoder_hash}, but the weights of "
                f"{card.encoder} at hand are {encoder.weights_hash()}; give the matching file with --encoder-weights"
            )
    model.freeze()
    return model.to(encoder.device).eval()


def save_method(folder: Path, method: Method, base: BaseCard, training: dict[str, Any]) -> None:
    """Write the trained part of a method."""
    if method.module is None:
        raise GfssError(f"method '{method.name}' has nothing to save")
    about = {"method": method.name, "base": base.as_json(), "training": training}
    save_checkpoint(folder, method.module.state_dict(), about, "method")


def load_method(folder: Path, method: Method, base: BaseCard | None = None) -> None:
    """Give a freshly built method its trained part.

    Args:
        base: the base model that the method shall stand on, where that is another than it was trained on: its encoder
            must be the same.
    """
    tensors, about = load_checkpoint(folder, "method")
    for key in OF_ENCODER if base else ():
        theirs, ours = about["base"].get(key), getattr(base, key)
        if theirs != ours:
            raise GfssError(
                f"{folder} was trained on a base model whose {key.replace('_', ' ')} is {theirs}, not {ours}; "
                "train the method on this one"
            )
    if isinstance(method, Calibrated) and "calibrator" in about["training"]:  # not always the usual one of this name
        options = stored_options(about["training"]["calibrator"])
        method.calibrator = method.module = Calibrator(options, method.calibrator.map_size, method.calibrator.fast)
    assert method.module is not None
    own = method.module.state_dict()
    for name, tensor in own.items():
        if name not in tensors or tensors[name].shape != tensor.shape:
            came = tuple(tensors[name].shape) if name in tensors else "nothing"
            raise GfssError(
                f"{folder} does not fit method '{method.name}': {name} should be {tuple(tensor.shape)} but is {came}; "
                "it was trained for another feature size or other options"
            )
    method.module.load_state_dict(tensors)
    method.module.eval().requires_grad_(False)
    method.trained = True
