"""gfss demo and gfss doctor do what they say."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import gfss
from gfss.app import doctor
from gfss.app.demo import NAME, NEW
from gfss.cli import main

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the demonstration writes."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "gfss-demo"


def test_demo_teaches_segments_and_reports(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo"]) == 0
    said = capsys.readouterr().out
    assert [line.split()[2] for line in said.splitlines() if line.startswith("$ ")] == ["teach", "segment", "report"]
    assert gfss.load(out / "model").classes[-1] == NAME
    assert len(list((out / "segmented").glob("*_overlay.jpg"))) == NEW
    assert NAME in (out / "report.html").read_text(encoding="utf-8")


def test_the_commands_that_demo_prints_run(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["demo"])
    commands = [line.split()[2:] for line in capsys.readouterr().out.splitlines() if line.startswith("$ ")]
    # report ends with 1 if a known class lost too much, which is for the images to say
    assert [main(command) in (0, *([1] if command[0] == "report" else [])) for command in commands] == [True] * 3


def test_demo_refuses_a_folder_with_something_in_it(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out.mkdir()
    (out / "mine.txt").write_text("keep")
    assert main(["demo"]) == 2
    assert "not an empty folder" in capsys.readouterr().err
    assert [path.name for path in out.iterdir()] == ["mine.txt"]


def test_doctor_names_every_extra(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "scenes-tiny" in said
    assert "cores" in said
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(doctor.USES) == set(extras) - set(doctor.APART)


def test_doctor_says_where_data_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GFSS_PASCAL", str(tmp_path))
    monkeypatch.setenv("GFSS_COCO", str(tmp_path / "gone"))
    monkeypatch.delenv("GFSS_WEIGHTS", raising=False)
    main(["doctor"])
    said = capsys.readouterr().out
    assert f"PASCAL-5^i: {tmp_path}\n" in said
    assert f"GFSS_COCO={tmp_path / 'gone'} is not a folder" in said
    assert "GFSS_WEIGHTS is not set" in said


def test_doctor_says_what_is_missing_and_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def version(name: str) -> str:
        if name in ("av", "rich"):
            raise metadata.PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(doctor, "version", version)
    monkeypatch.setattr(
        doctor, "requires", lambda _: ["rich", "torch>=2", "av>=1; extra == 'video'", "onnx; extra == 'export'"]
    )
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "missing: rich; run: pip install 'rich'" in said
    assert "missing av; run: pip install 'gfss[video]'" in said
    assert "export: ready" in said
