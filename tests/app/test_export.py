"""ONNX: the same model elsewhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.app import make

from gfss.app.segmenter import Segmenter
from gfss.common.errors import GfssError

pytest.importorskip("onnx", reason="the extra 'export' is not installed")
pytest.importorskip("onnxruntime", reason="the extra 'export' is not installed")
pytest.importorskip("onnxscript", reason="the extra 'export' is not installed")


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "refined"])
def taught(request: pytest.FixtureRequest) -> Segmenter:
    # sure of its base classes: near-ties would be decided by rounding
    model = Segmenter(make.network(spread=4.0, refined=request.param))
    model.teach("box", *make.labelled(1))
    return model


@pytest.fixture(scope="module")
def exported(taught: Segmenter, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    taught.export(path)
    return path


def test_onnx_agrees_with_torch(taught: Segmenter, exported: Path) -> None:
    from gfss.app.onnx_model import OnnxModel

    model = OnnxModel(exported)
    assert model.classes == taught.classes
    same = []
    for seed, (height, width) in enumerate([(48, 64), (64, 64), (200, 90)]):
        image = make.labelled(seed, height, width)[0]
        for options in ({}, {"balance": 0.3}, {"tile": True}):
            same.append((model.segment(image, **options).mask == taught.segment(image, **options).mask).mean())
    assert min(same) > 0.99
    assert np.mean(same) > 0.999


def test_a_model_segments_after_it_was_exported(tmp_path: Path) -> None:
    """In one process, at a size that nothing was computed at before."""
    model = Segmenter(make.network(size=81))
    model.teach("box", *make.labelled(1))
    model.export(tmp_path / "model.onnx")
    assert model.segment(make.labelled(2)[0]).mask.shape == (48, 64)


def test_files_that_are_no_model_are_refused(exported: Path, tmp_path: Path) -> None:
    import onnx

    from gfss.app.onnx_model import OnnxModel

    with pytest.raises(GfssError, match="does not exist"):
        OnnxModel(tmp_path / "none.onnx")
    (tmp_path / "cut.onnx").write_bytes(exported.read_bytes()[:1000])
    with pytest.raises(GfssError, match="not a readable ONNX file"):
        OnnxModel(tmp_path / "cut.onnx")
    foreign = onnx.load(exported)
    del foreign.metadata_props[:]
    onnx.save(foreign, tmp_path / "foreign.onnx")
    with pytest.raises(GfssError, match="was not written by gfss export"):
        OnnxModel(tmp_path / "foreign.onnx")
