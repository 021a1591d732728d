"""ONNX: the same model elsewhere."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.app import make

from gfss.app.exported import open_exported
from gfss.app.parity import measure_parity
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
    from gfss.app.exported import OnnxModel

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


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("photos")
    for seed in range(6):
        Image.fromarray(make.labelled(seed)[0]).save(folder / f"{seed}.png")
    return sorted(folder.iterdir())


def test_openvino_agrees_with_torch(taught: Segmenter, tmp_path: Path) -> None:
    pytest.importorskip("openvino", reason="the extra 'openvino' is not installed")
    from gfss.app.exported import OpenvinoModel

    taught.export(tmp_path / "model.xml")
    assert {path.name for path in tmp_path.iterdir()} == {"model.xml", "model.bin"}
    model = OpenvinoModel(tmp_path / "model.xml", exact=True)
    assert model.classes == taught.classes
    image = make.labelled(3)[0]
    assert (model.segment(image, balance=0.3).mask == taught.segment(image, balance=0.3).mask).mean() > 0.99
    assert pickle.loads(pickle.dumps(model)).fingerprint == model.fingerprint
    (tmp_path / "model.bin").unlink()
    with pytest.raises(GfssError, match=r"model\.bin does not exist"):
        OpenvinoModel(tmp_path / "model.xml")
    (tmp_path / "model.bin").touch()
    with pytest.raises(GfssError, match="not a readable OpenVINO file"):
        OpenvinoModel(tmp_path / "model.xml")


def test_integers_and_the_report_on_them(taught: Segmenter, exported: Path, photos: list[Path], tmp_path: Path) -> None:
    import onnx

    file = tmp_path / "int8.onnx"
    taught.export(file, calibration=photos[::2])
    assert open_exported(file).classes == taught.classes
    rounded = [node for node in onnx.load(file).graph.node if node.op_type == "QuantizeLinear"]
    assert len(rounded) > 2
    assert not [node for node in onnx.load(exported).graph.node if node.op_type == "QuantizeLinear"]
    parity = measure_parity(taught, open_exported(file), open_exported(exported), photos[1::2])
    masks = [[model.segment(photo).mask for photo in photos[1::2]] for model in (taught, open_exported(file))]
    assert parity.images == 3
    assert parity.differing == pytest.approx(np.mean(np.concatenate(masks[0]) != np.concatenate(masks[1])))
    assert 0 < parity.differing < 0.2  # integers change something, the model is still the same
    assert 0.3 < parity.iou < 1
    assert f"{parity.differing:.2%} of the pixels" in parity.lines[0]
    assert all(time > 0 for time in parity.milliseconds.values())


def test_a_file_in_single_precision_differs_in_nothing(taught: Segmenter, exported: Path, photos: list[Path]) -> None:
    parity = measure_parity(taught, open_exported(exported), open_exported(exported), photos)
    assert parity.differing < 0.001
    assert parity.iou > 0.99


def test_files_that_are_no_model_are_refused(exported: Path, tmp_path: Path) -> None:
    import onnx

    from gfss.app.exported import OnnxModel

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
