"""Trained methods on disk: weights, and what they were trained on and with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gfss.common.errors import GfssError
from gfss.methods.base import Method
from gfss.methods.pcn import Calibrated
from gfss.models.base_model import BaseCard
from gfss.models.calibrators.calibrator import Calibrator, stored_options
from gfss.training.checkpoints import load_checkpoint, save_checkpoint

OF_ENCODER = ("encoder", "encoder_hash", "size")  # what features depend on


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
