"""The HTML report from fake records and from a tiny run."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from tests.experiments.tiny_recipe import fake_record, tiny_content

from gfss.evaluation.costs import TrainingCost, add_cost
from gfss.evaluation.records import write_record
from gfss.reporting.charts import balance_chart
from gfss.reporting.report import is_results, write_report


class Balance(HTMLParser):
    """Counts what is opened and not closed."""

    VOID = ("meta", "img")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    for method, base, novel in (("nsf", 38.0, 48.0), ("pcn-support", 61.0, 47.0), ("score", 60.0, 15.0)):
        for fold in range(2):
            record = fake_record(method, base + fold, novel, fold=fold)
            write_record(folder / f"{method}-{fold}.json", record)
    add_cost(
        folder / "pascal-lite0" / "fold0" / "costs.csv", TrainingCost("pcn-support", 1, 720.0, 2048.0, False, "a cpu")
    )
    return folder


def test_the_page_has_tables_bars_and_times_and_needs_nothing_else(results: Path, tmp_path: Path) -> None:
    page = write_report([results], tmp_path / "report.html").read_text()
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    for words in ("Comparison: pascal, lite0, 1 shot, paired protocol", "Class by class", "As new classes", "Times"):
        assert words in page
    for number in ("61.5", "38.5", "12.0"):  # averages over folds, minutes of training
        assert f">{number}<" in page
    assert not re.search(r"(src|href)=['\"]?(?!data:)\w", page)
    assert "<script" not in page


def test_methods_are_ranked_by_the_harmonic_mean(results: Path, tmp_path: Path) -> None:
    page = write_report([results], tmp_path / "report.html").read_text()
    first = page[page.index("<table>") : page.index("</table>")]
    assert re.findall(r"<tr><td>([\w-]+)<", first) == ["pcn-support", "nsf", "score"]


def test_methods_of_fewer_folds_stand_apart_and_not_in_the_chart(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []

    def chart(points: dict[str, tuple[float, float]], highlight: str) -> Figure:
        drawn.extend(points)
        return balance_chart(points, highlight)

    monkeypatch.setattr("gfss.reporting.report.balance_chart", chart)
    write_record(results / "newcomer-0.json", fake_record("newcomer", 90.0, 90.0, fold=0))
    page = write_report([results], tmp_path / "report.html").read_text()
    whole, apart = page.split("On fewer folds; comparable only with the same folds", 1)
    assert "newcomer" not in whole
    assert "newcomer" in apart
    assert sorted(drawn) == ["nsf", "pcn-support", "score"]


def test_bars_go_from_before_to_after(results: Path, tmp_path: Path) -> None:
    page = write_report([results], tmp_path / "report.html").read_text()
    assert "48.0 → 47.0" in page  # the new class
    assert "33.5 → 56.5" in page  # a known class, mean of two folds


def test_bars_compare_the_folds_that_both_methods_have(results: Path, tmp_path: Path) -> None:
    write_record(results / "nsf-2.json", fake_record("nsf", 94.0, 94.0, fold=2))
    page = write_report([results], tmp_path / "report.html").read_text()
    assert "48.0 → 47.0" in page
    assert "33.5 → 56.5" in page


def test_a_mean_is_over_folds_and_of_one_kind_of_settings(results: Path, tmp_path: Path) -> None:
    for seed in (1, 2):  # fold 0 has three seeds, fold 1 one
        write_record(results / f"pcn-support-0-{seed}.json", fake_record("pcn-support", 64.0, 47.0, fold=0, seed=seed))
    for fold in range(2):
        write_record(
            results / f"other-{fold}.json", fake_record("pcn-support", 10.0, 10.0, fold=fold, spec={"size": 99})
        )
        write_record(results / f"few-{fold}.json", fake_record("pcn-support", 90.0, 90.0, fold=fold, tasks=3))
    page = write_report([results], tmp_path / "report.html").read_text()
    first = page[page.index("<table>") : page.index("</table>")]
    rows = dict(re.findall(r"<tr><td>([^<]+)</td><td[^>]*>(?:<b>)?([\d.]+)", first))
    assert rows == {"pcn-support": "62.5", "nsf": "38.5", "score": "60.5", "pcn-support 2 (size=99)": "10.0"}


def test_a_folder_with_models_beside_the_records_is_reported(results: Path, tmp_path: Path) -> None:
    (results / "scenes" / "base").mkdir(parents=True)
    (results / "scenes" / "base" / "base.json").write_text('{"card": {}, "sha256": "0"}')
    assert "Comparison" in write_report([results], tmp_path / "report.html").read_text()


def test_costs_say_where_they_come_from_and_whether_they_are_all(results: Path, tmp_path: Path) -> None:
    add_cost(results / "own" / "fold3" / "costs.csv", TrainingCost("capl", 1, 60.0, None, True, "another cpu"))
    page = re.sub("<[^>]+>", " ", write_report([results], tmp_path / "report.html").read_text())
    assert "pascal-lite0 fold0 pcn-support 1 12.0 2.0 a cpu" in " ".join(page.split())
    assert "own fold3 capl 1 &gt; 1.0 - another cpu" in " ".join(page.split())


def test_a_tiny_run_adds_confusion_and_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gfss.experiments.experiment import Experiment
    from gfss.experiments.recipes import make_recipe
    from gfss.experiments.runner import run_plan
    from gfss.experiments.steps import Plan

    monkeypatch.setattr("gfss.reporting.figures.CANDIDATES", 2)
    monkeypatch.setattr("gfss.reporting.report.CONFUSION_TASKS", 2)
    plan = Plan(make_recipe(tiny_content(tmp_path / "data")), tmp_path / "runs", tmp_path / "results")
    run_plan(plan)
    page = write_report(
        [tmp_path / "results"], tmp_path / "report.html", Experiment(plan.recipe, 0, plan.runs)
    ).read_text()
    for words in ("Confusion matrix", "Examples", "Failure cases", "data:image/png;base64"):
        assert words in page


def test_a_results_folder_is_told_from_a_model(results: Path, tmp_path: Path) -> None:
    assert is_results(results)
    assert is_results(results / "pcn-support-0.json")
    model = tmp_path / "model"
    model.mkdir()
    (model / "card.json").write_text('{"name": "voc20"}')
    assert not is_results(model)
    assert not is_results(model / "card.json")
    assert not is_results(tmp_path / "nothing")


def test_the_chart_places_methods_by_base_and_novel() -> None:
    (axes,) = balance_chart({"one": (10.0, 50.0), "two": (50.0, 10.0)}, highlight="one").axes
    places = {drawn.get_label(): tuple(drawn.get_offsets()[0]) for drawn in axes.collections}
    assert places == {"one": (10.0, 50.0), "two": (50.0, 10.0)}
    legend = axes.get_legend()
    assert legend
    assert [text.get_text() for text in legend.get_texts()] == ["one", "two"]
    large, small = (drawn.get_sizes()[0] for drawn in axes.collections)
    assert large > small


def test_lines_of_equal_harmonic_mean_hold_it() -> None:
    (axes,) = balance_chart({"one": (60.0, 50.0)}).axes
    levels = [20, 30, 40, 50, 60]
    assert len(axes.lines) == len(levels)
    for level, line in zip(levels, axes.lines, strict=True):
        base, novel = line.get_data()
        np.testing.assert_allclose(2 * base * novel / (base + novel), level)
