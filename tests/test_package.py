"""Wheel and sdist: built, installed away from the repository, and used there; the files that belong to a release."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

import gfss
from gfss.cli._failures import EXTRAS

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PINS = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
HOME = PROJECT["urls"]["Source"]
IMPORTED_AS = {"pyyaml": "yaml", "pillow": "PIL", "scikit-learn": "sklearn", "lightning-fabric": "lightning_fabric"}


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def names(requirements: list[str]) -> set[str]:
    """Import names of requirements."""
    plain = [re.split(r"[\[<>=!~ ]", one)[0].lower() for one in requirements]
    return {IMPORTED_AS.get(name, name.replace("-", "_")) for name in plain}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with sdist and wheel; the wheel is built from the sdist, so nothing may be missing there."""
    pytest.importorskip("build", reason="the package build is not installed")
    pytest.importorskip("hatchling", reason="the package hatchling is not installed")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def gfss_elsewhere(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of a new environment that has the wheel, and sees the packages of this one."""
    home = tmp_path_factory.mktemp("empty")
    venv.create(home, with_pip=False)
    (wheel,) = built.glob("*.whl")
    into = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "install", "--no-index"]
    done = subprocess.run([*into, "--no-deps", str(wheel)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (site,) = home.glob("lib/python*/site-packages")
    # a line of a .pth file is searched last, and .pth files there (the editable gfss) are not followed
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin" / "gfss"


def run(command: Path, *words: str, folder: Path) -> str:
    """What a command prints, run in a folder without a trace of the repository."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([str(command), *words], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_sdist_has_what_the_tests_need_and_the_wheel_only_what_runs(built: Path) -> None:
    (sdist,), (wheel,) = built.glob("*.tar.gz"), built.glob("*.whl")
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {"Makefile", "CITATION.cff", "mkdocs.yml", "tests/conftest.py", "docs/index.md", ".ci/run"} <= inside
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    assert {name.partition("/")[0] for name in inside} == {"gfss", f"gfss-{gfss.__version__}.dist-info"}
    assert {"gfss/py.typed", "gfss/_recipes/scenes.yaml", "gfss/assets/voc20-lite0/model.json"} <= inside
    assert sum(path.stat().st_size for path in built.iterdir()) < 60_000_000


@pytest.mark.slow
def test_an_environment_without_the_repository_teaches_and_segments(gfss_elsewhere: Path, tmp_path: Path) -> None:
    place = "import gfss.cli; print(gfss.cli.__file__)"
    python = gfss_elsewhere.with_name("python")
    assert Path(run(python, "-c", place, folder=tmp_path).strip()).is_relative_to(gfss_elsewhere.parents[1])
    assert run(gfss_elsewhere, "--version", folder=tmp_path) == f"gfss {gfss.__version__}\n"
    assert "scenes-tiny" in run(gfss_elsewhere, "doctor", folder=tmp_path)
    assert "report.html" in run(gfss_elsewhere, "demo", folder=tmp_path)
    data = ("--images", "gfss-demo/photos", "--masks", "gfss-demo/masks")
    run(gfss_elsewhere, "teach", "scenes-tiny", "--name", "hoop", *data, "-o", "model", folder=tmp_path)
    run(gfss_elsewhere, "segment", "model", "gfss-demo/new-photos", "-o", "out", folder=tmp_path)
    assert len(list((tmp_path / "out").glob("*_overlay.jpg"))) == 6
    assert "step" in run(gfss_elsewhere, "run", "scenes", "--dry-run", folder=tmp_path)  # a recipe of the package


def test_every_import_is_a_declared_requirement() -> None:
    found: set[str] = set()
    for path in (ROOT / "src" / "gfss").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                found.add((node.module or "").partition(".")[0])
    foreign = found - set(sys.stdlib_module_names) - {"gfss", "pydantic_core"}  # the latter is a part of pydantic
    always = names(PROJECT["dependencies"])
    extras = {one: extra for extra, listed in PROJECT["optional-dependencies"].items() for one in names(listed)}
    assert foreign - always <= set(extras)
    # who lacks one of an extra is told which
    assert {name for name in foreign - always if extras[name] not in ("dev", "lite")} <= set(EXTRAS)


def test_every_direct_requirement_has_a_lower_bound() -> None:
    every = [*PROJECT["dependencies"], *(one for listed in PROJECT["optional-dependencies"].values() for one in listed)]
    assert [one for one in every if ">=" not in one and not one.startswith("gfss[")] == []


def test_version_and_address_are_the_same_everywhere() -> None:
    citation = yaml.safe_load(read("CITATION.cff"))
    assert citation["version"] == gfss.__version__
    assert f"## [{gfss.__version__}]" in read("CHANGELOG.md")
    assert f"Version {gfss.__version__}" in read("README.md")
    assert citation["repository-code"] == HOME
    for name in ("SECURITY.md", ".github/ISSUE_TEMPLATE/config.yml", "mkdocs.yml"):
        assert HOME in read(name), name


def test_workflows_use_targets_of_make_and_pinned_tools() -> None:
    targets = re.findall(r"^([a-z]+):", read("Makefile"), flags=re.MULTILINE)
    flows = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / ".github" / "workflows").glob("*.yml")}
    assert set(flows) == {"test", "lint", "docs", "release"}
    used = [word for text in flows.values() for word in re.findall(r"run: make (\w+)", text)]
    assert {"test", "lint", "docs"} == set(used)
    assert set(used) <= set(targets)
    tested = re.search(r"python: (\[.*\])", flows["test"])
    assert tested is not None
    assert [f"Programming Language :: Python :: {one}" in PROJECT["classifiers"] for one in yaml.safe_load(tested[1])]
    for tool in ("ruff", "codespell"):
        assert re.search(rf"/{tool}[\w-]*\n +rev: v{re.escape(PINS[tool])}\n", read(".pre-commit-config.yaml")), tool
