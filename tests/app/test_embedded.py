"""Models by name, by folder, and from what ``gfss run`` trained."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.app import make

import gfss
from gfss.app import model_folder as sources
from gfss.app.embed import pack
from gfss.common.errors import GfssError
from gfss.common.files import write_json
from gfss.methods.pcn import Calibrated, NormalisedScoreFusion, NovelFitter
from gfss.models.calibrators.calibrator import PRESETS, Calibrator
from gfss.training.checkpoints import save_base, save_method

QUERY = make.labelled(5)[0]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of artefacts: base models, the first of them whole, and a calibrator."""
    runs = tmp_path_factory.mktemp("runs")
    for number, without, spread in (("b0", None, 0.3), ("b1", "part1of3", 3.0)):
        base = make.network(spread=spread).base
        save_base(runs / "base" / f"noise-{number}", base)
        write_json(runs / "base" / f"noise-{number}" / "spec.json", {"parents": [], "spec": {"without": without}})
    calibrator = Calibrator(PRESETS["pcn-support"], (17, 17))
    method = Calibrated(NormalisedScoreFusion(NovelFitter()), calibrator, "pcn-support", trained=True)
    save_method(runs / "method" / "pcn-support-m", method, make.network().base.card, {})
    write_json(runs / "method" / "pcn-support-m" / "spec.json", {"parents": ["b1", "b0"], "spec": {}})
    return runs


@pytest.mark.parametrize("part", ["method/pcn-support-m", "base/noise-b0"])
def test_trained_folders_are_models(trained: Path, part: str) -> None:
    """A method's folder is the base model that it was trained on; the tool fits new classes in its own way."""
    model = gfss.load(trained / part)
    assert model.classes == ("background", *make.BASE)
    assert (model.segment(QUERY).scores == make.model().segment(QUERY).scores).all()
    assert sources.describe_classes(trained / part)[1] == "  1  cat"


def test_a_method_without_its_base_model_is_refused(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained / "method", tmp_path / "method")
    with pytest.raises(GfssError, match="copy it there too"):
        gfss.load(tmp_path / "method" / "pcn-support-m")


def test_packing_halves_the_weights_and_embedding_gives_a_name(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "ASSETS", tmp_path / "assets")
    assert sources.embedded_models() == []
    pack(trained / "base" / "noise-b0", tmp_path / "assets" / "noise-tiny")
    pack(trained / "base" / "noise-b0", tmp_path / "whole", half=False)
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
