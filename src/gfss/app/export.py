"""A model as one ONNX file: encoder, head and rows of taught classes at a fixed input size."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from gfss.app.network import Network, Taught, taught_classes
from gfss.common.files import make_folder, write_atomically

INPUT, OUTPUT = "images", "scores"


class Scores(nn.Module):
    """Images (1, 3, size, size) in [0, 1] to logits (1, classes, h, w)."""

    def __init__(self, network: Network, taught: Taught | None) -> None:
        super().__init__()
        self.network = network
        self.taught = taught

    def forward(self, images: Tensor) -> Tensor:
        levels = self.network.base.encoder.fine_levels(images)
        return self.network.scores(self.network.with_additions(levels, images), self.taught)


def export_onnx(network: Network, taught: Taught | None, classes: Sequence[str], path: Path) -> None:
    """Write a model as ONNX, its class names in the metadata.

    Args:
        classes: names in order of label, background first.
    """
    import onnx

    make_folder(path.absolute().parent)
    example = torch.zeros(1, 3, network.size, network.size)
    scores = Scores(network, taught).eval()
    with torch.no_grad():
        scores(example)  # so that what is cached on the way holds numbers and not the exporter's stand-ins for them
    with tempfile.TemporaryDirectory() as folder, _quietly():
        raw = Path(folder) / "raw.onnx"
        torch.onnx.export(
            scores,
            (example,),
            raw,
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamo=True,  # the older exporter cannot pool 27 x 27 maps to 2, 3 or 6 bins
            external_data=False,
        )
        model = onnx.load(raw)
    about = {
        "gfss": "model",
        "classes": json.dumps(list(classes)),
        "size": str(network.size),
        "taught": str(taught_classes(taught)),
    }
    onnx.helper.set_model_props(model, about)
    with write_atomically(path) as file:
        file.write(model.SerializeToString())


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
