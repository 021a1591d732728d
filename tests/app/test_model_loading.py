"""Models by name, by folder, and from what ``gfss train`` wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.app import make

import gfss
from gfss.app import model_loading as sources
from gfss.app.embed import pack
from gfss.common.errors import GfssError
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
    """The folder of a fold: base model, calibrators for one and five shots."""
    folder = tmp_path_factory.mktemp("runs") / "fold0"
    base = make.network().base
    save_base(folder / "base", base)
    for shots in (1, 5):
        calibrator = Calibrator(PRESETS["pcn-support"], (17, 17))
        assert calibrator.scale is not None
        calibrator.scale.data.fill_(shots)
        method = Calibrated(NormalisedScoreFusion(NovelFitter()), calibrator, "pcn-support", trained=True)
        save_method(folder / f"pcn-support-{shots}shot", method, base.card, {})
    other = Calibrated(
        NormalisedParameterFusion(), Calibrator(PRESETS["pcn-support"], (17, 17)), "npf+support", trained=True
    )
    save_method(folder / "npf+support-1shot", other, base.card, {})
    return folder


@pytest.mark.parametrize(
    ("part", "scale"), [("", 1), ("pcn-support-1shot", 1), ("pcn-support-5shot", 5), ("base", None)]
)
def test_trained_folders_are_models(trained: Path, part: str, scale: int | None) -> None:
    model = gfss.load(trained / part)
    calibrator = model.network.calibrator
    assert (float(calibrator.scale) if calibrator and calibrator.scale is not None else None) == scale
    assert model.classes == ("background", *make.BASE)
    assert sources.describe_classes(trained / part)[1] == "  1  cat"


def test_other_methods_are_no_calibrators(trained: Path) -> None:
    with pytest.raises(GfssError, match=r"holds the method 'npf\+support'; a model takes a calibrator on nsf"):
        gfss.load(trained / "npf+support-1shot")


def test_packing_halves_the_weights_and_embedding_gives_a_name(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "ASSETS", tmp_path / "assets")
    assert sources.embedded_models() == []
    pack(trained / "base", trained / "pcn-support-1shot", tmp_path / "assets" / "noise-tiny")
    pack(trained / "base", trained / "pcn-support-1shot", tmp_path / "whole", half=False)
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
