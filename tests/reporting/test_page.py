"""The page builder: everything inside one file, text escaped, the best figure marked."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import numpy as np

from gfss.reporting.page import Page

VOID_TAGS = {"meta", "img", "br"}


class Balance(HTMLParser):
    """Notes tags that are opened and not closed, and addresses that lie outside the page."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID_TAGS:
            self.open.append(tag)
        self.outside += [v for k, v in attrs if k in ("src", "href") and v and not v.startswith("data:")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> without <{tag}>"
        assert self.open.pop() == tag


def make_page(path: Path) -> str:
    page = Page("A <title>", "lead & more")
    page.section("Numbers", "one & two")
    page.table(["method", "H"], [["nsf", "40.7"], ["pcn", "44.3"], ["base", "-"]], best=(1,))
    page.section("Bars")
    page.bars({"cat": (10.0, 20.0), "new one": (0.0, 35.5)}, new=["new one"])
    page.images(["query"], [[np.zeros((4, 5, 3), dtype=np.uint8)]], notes=["a note"])
    page.write(path)
    return path.read_text(encoding="utf-8")


def test_page_is_balanced_and_self_contained(tmp_path: Path) -> None:
    parser = Balance()
    parser.feed(make_page(tmp_path / "page.html"))
    assert parser.open == []
    assert parser.outside == []


def test_text_is_escaped_and_best_is_marked(tmp_path: Path) -> None:
    text = make_page(tmp_path / "page.html")
    assert "A &lt;title&gt;" in text
    assert '<td class="best">44.3</td>' in text
    assert "<td>40.7</td>" in text


def test_bars_show_before_and_after(tmp_path: Path) -> None:
    text = make_page(tmp_path / "page.html")
    assert "width: 35.5%" in text
    assert "10.0 → 20.0" in text
