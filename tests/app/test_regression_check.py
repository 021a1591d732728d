"""Before and after: figures, moves, guard, pages."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from PIL import Image
from tests.app import make
from tests.data import make as files

import gfss
from gfss.app.network import Network, Taught
from gfss.app.regression_check import BALANCES, Case, State, _assumed, compare, support_cases
from gfss.app.report import ClassRow, CurvePoint, Report
from gfss.app.segmenter import Segmenter
from gfss.common.errors import GfssError
from gfss.data.images import read_mask, square_label
from gfss.models.novel.logistic import LogisticHead

NAMES = ("background", *make.BASE, "box")


@pytest.fixture(scope="module")
def taught() -> Segmenter:
    model = make.model()
    for seed in (1, 2):
        model.teach("box", *make.labelled(seed), add=seed > 1)
    return model


@pytest.fixture(scope="module")
def validation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images whose classes stand in another order than the model's, with one that it does not know."""
    root = tmp_path_factory.mktemp("validation")
    (root / "classes.txt").write_text("dog\nbox\nspoon\n")
    for i in range(3):
        image, mask = make.labelled(10 + i)
        truth = np.where(mask == 1, 2, 0).astype(np.uint8)
        truth[:12] = 1
        truth[12:20, :10] = 3
        files.png(root / "images" / f"v{i}.png", image)
        files.png(root / "masks" / f"v{i}.png", truth)
    return root


@pytest.fixture(scope="module")
def report(taught: Segmenter, validation: Path) -> Report:
    return taught.report(validation)


def test_figures_agree_with_masks_that_the_model_gives(taught: Segmenter, validation: Path, report: Report) -> None:
    """An independent count: segment every image before and after, compare with the truth."""
    before = make.model()
    before.teach("box", *make.labelled(1))
    section = report.sections[1]
    assert section.images == 3
    table = np.array([0, 2, 4, 255], dtype=np.uint8)  # background, dog, box, a class that the model does not know
    for model, side in ((before, "before"), (taught, "after")):
        inside, either = np.zeros(5), np.zeros(5)
        for i in range(3):
            predicted = square_label(model.segment(validation / "images" / f"v{i}.png").mask, make.SIZE)
            truth = table[square_label(read_mask(validation / "masks" / f"v{i}.png"), make.SIZE) % 252]
            judged = (truth != 255) & (predicted != 255)
            for label in range(5):
                mine, true = (predicted == label) & judged, (truth == label) & judged
                inside[label] += (mine & true).sum()
                either[label] += (mine | true).sum()
        for row, part, whole in zip(section.rows, inside, either, strict=True):
            assert getattr(row, side) == (pytest.approx(100 * part / whole) if whole else None)


def test_moves_are_the_pixels_that_changed(taught: Segmenter, validation: Path, report: Report) -> None:
    """An independent count: segment every image before and after, leave void out."""
    before = make.model()
    before.teach("box", *make.labelled(1))
    changed: Counter[tuple[str, str]] = Counter()
    for i in range(3):
        picture = validation / "images" / f"v{i}.png"
        truth = square_label(read_mask(validation / "masks" / f"v{i}.png"), make.SIZE)
        old, new = (square_label(model.segment(picture).mask, make.SIZE) for model in (before, taught))
        for one, other in zip(old[truth < 3], new[truth < 3], strict=True):  # 3 is a class that the model does not know
            if one != other:
                changed[NAMES[one], NAMES[other]] += 1
    moves = report.sections[1].moves
    assert {(move.source, move.target): move.pixels for move in moves} == changed
    assert [move.pixels for move in moves] == sorted(changed.values(), reverse=True)
    assert all(section.names == NAMES for section in report.sections)


def test_before_on_the_support_images_is_what_the_model_said(taught: Segmenter) -> None:
    """Where nothing is labelled, the model before the lesson is right by definition."""
    model = make.model()
    model.teach("box", *make.labelled(1))
    for row in model.report().sections[0].rows:
        if row.name == "box":
            assert not row.known
            assert row.after is not None
        elif row.before is not None and row.pixels:
            assert row.before > 0


