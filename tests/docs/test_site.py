"""The site: it builds strictly, fetches nothing from elsewhere, and reads well."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from tests.docs.pages import PAGES, ROOT, headings

LOADED = re.compile(
    r"<(?:script|img|iframe|source)[^>]+src=\"?(https?:|//)|<link[^>]+rel=\"?(?:stylesheet|preload)[^>]+(https?://)"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a warning of mkdocs is an error."""
    pytest.importorskip("mkdocs", reason="the extra 'docs' is not installed")
    pytest.importorskip("mkdocstrings", reason="the extra 'docs' is not installed")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_the_site_has_every_page(site: Path) -> None:
    built = {path.relative_to(site).with_suffix(".md").as_posix() for path in site.rglob("*.html")}
    assert {page.removeprefix("docs/") for page in PAGES if page.startswith("docs/")} <= built
    assert not list(site.rglob("*.py"))


def test_no_page_fetches_anything_from_elsewhere(site: Path) -> None:
    pages = {path.name: path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    assert [name for name, text in pages.items() if LOADED.search(text)] == []
    # the theme asks GitHub for stars only where a page shows the address of a repository in its header
    assert [name for name, text in pages.items() if 'data-md-component="source"' in text] == []
    assert [name for name, text in pages.items() if "unpkg.com" in text or "googleapis.com" in text] == []


def test_pages_written_by_hooks_are_filled(site: Path) -> None:
    cards, words, list_of_experiments, api = (
        (site / name).read_text(encoding="utf-8")
        for name in ("model-cards.html", "command-line.html", "experiments/index.html", "api/index.html")
    )
    assert "aeroplane" in cards
    assert all(f"gfss {name}" in words for name in ("teach", "data check", "reproduce"))
    assert "--without" in words
    assert "017-own-data.html" in list_of_experiments
    assert "estimate of how well" in api


@pytest.mark.parametrize("page", [page for page in PAGES if page != "README.md"])
def test_headings_go_down_one_level_at_a_time(page: str) -> None:
    levels = [level for level, _ in headings(page)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert PAGES[page].startswith("# ")


def test_spelling() -> None:
    if shutil.which("codespell", path=Path(sys.executable).parent.as_posix()) is None:
        pytest.skip("codespell is not installed (extra 'docs')")
    files = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md")
    command = [str(Path(sys.executable).with_name("codespell")), "docs", "src", "examples", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
