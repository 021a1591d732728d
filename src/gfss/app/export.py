"""A model as an ONNX or OpenVINO file: encoder, head and rows of taught classes at a fixed input size."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from gfss.app.network import Network, Taught, taught_classes
from gfss.common.errors import GfssError
from gfss.common.files import make_folder, write_atomically

INPUT, OUTPUT = "images", "scores"
METADATA = ("gfss", "classes", "size", "taught")


class Scores(nn.Module):
    """Images (1, 3, size, size) in [0, 1] to logits (1, classes, h, w)."""

    def __init__(self, network: Network, taught: Taught | None) -> None:
        super().__init__()
        self.network = network
        self.taught = taught

    def forward(self, images: Tensor) -> Tensor:
        levels = self.network.base.encoder.fine_levels(images)
        return self.network.scores(self.network.with_additions(levels, images), self.taught)


def export_model(
    network: Network, taught: Taught | None, classes: Sequence[str], path: Path, calibration: Sequence[Path] = ()
) -> None:
    """Write a model for inference elsewhere, its class names in the metadata.

    Args:
        classes: names in order of label, background first.
        path: ends in ``.onnx``, or in ``.xml`` for OpenVINO.
        calibration: images from which the ranges of 8-bit integers are taken; single precision without.
    """
    import onnx

    refuse_ending(path)
    make_folder(path.absolute().parent)
    about = {
        "gfss": "model",
        "classes": json.dumps(list(classes)),
        "size": str(network.size),
        "taught": str(taught_classes(taught)),
    }
    with tempfile.TemporaryDirectory() as folder, _quietly():
        file = Path(folder) / "raw.onnx"
        _trace(network, taught, file)
        if calibration:
            from gfss.app.quantization import quantize

            file = quantize(file, network.size, calibration)
        if path.suffix == ".xml":
            _write_openvino(file, about, path)
        else:
            model = onnx.load(file)
            onnx.helper.set_model_props(model, about)
            with write_atomically(path) as out:
                out.write(model.SerializeToString())


def refuse_ending(path: Path) -> None:
    """Raise if the name of a file does not say its format."""
    if path.suffix not in (".onnx", ".xml"):
        raise GfssError(
            f"{path} ends in neither .onnx nor .xml (OpenVINO); use such an ending, so that gfss segment recognises it"
        )


def weights_file(path: Path) -> Path:
    """The file with the weights of an exported model: for OpenVINO a second one."""
    return path.with_suffix(".bin") if path.suffix == ".xml" else path


def _trace(network: Network, taught: Taught | None, path: Path) -> None:
    example = torch.zeros(1, 3, network.size, network.size)
    scores = Scores(network, taught).eval()
    with torch.no_grad():
        scores(example)  # so that what is cached on the way holds numbers and not the exporter's stand-ins for them
    torch.onnx.export(
        scores,
        (example,),
        path,
        input_names=[INPUT],
        output_names=[OUTPUT],
        dynamo=True,  # the older exporter cannot pool 27 x 27 maps to 2, 3 or 6 bins
        external_data=False,
    )


def _write_openvino(source: Path, about: Mapping[str, str], path: Path) -> None:
    import openvino

    model = openvino.Core().read_model(str(source))
    for key, value in about.items():
        model.set_rt_info(value, ["gfss", key])
    written = source.with_name("written.xml")
    openvino.save_model(model, str(written), compress_to_fp16=False)
    for file in (written.with_suffix(".bin"), written):
        with write_atomically(path.with_suffix(file.suffix)) as out:
            out.write(file.read_bytes())


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Keep the exporter's notes for its developers away from users; errors still come through."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
