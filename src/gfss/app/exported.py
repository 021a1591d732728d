"""Segmenting with an exported model, through onnxruntime or OpenVINO."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gfss.app.export import INPUT, METADATA, weights_file
from gfss.app.inputs import ImageLike
from gfss.app.network import check_balance, with_balance
from gfss.app.segmentation import Result, segment_image
from gfss.common.errors import GfssError, printable

LARGEST_INPUT = 4096  # pixels of a side


class ExportedModel(ABC):
    """An exported model; it segments but cannot be taught.

    Attributes:
        classes: names in order of label, background first.
        size: side of the square input.
    """

    def __init__(self, path: str | Path, about: Mapping[str, str]) -> None:
        if about.get("gfss") != "model":
            raise GfssError(f"{path} was not written by gfss export: its metadata does not name the classes")
        self._path = Path(path)
        self.classes, self.size, self._taught = _metadata(about, path)

    @property
    def fingerprint(self) -> str:
        """Hash of the file."""
        return hashlib.sha256(weights_file(self._path).read_bytes()).hexdigest()

    def __reduce__(self) -> tuple[type[ExportedModel], tuple[Path]]:
        return type(self), (self._path,)  # what runs it cannot be sent to another process

    def segment(self, image: ImageLike, *, balance: float = 0.0, tile: bool | None = None) -> Result:
        """Segment an image, as :meth:`gfss.Segmenter.segment` does."""
        look = partial(self.score_map, balance=check_balance(balance))
        return segment_image(image, self.classes, self.size, look, bool(tile), self._taught)

    def score_map(self, square: np.ndarray, balance: float = 0.0) -> Tensor:
        """Logits (classes, h, w) of a square image (size, size, 3)."""
        scores = torch.from_numpy(self._run(network_input(square))[0])
        return with_balance(scores, self._taught, balance)

    @abstractmethod
    def _run(self, images: np.ndarray) -> np.ndarray:
        """Logits of a batch of one."""


class OnnxModel(ExportedModel):
    """An ``.onnx`` file, run by onnxruntime."""

    def __init__(self, path: str | Path) -> None:
        import onnxruntime

        _refuse_missing(path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has a class of errors of its own for every kind of damage
            raise _unreadable(path, "ONNX", error) from None
        super().__init__(path, self._session.get_modelmeta().custom_metadata_map)

    def _run(self, images: np.ndarray) -> np.ndarray:
        return np.asarray(self._session.run(None, {INPUT: images})[0])


class OpenvinoModel(ExportedModel):
    """An ``.xml`` file with its ``.bin``, run by OpenVINO.

    Args:
        exact: compute in single precision also where the processor has a faster half precision.
    """

    def __init__(self, path: str | Path, exact: bool = False) -> None:
        import openvino

        _refuse_missing(path)
        _refuse_missing(weights_file(Path(path)))
        options: dict[str, Any] = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "PERFORMANCE_HINT": "LATENCY"}
        if exact:
            options["INFERENCE_PRECISION_HINT"] = "f32"
        try:
            core = openvino.Core()
            model = core.read_model(str(path))
            self._compiled = core.compile_model(model, "CPU", options)
        except Exception as error:  # whatever its C++ says
            raise _unreadable(path, "OpenVINO", error) from None
        found = [key for key in METADATA if model.has_rt_info(["gfss", key])]
        super().__init__(path, {key: model.get_rt_info(["gfss", key]).astype(str) for key in found})

    def _run(self, images: np.ndarray) -> np.ndarray:
        return np.asarray(self._compiled(images)[0])


def open_exported(path: str | Path) -> ExportedModel:
    """The model in a file that gfss export wrote."""
    return OpenvinoModel(path) if str(path).endswith(".xml") else OnnxModel(path)


def network_input(square: np.ndarray) -> np.ndarray:
    """A square image (size, size, 3) as an exported network takes it: (1, 3, size, size) in [0, 1]."""
    return np.ascontiguousarray(square.transpose(2, 0, 1)[None], dtype=np.float32) / 255


def _refuse_missing(path: str | Path) -> None:
    if not Path(path).is_file():
        raise GfssError(f"the model file {path} does not exist")


def _unreadable(path: str | Path, kind: str, error: Exception) -> GfssError:
    reason = str(error).strip().splitlines()[0]
    return GfssError(f"{path} is not a readable {kind} file ({reason}); export the model again")


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
