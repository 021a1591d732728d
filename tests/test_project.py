"""The files around the code: what they promise is there."""

from __future__ import annotations

import ast
import re
import runpy
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from gfss.cli import COMMANDS, _mount
from gfss.cli._failures import EXTRAS
from gfss.cli._lazy import LazyCommand

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted((ROOT / "docs").rglob("*.md"))
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT, IMPORTS = CONFIG["project"], CONFIG["tool"]["importlinter"]
PINS = dict(
    line.split("==")
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line and not line.startswith("#")
)


def readme_lines(command: str) -> list[str]:
    """Lines of the README's code blocks that start with a command."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines() if line.startswith(f"{command} ")]


def plain_name(requirement: str) -> str:
    """Name of a requirement, as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=!~ ]", requirement)[0]).lower()


@pytest.mark.parametrize("line", readme_lines("make"))
def test_readme_make_targets_exist(line: str) -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert line.split()[1] in targets


@pytest.mark.parametrize("line", readme_lines("gfss"))
def test_readme_commands_exist(line: str) -> None:
    name, *words = line.split()[1:]
    if name == "--help":
        return
    assert name in _mount().commands
    with LazyCommand(name, COMMANDS[name]).make_context(name, [], resilient_parsing=True) as context:
        command = context.command
    if COMMANDS[name].group:
        command = command.commands[words.pop(0)]
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words if word.startswith("-")} <= known | {"--help"}


def test_readme_has_the_two_commands_and_is_one_screen_before_the_results() -> None:
    assert readme_lines("make") == ["make quickstart", "make test"]
    assert len(README.partition("## Results")[0].splitlines()) <= 60


def test_links_lead_somewhere() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES):
        links = [link for link in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")) if "://" not in link]
        assert [link for link in links if not (page.parent / link).exists()] == [], page


def test_architecture_page_names_files_that_exist_and_draws_the_rooms_of_the_import_rules() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    paths = re.findall(r"`((?:src|docs)/[\w/.]+)`", page)
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []
    drawn = [name for name, *_ in runpy.run_path(str(ROOT / "docs" / "architecture.py"))["ROOMS"]]
    (layers,) = (contract["layers"] for contract in IMPORTS["contracts"] if contract["type"] == "layers")
    assert drawn == [layer.strip("()") for layer in layers]


def test_torch_is_pinned_to_the_tested_version() -> None:
    assert PINS["torch"] == "2.13.0"
    assert "torch>=2.6,<2.14" in PROJECT["dependencies"]


def test_everything_that_make_installs_is_pinned() -> None:
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *(name for extra in extras if extra != "web" for name in extras[extra])]
    pinned = {plain_name(name) for name in PINS}
    assert {plain_name(name) for name in wanted} - pinned <= {"gfss"}


def test_pins_are_exact_and_portable() -> None:
    assert all(re.fullmatch(r"[0-9][0-9a-z.]*", version) for version in PINS.values())
    assert not any("cuda" in name or name.startswith("nvidia") for name in PINS)


def test_every_extra_named_in_an_error_exists() -> None:
    assert set(EXTRAS.values()) <= set(PROJECT["optional-dependencies"])


def test_ci_runs_the_readme_test_command_and_the_linters() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert re.findall(r"^make \w+", script.read_text(), flags=re.MULTILINE) == ["make test", "make lint"]


def test_no_file_names_a_place_on_one_machine() -> None:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("the list of files comes from git, which is not here")
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True, text=True).stdout.split("\0")
    place = re.compile(rb"(?<![\w.~-])/(?:work|opt|root|home)/\w")
    paths = [ROOT / name for name in names if name and (ROOT / name).is_file()]
    assert [str(path) for path in paths if place.search(path.read_bytes())] == []


LONGEST, MOST_ARGUMENTS = 60, 8
# a command has an argument for every option; the others draw from or look up what has as many coordinates
MANY_ARGUMENTS = {
    "cli/__init__.py:_options",
    "cli/model.py:teach",
    "data/episodes.py:episode",
    "data/episodes.py:joint_episode",
    "reporting/paper.py:comparable_figure",
    "cli/serve.py:serve",
    "server/serve.py:run",
}


def functions() -> dict[str, tuple[int, int]]:
    """Every function of the package: its lines and the number of its arguments."""
    found: dict[str, tuple[int, int]] = {}
    for path in sorted((ROOT / "src" / "gfss").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                names = [one.arg for one in given if one.arg not in ("self", "cls")]
                place = f"{path.relative_to(ROOT / 'src' / 'gfss').as_posix()}:{node.name}"
                found[place] = (node.end_lineno or 0) - node.lineno + 1, len(names)
    return found


def test_functions_are_short_and_have_few_arguments() -> None:
    found = functions()
    assert len(found) > 500
    assert not {place for place, (lines, _) in found.items() if lines > LONGEST}
    assert {place for place, (_, arguments) in found.items() if arguments > MOST_ARGUMENTS} <= MANY_ARGUMENTS