def test_the_curve_trades_known_for_new_classes(report: Report) -> None:
    curve = report.sections[1].curve
    assert [point.balance for point in curve] == list(BALANCES)
    rows = {row.name: row for row in report.sections[1].rows}
    middle = curve[len(BALANCES) // 2]
    assert middle.taught == pytest.approx(rows["box"].after)
    assert middle.base == pytest.approx(rows["dog"].after)
    assert report.sections[0].curve == []


def test_losses_name_class_points_and_images(report: Report) -> None:
    everything = report.losses(-1000.0)
    assert {loss.name for loss in everything} <= {*NAMES}
    assert report.losses(1000.0) == []
    for loss in everything:
        row = next(r for s in report.sections if s.title == loss.title for r in s.rows if r.name == loss.name)
        assert row.before is not None
        assert row.after is not None
        assert loss.points == pytest.approx(row.before - row.after)
        assert f"'{loss.name}' loses" in loss.sentence()


def test_a_class_with_few_pixels_is_named_but_not_judged(report: Report, tmp_path: Path) -> None:
    section = report.sections[0]
    rare = ClassRow("cat", True, report.least - 1, 80.0, 10.0)
    found = replace(report, sections=[replace(section, rows=[rare], where={})])
    assert found.losses() == []
    assert [(loss.name, loss.points) for loss in found.too_rare()] == [("cat", 70.0)]
    sentence = "'cat' loses 70.0 points of IoU on "
    assert f"{sentence}{section.title}, but shows less than 1% of one image: too little to judge." in str(found)
    assert "No other known class loses more than 2 points." in str(found)
    found.save(tmp_path / "report.html")
    assert 'class="bad"' not in (tmp_path / "report.html").read_text()
    common = replace(found, sections=[replace(section, rows=[replace(rare, pixels=report.least)], where={})])
    assert (len(common.losses()), common.too_rare()) == (1, [])


def test_text_and_page_say_the_same(report: Report, tmp_path: Path) -> None:
    report.save(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    text = str(report)
    assert "teaching box" in text
    assert "teaching box" in page
    for row in report.sections[1].seen:
        assert row.name in text
        assert f"<td>{row.name}</td>" in page
    assert "balance moved by" in text
    assert page.count("data:image/svg+xml") == sum(bool(section.curve) for section in report.sections) > 0
    sources = re.findall(r'src="([^;]+);', page)
    assert set(sources) <= {"data:image/svg+xml", "data:image/jpeg"}
    assert sources.count("data:image/jpeg") == 4 * sum(c.image is not None for s in report.sections for c in s.worst)
    assert "http" not in page


def test_validation_images_that_were_taught_from_are_named(tmp_path: Path) -> None:
    model = make.model()
    model.teach("box", *make.labelled(1))
    for name, seed in (("same", 1), ("other", 2)):
        for folder, pixels in zip(("images", "masks"), make.labelled(seed), strict=True):
            (tmp_path / "val" / folder).mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(tmp_path / "val" / folder / f"{name}.png")
    report = model.report(tmp_path / "val")
    assert report.sections[1].repeated == ("same.png",)
    note = "1 of these 2 images was also used for teaching (same.png); the figures look better than they are"
    assert note in str(report)
    report.save(tmp_path / "report.html")
    assert note in (tmp_path / "report.html").read_text()
    assert report.sections[0].note == ""


def test_classes_that_no_label_shows_are_left_out(report: Report) -> None:
    section = report.sections[1]
    rows = [replace(section.rows[0], name="never", pixels=0, before=0.0, after=0.0), *section.rows]
    changed = replace(report, sections=[replace(section, rows=rows)])
    assert "never" not in str(changed)
    assert section.rows[0].name in str(changed)


def test_names_are_escaped(tmp_path: Path) -> None:
    model = make.model()
    model.teach("<script>", *make.labelled(1))
    model.report().save(tmp_path / "report.html")
    assert "<script>" not in (tmp_path / "report.html").read_text()


def test_a_validation_folder_without_known_classes_is_refused(taught: Segmenter, tmp_path: Path) -> None:
    files.plain(tmp_path, {"a": files.boxes(1), "b": files.boxes(1)}, ("spoon",), val=("a",))
    with pytest.raises(GfssError, match="labels spoon, none of which the model knows"):
        taught.report(tmp_path)


def test_a_model_that_was_not_taught_has_nothing_to_report() -> None:
    report = make.model().report()
    assert report.sections == []
    assert "Nothing was taught yet" in str(report)


KNOWN = torch.tensor([True, True, True, False])


def assumed(old: list[int], new: list[int], denied: tuple[int, ...] = ()) -> list[int]:
    maps = [torch.tensor([labels], dtype=torch.uint8) for labels in (old, new)]
    return _assumed(maps[0], maps[1], KNOWN, denied, torch.ones_like(maps[0], dtype=torch.bool))[0].tolist()


def test_without_a_label_only_pixels_that_a_new_class_takes_are_judged() -> None:
    assert assumed([0, 1, 1, 2, 2], [0, 1, 2, 2, 3]) == [0, 1, 255, 2, 2]


def test_a_class_that_hardly_stays_anywhere_in_an_image_is_not_assumed_there() -> None:
    """Nobody labelled class 2, and most of it went: the model may have imagined it."""
    assert assumed([0, 2, 2, 2], [0, 2, 3, 3]) == [0, 2, 255, 255]
    assert assumed([0, 2, 2, 2, 2], [0, 2, 2, 3, 3]) == [0, 2, 2, 2, 2]


def test_evidence_is_looked_for_among_pixels_without_a_label() -> None:
    old, new = (torch.tensor([labels], dtype=torch.uint8) for labels in ([2, 2, 2], [2, 2, 3]))
    area = torch.tensor([[False, False, True]])
    assert _assumed(old, new, KNOWN, (3,), area)[0, 2] == 255


def test_a_class_that_is_labelled_elsewhere_is_not_assumed() -> None:
    """Class 2 is known and denied: kept, left for background, taken over, left for a known and for a new class."""
    assert assumed([2, 2, 1, 1, 2, 2], [2, 0, 1, 2, 1, 3], (2,)) == [0, 0, 1, 1, 255, 0]
    assert assumed([2, 2, 1, 2, 2], [2, 0, 2, 1, 3], (2,)) == [0, 0, 255, 255, 0]


class Scripted:
    """Stands for a network: says one thing before a lesson and another after it."""

    size = 20

    def __init__(self, before: np.ndarray, after: np.ndarray) -> None:
        self.said = {None: before, "taught": after}

    def scores(self, levels: dict[str, torch.Tensor], taught: Taught | None) -> torch.Tensor:
        labels = torch.from_numpy(self.said["taught" if taught else None]).long()
        return torch.nn.functional.one_hot(labels, 3).movedim(-1, 0)[None].float()


def lesson(before: np.ndarray, after: np.ndarray, truth: np.ndarray) -> Report:
    """The report of one support image; label 1 is a cat, known before, label 2 is taught."""
    taught = Taught(LogisticHead(torch.zeros(1, 1), torch.zeros(1)), torch.zeros(1), torch.zeros(1, 2), (None,))
    states = State(("background", "cat"), None), State(("background", "cat", "box"), taught)
    case = Case("a.png", {}, truth, truth == 0, (2,))
    network = cast(Network, Scripted(before, after))
    return Report("a lesson", 20, [compare("the support images", network, *states, [case])], {})


def test_an_imagined_cat_is_no_loss() -> None:
    """The base model saw a cat beside the box; the mask says where the box is, but nobody said cat."""
    before, after, truth = (np.zeros((20, 20), dtype=np.uint8) for _ in range(3))
    before[:, :8] = 1
    truth[5:15, 10:] = 2
    after[:, :8] = 1
    after[5:15, 4:] = 2  # takes 40 of the cat's pixels and leaves 120: it seems to be there
    (loss,) = lesson(before, after, truth).losses()
    assert (loss.name, loss.points, loss.images) == ("cat", pytest.approx(25), ("a.png",))
    after[:, 2:] = 2  # takes 120 and leaves 40
    report = lesson(before, after, truth)
    assert "cat" not in [loss.name for loss in report.losses()]
    row = next(row for row in report.sections[0].rows if row.name == "box")
    assert row.after == pytest.approx(100 * 100 / 360)  # that the box spilled over counts against it all the same


def test_a_cat_that_the_label_file_shows_is_true(tmp_path: Path) -> None:
    """What the file says of known classes is the truth, not what the model said before, also after saving."""
    image, mask = make.labelled(1)
    model = make.model()
    both = np.where(mask == 1, 2, 0).astype(np.uint8)
    both[:6] = 1
    files.plain(tmp_path, {"a": both, "b": both}, ("cat", "box"), val=("b",))
    files.png(tmp_path / "images" / "a.jpg", image)
    model.teach("box", tmp_path / "images", tmp_path)
    labelled = next(iter(support_cases(model.taught, model.classes)))
    expected = np.array([0, 1, 4], dtype=np.uint8)[both]
    assert (labelled.truth == square_label(expected, make.SIZE)).all()
    assert labelled.assumed is not None
    assert not labelled.assumed[labelled.truth == 1].any()
    model.save(tmp_path / "m")
    again = next(iter(support_cases(gfss.load(tmp_path / "m").taught, model.classes)))
    assert (again.truth == labelled.truth).all()


def test_the_recommended_balance_is_the_best_of_the_curve(report: Report) -> None:
    section = report.sections[1]
    points = {-1.0: (80.0, 10.0), 0.0: (70.0, 40.0), 1.0: (60.0, 60.0), 2.0: (20.0, 90.0)}

    def recommended(curve: dict[float, tuple[float | None, float | None]]) -> dict[str, float]:
        made = replace(section, curve=[CurvePoint(at, *figures) for at, figures in curve.items()])
        return replace(report, sections=[made], balances={"box": 0.5}).recommended

    assert recommended({**points}) == {"box": 1.5}  # moved from where it is
    assert recommended({at: (None, figures[1]) for at, figures in points.items()}) == {"box": 2.5}
    assert recommended({at: (figures[0], None) for at, figures in points.items()}) == {}  # fewer is not better
    assert recommended({at: (50.0, 50.0) for at in (-4.0, 0.0, 4.0)}) == {"box": 0.5}
    assert recommended({}) == {}


def test_the_recommendation_is_said_in_text_and_page(report: Report, tmp_path: Path) -> None:
    curve = [CurvePoint(at, 50.0, 50.0 + at) for at in BALANCES]
    made = replace(report, sections=[replace(report.sections[1], curve=curve)], balances={"big box": 0.0})
    sentence = "Recommended balance of 'big box' +4; gfss balance MODEL 'big box' 4 stores it."
    assert sentence in str(made)
    made.save(tmp_path / "r.html")
    assert sentence.replace("'", "&#39;") in (tmp_path / "r.html").read_text()
    best = replace(made, balances={"big box": 0.0}, sections=[replace(made.sections[0], curve=[curve[4]])])
    assert "The balance of 'big box', +0, is the best of those compared." in str(best)


def test_adding_images_is_judged_by_their_labels() -> None:
    """An independent count: pixels outside the label that the model gives to the class are wrong."""
    model = make.model()
    model.teach("box", *make.labelled(1))
    before = [model.segment(make.labelled(seed)[0]).mask == 4 for seed in (1, 2)]
    model.teach("box", *make.labelled(2), add=True)
    after = [model.segment(make.labelled(seed)[0]).mask == 4 for seed in (1, 2)]
    row = next(row for row in model.report().sections[0].rows if row.name == "box")
    truth = np.stack([make.labelled(seed)[1] == 1 for seed in (1, 2)])
    for found, said in ((before, row.before), (after, row.after)):
        area = np.stack(found)
        expected = 100 * (area & truth).sum() / (area | truth).sum()
        assert said == pytest.approx(expected, abs=3)  # there at the model's size, here at the picture's
        assert said < 100
