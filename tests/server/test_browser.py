"""The whole story in a real browser: open, paint, teach, look, correct, undo, export, reload.

The screenshots of docs/serve.md are made here: ``GFSS_SCREENSHOTS=docs/images pytest tests/server/test_browser.py``.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.server import make

import gfss
from gfss.data.images import read_mask

playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
SIDE = 448
SHOTS = os.environ.get("GFSS_SCREENSHOTS")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed; apt-get install chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as tools:
        opened = tools.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield opened
        opened.close()


class Page:
    """A tab with the page open, and what a user does in it."""

    def __init__(self, browser: Any, address: str, width: int = 1280, height: int = 800, **options: Any) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": height}, **options)
        self.tab = self.context.new_page()
        self.errors: list[str] = []
        self.tab.on("pageerror", lambda error: self.errors.append(str(error)))
        self.tab.on("dialog", lambda dialog: dialog.accept(self.answer))
        self.answer: str | None = None
        self.tab.goto(address)
        self.until("document.body.dataset.predicted")

    def until(self, expression: str, seconds: float = 30) -> Any:
        """Wait until something is true in the page; the page's own policy forbids the usual way."""
        end = time.monotonic() + seconds
        while not (value := self.tab.evaluate(expression)):
            assert time.monotonic() < end, expression
            time.sleep(0.03)
        return value

    def open(self, image: str) -> None:
        self.tab.click(f'.thumbnail[data-id="{image}"]')
        self.until(f"document.body.dataset.predicted?.startsWith('{image} ')")

    def place(self, x: float, y: float, side: int = SIDE) -> tuple[float, float]:
        """Where a pixel of a square image is on the screen."""
        box = self.tab.locator("#view").bounding_box()
        scale = min((box["width"] - 24) / side, (box["height"] - 24) / side)
        left = box["x"] + (box["width"] - side * scale) / 2
        top = box["y"] + (box["height"] - side * scale) / 2
        return left + (x + 0.5) * scale, top + (y + 0.5) * scale

    def drag(self, *points: tuple[float, float]) -> None:
        self.tab.mouse.move(*self.place(*points[0]))
        self.tab.mouse.down()
        for point in points[1:]:
            self.tab.mouse.move(*self.place(*point), steps=4)
        self.tab.mouse.up()

    def saved(self) -> None:
        self.until("document.querySelector('#saved').textContent === 'saved'")

    def outline(self, mask: np.ndarray) -> None:
        """Draw a polygon around every row span of a mask: good corners without knowing the shape."""
        rows = np.flatnonzero(mask.any(axis=1))
        chosen = [int(row) for row in rows[:: max(1, len(rows) // 12)]]
        spans = [(row, np.flatnonzero(mask[row])) for row in chosen]
        corners = [(int(s[0]), row) for row, s in spans] + [(int(s[-1]), row) for row, s in reversed(spans)]
        self.tab.keyboard.press("p")
        for corner in corners:
            self.tab.mouse.click(*self.place(*corner))
        self.tab.keyboard.press("Enter")
        self.saved()

    def box(self, mask: np.ndarray) -> None:
        """Draw a box around what a mask shows; what is proposed becomes the label."""
        rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
        self.tab.keyboard.press("r")
        self.drag((columns[0], rows[0]), (columns[-1], rows[-1]))
        self.until("!document.body.classList.contains('busy')")
        self.saved()

    def click_away(self, painted: np.ndarray, mask: np.ndarray) -> None:
        """Take a part away that was painted too much, by a click with Shift."""
        if not (painted & ~mask).any():
            return
        self.tab.keyboard.press("r")
        self.tab.keyboard.down("Shift")
        self.tab.mouse.click(*self.place(*make.centre(painted & ~mask)))
        self.tab.keyboard.up("Shift")
        self.until("!document.body.classList.contains('busy')")
        self.saved()

    def teach(self) -> None:
        self.tab.wait_for_selector("#teach:not([disabled])")
        self.changes_model(lambda: self.tab.click("#teach"))

    def changes_model(self, work: Callable[[], None]) -> None:
        """Do something and wait until the open image was segmented by another model."""
        version = self.tab.evaluate("document.body.dataset.predicted.split(' ').pop()")
        work()
        self.until(f"document.body.dataset.predicted.split(' ').pop() !== '{version}'", 90)

    def shot(self, name: str) -> None:
        if not SHOTS:
            return
        time.sleep(0.8)
        path = Path(SHOTS) / f"serve-{name}.png"
        self.tab.screenshot(path=path)
        Image.open(path).convert("RGB").quantize(256).save(path, optimize=True)  # a third of the size


def test_the_whole_story(browser: Any, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    stars = make.scene_folder(folder, 12, SIDE)
    with_star = sorted((name for name, mask in stars.items() if mask.any()), key=lambda name: -stars[name].sum())
    support, query = with_star[:3], with_star[3]
    begin = time.monotonic()
    with make.served(folder) as (address, studio):
        page = Page(browser, address)
        page.shot("open")
        page.tab.fill("#new-name", make.NEW)
        page.tab.press("#new-name", "Enter")
        page.tab.wait_for_selector("#own .class")
        proposed = []
        for name in support:
            page.open(name)
            page.box(stars[name])
            proposed.append(make.iou(studio.project.label(name) == 1, stars[name]))
        page.shot("paint")
        assert np.mean(proposed) > 0.6
        page.teach()
        page.open(query)
        seconds = time.monotonic() - begin
        print(
            f"{seconds:.1f} s from start to the first overlay of the taught class; boxes: IoU {np.mean(proposed):.2f}"
        )
        assert seconds < 60
        value = studio.model.classes.index(make.NEW)
        assert make.iou(studio.mask(query) == value, stars[query]) > 0.3
        page.shot("taught")
        assert "No known class" in page.tab.inner_text("#words") or "loses" in page.tab.inner_text("#words")

        # correct a prediction, teach again
        page.tab.click("#take")
        page.saved()
        assert (studio.project.label(query) == 1).any()
        page.tab.keyboard.press("e")
        rows, columns = np.nonzero(studio.project.label(query) == 1)
        page.drag((columns[0], rows[0]), (columns[len(columns) // 2], rows[len(rows) // 2]))
        page.saved()
        page.outline(stars[query])
        page.click_away(studio.project.label(query) == 1, stars[query])
        page.teach()
        assert studio.model.taught == {make.NEW: 4}

        # an image without the class
        empty = next(name for name, mask in stars.items() if not mask.any())
        page.open(empty)
        page.tab.keyboard.press("x")
        page.until("document.querySelector('#without').getAttribute('aria-pressed') === 'true'")
        assert studio.project.without(make.NEW) == [empty]

        # undo of strokes and of lessons
        before = studio.project.label(query).copy()
        page.open(query)
        page.tab.keyboard.press("b")
        page.drag((20, 20), (60, 40))
        page.saved()
        assert (studio.project.label(query) != before).any()
        page.tab.keyboard.press("Control+z")
        page.saved()
        assert (studio.project.label(query) == before).all()
        page.tab.keyboard.press("Control+Shift+z")
        page.saved()
        assert (studio.project.label(query) != before).any()
        page.tab.keyboard.press("Control+z")
        page.saved()
        page.changes_model(lambda: page.tab.click("#undo-lesson"))
        assert studio.model.taught == {make.NEW: 3}

        # take the results away
        page.tab.click("#export summary")
        page.shot("export")
        files = {}
        for kind in ("masks", "coco", "labels", "labels-coco", "model", "onnx"):
            page.tab.evaluate("document.querySelector('#export').open = true")
            with page.tab.expect_download(timeout=120_000) as waiting:
                page.tab.click(f"[data-export={kind}]")
            files[kind] = tmp_path / waiting.value.suggested_filename
            waiting.value.save_as(files[kind])
        coco = json.loads(files["coco"].read_text())
        assert make.NEW in [one["name"] for one in coco["categories"]]
        assert len(coco["images"]) == len(stars)
        with zipfile.ZipFile(files["model"]) as archive:
            assert any(name.endswith("model.json") for name in archive.namelist())
        assert files["onnx"].stat().st_size > 10_000
        with zipfile.ZipFile(files["masks"]) as archive:
            assert {f"masks/{name}.png" for name in stars} <= set(archive.namelist())
            assert archive.read("classes.txt").decode().split()[-1] == make.NEW

        # reload: nothing is lost, nothing is painted twice
        page.tab.reload()
        page.until("document.querySelector('#model').textContent.includes('1 taught')")
        page.until("document.querySelector('#own .words')?.textContent.includes('4 images painted')")
        assert page.errors == []
        page.context.close()

    # what was painted can be taught from the command line
    model = gfss.load(make.MODEL)
    model.teach(make.NEW, folder, make.labels_of(folder))
    assert [example.id for example in model.taught[0].shots] == sorted(f"{name}.png" for name in [*support, query])
    assert json.loads((make.labels_of(folder) / "project.json").read_text())["without"] == {make.NEW: [empty]}


def test_tools_zoom_and_shortcuts(browser: Any, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    names = list(make.scene_folder(folder, 3, SIDE))
    with make.served(folder) as (address, studio):
        page = Page(browser, address)
        page.tab.mouse.click(*page.place(200, 200))
        assert (
            "name" in page.tab.inner_text("#hint").lower()
        )  # no class yet: nothing is painted, the page says what to do
        page.tab.fill("#new-name", "thing")
        page.tab.press("#new-name", "Enter")
        page.tab.wait_for_selector("#own .class")
        label = lambda: studio.project.label(names[0])  # noqa: E731

        page.tab.click("[data-tool=brush]")
        page.drag((100, 100), (300, 100), (300, 300), (100, 300), (100, 100))
        page.saved()
        assert label()[100, 200] == 1
        assert label()[200, 200] == 0
        page.tab.keyboard.press("f")
        page.tab.mouse.click(*page.place(200, 200))
        page.saved()
        assert label()[200, 200] == 1
        assert label()[20, 20] == 0
        page.tab.keyboard.press("e")
        page.drag((200, 150), (200, 250))
        page.saved()
        assert label()[200, 200] == 0
        page.tab.keyboard.press("v")
        page.drag((200, 150), (200, 250))
        page.saved()
        assert label()[200, 200] == 255

        # what is painted under zoom lands where it was seen
        page.tab.keyboard.press("b")
        page.tab.mouse.move(*page.place(30, 30))
        page.tab.mouse.wheel(0, -600)
        time.sleep(0.2)
        page.tab.mouse.click(*page.place(30, 30))
        page.saved()
        assert label()[30, 30] == 1
        page.tab.keyboard.press("0")
        page.tab.keyboard.press("h")
        x, y = page.place(200, 200)
        page.tab.mouse.move(x, y)
        page.tab.mouse.down()
        page.tab.mouse.move(x + 40, y + 25)
        page.tab.mouse.up()
        page.tab.keyboard.press("b")
        page.tab.mouse.click(x + 40, y + 25)
        page.saved()
        assert label()[200, 200] == 1
        page.tab.keyboard.press("0")

        # a region by a click, taken away again by undo
        before = label().copy()
        page.tab.keyboard.press("r")
        page.tab.mouse.click(*page.place(400, 400))
        page.until("!document.body.classList.contains('busy')")
        page.saved()
        assert (label() != before).any()
        page.tab.keyboard.press("Control+z")
        page.saved()
        assert (label() == before).all()

        # rename and remove
        page.answer = "object"
        page.tab.click("#own .more summary")
        page.tab.click("#own .sheet button:has-text('Rename')")
        page.until("document.querySelector('#own b').textContent === 'object'")
        assert studio.project.classes == ["object"]
        page.tab.click("#own .more summary")
        page.tab.click("#own .sheet button:has-text('Remove')")
        page.until("!document.querySelector('#own b')")
        assert not (label() == 1).any()
        page.tab.keyboard.press("ArrowRight")
        page.until(f"document.body.dataset.predicted?.startsWith('{names[1]} ')")
        page.tab.click("#help")
        assert page.tab.locator("#shortcuts").is_visible()
        assert page.errors == []
        page.context.close()


def test_two_tabs_do_not_lose_each_others_strokes(browser: Any, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    name = next(iter(make.scene_folder(folder, 3, SIDE)))
    with make.served(folder) as (address, studio):
        studio.add_class("thing")
        tabs = [Page(browser, address) for _ in range(2)]
        for page, at in zip(tabs, (60, 300), strict=True):
            page.tab.keyboard.press("b")
            page.drag((at, at), (at + 60, at))
            page.saved()
        label = studio.project.label(name)
        assert label[60, 90] == label[300, 330] == 1
        painted = int((label == 1).sum())
        # each shows the other's stroke soon
        count = "[...window.gfss.view.labels.data].filter((value) => value === 1).length"
        for page in tabs:
            page.until(f"{count} === {painted}", 10)
            page.context.close()


def test_the_page_stays_usable_while_teaching(browser: Any, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    stars = make.scene_folder(folder, 6, SIDE)
    name = max(stars, key=lambda one: int(stars[one].sum()))
    with make.served(folder) as (address, studio):
        studio.add_class(make.NEW)
        studio.project.set_label(name, stars[name].astype(np.uint8))
        going = make.hold(studio)  # the next lesson waits until it is let go
        page = Page(browser, address)
        page.tab.wait_for_selector("#teach:not([disabled])")
        page.tab.click("#teach")
        page.tab.wait_for_selector("#progress:not([hidden])")
        other = next(one for one in stars if one != name)
        page.open(other)  # segments an image meanwhile
        page.tab.keyboard.press("b")
        page.drag((50, 50), (90, 90))
        page.saved()  # and saves a stroke
        assert (studio.project.label(other) == 1).any()
        assert not studio.model.taught
        going.set()
        page.until("document.querySelector('#model').textContent.includes('1 taught')", 60)
        # the stroke that came during the lesson is not part of it
        assert studio.model.taught == {make.NEW: 1}
        page.tab.wait_for_selector("#teach:not([disabled])")
        page.context.close()


def test_suggestion_balance_forget_and_a_model_changed_on_disk(browser: Any, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    stars = make.scene_folder(folder, 6, SIDE)
    chosen = sorted(stars, key=lambda one: -int(stars[one].sum()))[:2]
    with make.served(folder) as (address, studio):
        studio.add_class(make.NEW)
        for name in chosen:
            studio.project.set_label(name, stars[name].astype(np.uint8))
        studio.teach().finished.wait(60)
        page = Page(browser, address)
        page.open(chosen[0])

        # the balance is live: the overlay follows the slider before it is let go
        value = studio.model.classes.index(make.NEW)
        found = f"[...window.gfss.view.model.data].filter((one) => one === {value}).length"
        before = page.tab.evaluate(found)
        slide = (
            "(kind) => {{ const one = document.querySelector('#balance-value'); one.value = {}; "
            "one.dispatchEvent(new Event(kind)); }}"
        )
        page.tab.evaluate(slide.format(6), "input")
        page.until(f"{found} > {before}")
        assert studio.model.balance(make.NEW) == 0
        page.changes_model(lambda: page.tab.evaluate(slide.format(-6), "change"))
        assert studio.model.balance(make.NEW) == -6
        assert page.tab.evaluate(found) < before

        page.tab.keyboard.press("n")
        suggested = page.until("document.querySelector('.thumbnail.suggested')?.dataset.id")
        assert suggested not in chosen
        page.until(f"document.body.dataset.predicted?.startsWith('{suggested} ')")

        model = gfss.load(studio.model.folder)  # another program renames the class
        model.rename(make.NEW, "renamed elsewhere")
        model.save(studio.model.folder)
        page.until("!document.querySelector('#notice-action').hidden && !document.querySelector('#notice').hidden")
        page.changes_model(lambda: page.tab.click("#notice-action"))
        page.until("document.querySelector('#base').textContent.includes('renamed elsewhere')")

        studio.undo()
        studio.teach().finished.wait(60)
        page.until("document.querySelector('#own .words')?.textContent.includes('taught')")
        page.tab.click("#own .more summary")
        page.changes_model(lambda: page.tab.click("#own .sheet button:has-text('Forget')"))
        assert studio.model.taught == {}
        assert studio.project.areas(chosen[0])  # its labels stay
        assert page.errors == []
        page.context.close()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (900, "light"), (900, "dark")])
def test_nothing_overlaps_or_is_cut_off(browser: Any, tmp_path: Path, width: int, scheme: str) -> None:
    folder = tmp_path / "photos"
    stars = make.scene_folder(folder, 9, SIDE)
    with make.served(folder) as (address, studio):
        studio.add_class(make.NEW)
        for name in [one for one in stars if stars[one].any()][:3]:
            studio.project.set_label(name, stars[name].astype(np.uint8))
        studio.teach().finished.wait(60)
        page = Page(browser, address, width, 760, color_scheme=scheme)
        page.open([one for one in stars if stars[one].any()][-1])
        page.tab.wait_for_selector("#bars .pair")
        page.shot(f"{width}-{scheme}")
        wide = page.tab.evaluate("document.documentElement.scrollWidth")
        assert wide <= width
        cut = page.tab.evaluate(
            "[...document.querySelectorAll('button, .check, .slider')].filter((one) => one.offsetParent && "
            "one.getBoundingClientRect().right > innerWidth + 1).map((one) => one.textContent)"
        )
        assert cut == []
        page.context.close()


def test_a_server_that_was_killed_is_noticed_and_strokes_are_sent_again(browser: Any, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    name = next(iter(make.scene_folder(folder, 3, SIDE)))
    with make.served(folder) as (address, studio):
        studio.add_class("thing")
        page = Page(browser, address)
        page.tab.keyboard.press("b")
        page.context.set_offline(True)
        page.drag((60, 60), (120, 60))
        page.until("document.querySelector('#saved').textContent.startsWith('not saved')")
        assert not (studio.project.label(name) == 1).any()
        page.context.set_offline(False)
        page.saved()
        assert studio.project.label(name)[60, 90] == 1
        assert (read_mask(make.labels_of(folder) / "masks" / f"{name}.png") == studio.project.label(name)).all()
        page.context.close()
