"""Models by name, by folder, and from what ``gfss run`` trained."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.app import make

import gfss
from gfss.app import model_loading as sources
from gfss.app.embed import pack
from gfss.common.errors import GfssError
from gfss.common.files import write_json
from gfss.methods.pcn import Calibrated
from gfss.methods.prototypes import NormalisedParameterFusion
from gfss.methods.score_fusion import NormalisedScoreFusion, NovelFitter
from gfss.models.calibrators.calibrator import Calibrator
from gfss.models.calibrators.options import PRESETS
from gfss.training.base_checkpoints import save_base
from gfss.training.method_checkpoints import save_method

QUERY = make.labelled(5)[0]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of artefacts: base model, a calibrator on NSF, one on NPF."""
    runs = tmp_path_factory.mktemp("runs")
    base = make.network().base
    for number, without in (("b0", None), ("b1", "part1of3")):
        save_base(runs / "base" / f"noise-{number}", base)
        write_json(runs / "base" / f"noise-{number}" / "spec.json", {"parents": [], "spec": {"without": without}})
    for name, inner in (
        ("pcn-support", NormalisedScoreFusion(NovelFitter())),
        ("npf+support", NormalisedParameterFusion()),
    ):
        calibrator = Calibrator(PRESETS["pcn-support"], (17, 17))
        assert calibrator.scale is not None
        calibrator.scale.data.fill_(5)
        save_method(runs / "method" / f"{name}-m", Calibrated(inner, calibrator, name, trained=True), base.card, {})
        write_json(runs / "method" / f"{name}-m" / "spec.json", {"parents": ["b1", "b0"], "spec": {}})
    return runs


@pytest.mark.parametrize(("part", "scale"), [("method/pcn-support-m", 5), ("base/noise-b0", None)])
def test_trained_folders_are_models(trained: Path, part: str, scale: int | None) -> None:
    model = gfss.load(trained / part)
    calibrator = model.network.calibrator
    assert (float(calibrator.scale) if calibrator and calibrator.scale is not None else None) == scale
    assert model.classes == ("background", *make.BASE)
    assert sources.describe_classes(trained / part)[1] == "  1  cat"


def test_a_method_without_its_base_model_is_refused(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained / "method", tmp_path / "method")
    with pytest.raises(GfssError, match="copy it there too"):
        gfss.load(tmp_path / "method" / "pcn-support-m")


def test_other_methods_are_no_calibrators(trained: Path) -> None:
    with pytest.raises(GfssError, match=r"holds the method 'npf\+support'; a model takes a calibrator on nsf"):
        gfss.load(trained / "method" / "npf+support-m")


def test_packing_halves_the_weights_and_embedding_gives_a_name(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "ASSETS", tmp_path / "assets")
    assert sources.embedded_models() == []
    pack(trained / "base" / "noise-b0", trained / "method" / "pcn-support-m", tmp_path / "assets" / "noise-tiny")
    pack(trained / "base" / "noise-b0", trained / "method" / "pcn-support-m", tmp_path / "whole", half=False)
    assert sources.embedded_models() == ["noise-tiny"]
    folders = (tmp_path / "assets" / "noise-tiny", tmp_path / "whole")
    sizes = [next(folder.glob("model-*.safetensors")).stat().st_size for folder in folders]
    assert sizes[0] < 0.6 * sizes[1]
    half, whole = gfss.load("noise-tiny"), gfss.load(tmp_path / "whole")
    assert abs(half.segment(QUERY).scores - whole.segment(QUERY).scores).max() < 0.05
    half.teach("box", *make.labelled(1))
    half.save(tmp_path / "taught")
    assert (gfss.load(tmp_path / "taught").segment(QUERY).scores == half.segment(QUERY).scores).all()
    assert sources.is_embedded("noise-tiny")
    assert not sources.is_embedded(tmp_path / "whole")
    with pytest.raises(GfssError, match=r"unknown model 'noise-tin'; did you mean 'noise-tiny'\?"):
        gfss.load("noise-tin")
