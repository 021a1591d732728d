"""Trained methods on disk: weights, what they are for, and refusal of what does not fit."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gfss.common.errors import GfssError
from gfss.methods.base import Method
from gfss.methods.pcn import Calibrated
from gfss.methods.score_fusion import ScoreFusion
from gfss.models.base_model import BaseCard
from gfss.models.calibrators.calibrator import Calibrator
from gfss.models.calibrators.options import stored_options
from gfss.training.checkpoints import load_checkpoint, save_checkpoint


def save_method(folder: Path, method: Method, base: BaseCard, training: dict[str, Any]) -> None:
    """Write the trained part of a method."""
    if method.module is None:
        raise GfssError(f"method '{method.name}' has nothing to save")
    about = {"method": method.name, "base": base.as_json(), "training": training}
    save_checkpoint(folder, method.module.state_dict(), about, "method")


def load_method(folder: Path, method: Method, base: BaseCard, *, other_classes: bool = False) -> None:
    """Give a freshly built method its trained part; refuses one of another method or base model.

    Args:
        other_classes: take one that was trained beside other base classes on the same encoder.
    """
    tensors, about = load_checkpoint(folder, "method")
    if about.get("method") != method.name:
        raise GfssError(f"{folder} holds method '{about.get('method')}', not '{method.name}'")
    wanted = {key: getattr(base, key) for key in ("encoder", "encoder_hash", "size")}
    given = dict(about["base"])
    if not other_classes:
        trained = given.get("training", {})
        wanted |= {"classes": list(base.classes), **{k: v for k, v in base.training.items() if k in trained}}
        given |= trained
        if base.files and given.get("files", base.files) not in ("", base.files):
            raise GfssError(
                f"{folder} was trained beside a base model of other images or masks than the present one; train the "
                "method anew"
            )
    for key, value in wanted.items():
        theirs = given.get(key)
        if theirs != (list(value) if isinstance(value, tuple) else value):
            raise GfssError(
                f"{folder} was trained on a base model whose {key.replace('_', ' ')} is {theirs}, not {value}; "
                "train the method anew"
            )
    if isinstance(method, Calibrated) and isinstance(method.inner, ScoreFusion):
        theirs, ours = about["training"].get("novel", {}), json.loads(json.dumps(asdict(method.inner.fitter.options)))
        for key in theirs.keys() & ours.keys() - {"low_rank"}:  # nearly the same scores
            if theirs[key] != ours[key]:
                raise GfssError(
                    f"{folder} was trained on novel classifiers with {key} {theirs[key]}, not {ours[key]}; fit them "
                    "like that, or train the method anew"
                )
    for key, ours in method.settings.items():
        theirs = about["training"].get(key, False)  # what was trained before `published` was written down, is not
        if theirs != ours:
            raise GfssError(f"{folder} was trained with {key} {theirs}, not {ours}; train the method anew")
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
