"""Segmenting with an exported model through onnxruntime."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gfss.app.export import INPUT
from gfss.app.inputs import Picture
from gfss.app.network import check_balance, with_balance
from gfss.app.segmentation import Result, segment_image
from gfss.common.errors import GfssError, printable

LARGEST_INPUT = 4096  # pixels of a side


class OnnxModel:
    """An exported model; it segments but cannot be taught."""

    def __init__(self, path: str | Path) -> None:
        import onnxruntime

        if not Path(path).is_file():
            raise GfssError(f"the model file {path} does not exist")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has a class of errors of its own for every kind of damage
            reason = str(error).splitlines()[0]
            raise GfssError(f"{path} is not a readable ONNX file ({reason}); export the model again") from None
        about = self._session.get_modelmeta().custom_metadata_map
        if about.get("gfss") != "model":
            raise GfssError(f"{path} was not written by gfss export: its metadata does not name the classes")
        self.classes, self.size, self._taught = _metadata(about, path)

    def segment(self, image: Picture, *, balance: float = 0.0, tile: bool | None = None) -> Result:
        """Segment an image, as :meth:`gfss.Segmenter.segment` does."""
        look = partial(self._score_map, balance=check_balance(balance))
        return segment_image(image, self.classes, self.size, look, bool(tile), self._taught)

    def _score_map(self, square: np.ndarray, balance: float) -> Tensor:
        images = np.ascontiguousarray(square.transpose(2, 0, 1)[None], dtype=np.float32) / 255
        scores = torch.from_numpy(np.asarray(self._session.run(None, {INPUT: images})[0])[0])
        return with_balance(scores, self._taught, balance)


def _metadata(about: Mapping[str, str], path: str | Path) -> tuple[tuple[str, ...], int, int]:
    """Class names, side of the square input and number of taught classes, as gfss export wrote them."""
    try:
        names, size, taught = json.loads(about["classes"]), int(about["size"]), int(about["taught"])
    except (KeyError, ValueError, RecursionError):
        names, size, taught = None, 0, 0
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        names = None
    if not names or not 0 < size <= LARGEST_INPUT or not 0 <= taught < len(names):
        raise GfssError(f"{path} has metadata that gfss export does not write; export the model again")
    return tuple(printable(name) for name in names), size, taught
