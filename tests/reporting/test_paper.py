"""The paper's numbers against their own arithmetic, with the contradictions that the paper prints."""

from __future__ import annotations

from typing import Any

import pytest

from gfss.common.errors import GfssError
from gfss.data.catalog import CLASSES_PER_FOLD
from gfss.evaluation.metrics import harmonic_mean, weighted_mean
from gfss.reporting.paper import ABLATIONS, COST, MAIN, PaperFigure, comparable_figure, paper_figure

ROUNDING = 0.02  # of averages of rounded numbers


def printed(*args: Any, **options: Any) -> PaperFigure:
    figure = paper_figure(*args, **options)
    assert figure is not None
    return figure


def mean_of_folds(name: str, *args: Any) -> float:
    return sum(getattr(printed(*args, fold=fold), name) for fold in range(4)) / 4


@pytest.mark.parametrize("table", MAIN)
def test_averages_of_the_main_tables(table: str) -> None:
    for encoder, shots, method in MAIN[table]:
        mean, row = printed(table, method, encoder, shots), (table, method, encoder, shots)
        if method == "capl":
            continue  # quoted from elsewhere, without folds
        assert mean.base == pytest.approx(mean_of_folds("base", *row), abs=ROUNDING), row
        if method == "base":
            assert (mean.novel, mean.miou, mean.harmonic) == (None, None, None)
            continue
        assert mean.novel == pytest.approx(mean_of_folds("novel", *row), abs=ROUNDING), row
        miou = weighted_mean(mean.base, mean.novel, *CLASSES_PER_FOLD[table])
        assert mean.miou == pytest.approx(miou, abs=ROUNDING), row
        assert mean.harmonic == pytest.approx(harmonic_mean(mean.base, mean.novel), abs=ROUNDING), row


@pytest.mark.parametrize("table", ABLATIONS)
def test_arithmetic_of_the_other_tables(table: str) -> None:
    for row in ABLATIONS[table].keys() - {"pfenet+t"}:
        figure = printed(table, row)
        assert figure.miou == pytest.approx(weighted_mean(figure.base, figure.novel, 15, 5), abs=ROUNDING), row
        assert figure.harmonic == pytest.approx(harmonic_mean(figure.base, figure.novel), abs=ROUNDING), row


def test_capl_counts_the_background() -> None:
    """Unlike in all other rows: the 16 labels of the base model, not its 15 classes, make the printed total."""
    figure = printed("pascal", "capl")
    assert figure.miou == pytest.approx(weighted_mean(figure.base, figure.novel, 16, 5), abs=0.005)
    assert figure.miou != pytest.approx(weighted_mean(figure.base, figure.novel, 15, 5), abs=0.5)


def test_printed_contradictions() -> None:
    capl = printed("pascal", "capl")
    assert capl.harmonic == 29.16
    assert harmonic_mean(capl.base, capl.novel) == pytest.approx(29.27, abs=0.005)
    capl = printed("coco", "capl")
    assert capl.miou == 35.46
    assert weighted_mean(capl.base, capl.novel, 61, 20) == pytest.approx(35.34, abs=0.005)
    pfenet = printed("previous+t", "pfenet+t")
    assert (pfenet.miou, pfenet.harmonic) == (48.01, 43.37)
    assert weighted_mean(pfenet.base, pfenet.novel, 15, 5) == pytest.approx(47.87, abs=0.005)
    assert harmonic_mean(pfenet.base, pfenet.novel) == pytest.approx(43.31, abs=0.005)


def test_fold_0_of_the_main_table_is_printed_again_elsewhere() -> None:
    for method, table, row in (
        ("nsf", "fusion", "nsf"),
        ("pcn", "fusion+t", "nsf+t"),
        ("denet", "previous+t", "denet"),
        ("pfenet", "previous+t", "pfenet"),
        ("acastle", "previous+t", "acastle"),
        ("nsf", "calibrator", "nsf"),
        ("pcn", "calibrator", "pcn"),
        ("pcn", "features", "layer4+high"),
    ):
        main, other = printed("pascal", method, fold=0), printed(table, row)
        assert main[:2] == other[:2], (table, row)
        assert main[2:4] == pytest.approx(other[2:4], abs=ROUNDING), (table, row)


def test_costs_repeat_the_harmonic_mean_of_fold_0() -> None:
    for method in COST:
        cost = printed("cost", method)
        assert cost.harmonic == pytest.approx(printed("pascal", method, fold=0).harmonic, abs=ROUNDING), method
        assert (cost.hours, cost.gigabytes, cost.base) == (*COST[method][:2], None), method


def test_what_the_paper_does_not_print() -> None:
    assert paper_figure("pascal", "denet", "resnet101") is None
    assert paper_figure("pascal", "pcn", shots=2) is None
    assert paper_figure("pascal", "pcn", fold=4) is None
    assert paper_figure("pascal", "capl", fold=0) is None
    assert paper_figure("fusion", "npf", fold=1) is None
    assert paper_figure("cost", "nsf") is None
    with pytest.raises(GfssError, match="did you mean 'pascal'"):
        paper_figure("pascla", "pcn")


def test_only_what_is_measured_alike_is_compared() -> None:
    pcn = comparable_figure("pascal", "pcn", "paired", "per-image", "resnet101", 5, None)
    assert pcn == (printed("pascal", "pcn", "resnet101", 5), "resnet101")
    score = comparable_figure("pascal", "score", "paired", "per-image", "lite0", 1, 0)
    assert score == (printed("fusion", "score"), "resnet50")
    calibrated = comparable_figure("pascal", "acastle+T", "paired", "per-image", "lite0", 1, 0)
    assert calibrated == (printed("previous+t", "acastle+t"), "resnet50")
    capl = comparable_figure("coco", "capl", "joint", "accumulated", "resnet50", 1, None, with_background=True)
    assert capl == (printed("coco", "capl"), "resnet50")
    assert comparable_figure("pascal", "score", "paired", "per-image", "lite0", 1, 1) is None
    assert comparable_figure("pascal", "pcn", "paired", "accumulated", "resnet50", 1, 0) is None
    assert comparable_figure("pascal", "pcn", "joint", "per-image", "resnet50", 1, 0) is None
    assert comparable_figure("pascal", "pcn", "paired", "per-image", "resnet50", 1, 0, with_background=True) is None
    assert comparable_figure("scenes", "pcn", "paired", "per-image", "resnet50", 1, 0) is None
