"""Averages over seeds and folds."""

from __future__ import annotations

import pytest

from gfss.evaluation.metrics import Figures, average, harmonic_mean, spread, summarise


def figures(base: float, novel: float) -> Figures:
    return summarise({"a": base - 1, "b": base + 1}, {"c": novel}, background=90.0)


def test_the_harmonic_mean_of_an_average_is_that_of_the_averages() -> None:
    mean = average([figures(60, 20), figures(40, 60)])
    assert (mean.base, mean.novel, mean.mean) == (50, 40, 45)
    assert mean.harmonic == pytest.approx(2 * 50 * 40 / 90)  # the mean of both H would be 39
    assert mean.classes == {"a": 49, "b": 51, "c": 40}


def test_spread_is_the_sample_standard_deviation() -> None:
    runs = [figures(50, 10), figures(52, 10), figures(54, 10)]
    assert spread(runs)["base"] == pytest.approx(2)
    assert spread(runs)["novel"] == 0
    assert spread(runs[:1]) == dict.fromkeys(("base", "novel", "miou", "mean", "harmonic", "background"))


def test_missing_figures_stay_missing() -> None:
    base_only = summarise({"a": 40.0, "b": None}, {"c": None}, background=None)
    assert (base_only.base, base_only.novel, base_only.miou, base_only.harmonic) == (40, None, None, None)
    assert average([base_only, base_only]) == base_only
    assert harmonic_mean(0, 0) == 0


def test_background_counts_as_a_base_class_only_if_asked_for() -> None:
    with_background = summarise({"a": 30.0, "b": 60.0}, {"c": 20.0}, background=90.0, with_background=True)
    assert (with_background.base, with_background.miou) == (60, 50)
    assert figures(45, 20).base == 45
