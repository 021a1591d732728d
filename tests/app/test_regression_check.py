"""Before and after: figures, moves, guard, pages."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.app import make
from tests.data import make as files

from gfss.app.regression_check import BIASES, _assumed
from gfss.app.report import ClassRow, Report
from gfss.app.segmenter import Segmenter
from gfss.common.errors import GfssError
from gfss.data.images import read_mask
from gfss.data.transforms import square_label

NAMES = ("background", *make.BASE, "box")


@pytest.fixture(scope="module")
def taught() -> Segmenter:
    model = make.model()
    for seed in (1, 2):
        model.teach("box", *make.labelled(seed), add=seed > 1)
    return model


@pytest.fixture(scope="module")
def validation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures whose classes stand in another order than the model's, with one that it does not know."""
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
    assert [point.bias for point in curve] == list(BIASES)
    rows = {row.name: row for row in report.sections[1].rows}
    middle = curve[len(BIASES) // 2]
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
    assert "novel bias" in text
    assert page.count("data:image/svg+xml") == sum(bool(section.curve) for section in report.sections) > 0
    sources = re.findall(r'src="([^;]+);', page)
    assert set(sources) <= {"data:image/svg+xml", "data:image/jpeg"}
    assert sources.count("data:image/jpeg") == 4 * sum(c.image is not None for s in report.sections for c in s.worst)
    assert "http" not in page


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


def test_without_a_label_only_pixels_that_a_new_class_takes_are_judged() -> None:
    old, new = torch.tensor([[0, 1, 1, 2]]), torch.tensor([[0, 1, 2, 3]])
    known = torch.tensor([True, True, True, False])
    assert _assumed(old, new, known, ()).tolist() == [[0, 1, 255, 2]]


def test_a_class_that_is_labelled_elsewhere_is_not_assumed() -> None:
    """Class 2 is known and denied: kept, left for background, taken over, left for a known and for a new class."""
    old, new = torch.tensor([[2, 2, 1, 2, 2]]), torch.tensor([[2, 0, 2, 1, 3]])
    known = torch.tensor([True, True, True, False])
    assert _assumed(old, new, known, (2,)).tolist() == [[0, 0, 1, 255, 0]]


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
