"""Intervals and paired differences against slow references that share no code with them."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.experiments.tiny_recipe import fake_record

from gfss.cli import main
from gfss.common.errors import GfssError
from gfss.evaluation.intervals import Difference, compare, half_widths, student_quantile
from gfss.evaluation.metrics import Accumulated, PerImage
from gfss.evaluation.records import Record, read_record, same_result, write_record
from gfss.reporting.comparison import comparison_tables, matching
from gfss.reporting.tables import grouped_tables

BASE, NOVEL = ("bus", "car"), ("cat", "dog", "owl")


def record_of(base: list[float], novel: list[float], classes: int = 1, **changes: Any) -> Record:
    """A record of the paired protocol whose figures follow from its tasks; novel classes take turns."""
    groups = [novel[number::classes] for number in range(classes)]
    means = statistics.fmean(base), statistics.fmean(statistics.fmean(group) for group in groups)
    names = [f"new{number}" for number in range(classes)]
    figures = fake_record(base=means[0], novel=means[1]).figures["per-image"]
    figures = figures.model_copy(
        update={"classes": {"bus": means[0], "car": means[0], **dict.fromkeys(names, means[1])}}
    )
    values = {"base": base, "novel": novel}
    content = {"novel_classes": names, "tasks": len(base), "figures": {"per-image": figures}}
    return fake_record(**content | {"per_task": {"per-image": values}} | changes)


def numbers(count: int, centre: float, spread: float, seed: int) -> list[float]:
    rng = random.Random(seed)
    return [round(rng.gauss(centre, spread), 2) for _ in range(count)]


def harmonic(base: float, novel: float) -> float:
    return 2 * base * novel / (base + novel)


def test_the_quantile_is_students() -> None:
    stats = pytest.importorskip("scipy.stats", reason="the reference is scipy's")
    for free in (1, 2, 3, 4, 9, 50, 999):
        assert student_quantile(0.975, free) == pytest.approx(stats.t.ppf(0.975, free), rel=0.01)


def test_the_interval_of_a_mean_is_the_usual_one() -> None:
    stats = pytest.importorskip("scipy.stats", reason="the reference is scipy's")
    base, novel = numbers(40, 60, 5, 0), numbers(40, 40, 9, 1)
    widths = half_widths([record_of(base, novel)], "per-image")
    for name, values in (
        ("base", base),
        ("novel", novel),
        ("mean", [(b + n) / 2 for b, n in zip(base, novel, strict=True)]),
    ):
        low, high = stats.t.interval(0.95, len(values) - 1, statistics.fmean(values), stats.sem(values))
        assert widths[name] == pytest.approx((high - low) / 2, rel=1e-3)


def test_classes_that_take_turns_do_not_widen_the_interval() -> None:
    novel = [centre + noise for noise in (-1.0, 1.0, 0.5, -0.5) for centre in (10.0, 50.0, 90.0)]
    widths = half_widths([record_of([60.0, 61.0] * 6, novel, classes=3)], "per-image")
    inside = [
        sum((x - statistics.fmean(group)) ** 2 for x in group) for group in (novel[0::3], novel[1::3], novel[2::3])
    ]
    error = math.sqrt(sum(inside) / (12 * 9))  # twelve tasks, three means
    assert widths["novel"] == pytest.approx(student_quantile(0.975, 9) * error, rel=1e-6)


def test_the_interval_of_h_is_as_wide_as_a_bootstrap_says() -> None:
    base, novel = numbers(60, 60, 6, 2), numbers(60, 35, 12, 3)
    rng, drawn = random.Random(0), []
    for _ in range(1500):
        chosen = [rng.randrange(60) for _ in range(60)]
        drawn.append(harmonic(*(statistics.fmean(values[i] for i in chosen) for values in (base, novel))))
    width = half_widths([record_of(base, novel)], "per-image")["harmonic"]
    assert width == pytest.approx(1.96 * statistics.stdev(drawn), rel=0.12)


def test_folds_and_seeds_are_averaged() -> None:
    one, two = (record_of(numbers(30, 60, 5, i), numbers(30, 40, 5, i + 9), fold=i) for i in (0, 1))
    single = [half_widths([record], "per-image")["base"] for record in (one, two)]
    both = half_widths([one, two], "per-image")["base"]
    assert both == pytest.approx(math.hypot(*single) / 2, rel=1e-6)
    assert half_widths([one, fake_record(fold=1)], "per-image") == {}  # an older record has no single tasks


def test_the_values_of_accumulated_tasks_are_derivatives() -> None:
    """Counting a task a little more often moves the figure by its share of the deviation of its value."""
    generator = torch.Generator().manual_seed(0)
    tasks = [torch.randint(5, 50, (4, 1 + 2 + 1, 2), generator=generator) for _ in range(6)]
    counts = [torch.stack([both.amin(dim=-1), both[..., 0], both[..., 1]], dim=-1) for both in tasks]
    metric = Accumulated(BASE, NOVEL)
    for number, own in enumerate(counts):
        metric.update(own, [NOVEL[number % 3]])

    def figure(weights: list[float]) -> tuple[float, float]:
        total = torch.zeros(6, 3, dtype=torch.float64)
        for number, (own, weight) in enumerate(zip(counts, weights, strict=True)):
            total[[0, 1, 2, 3 + number % 3]] += weight * own.double().sum(dim=0)
        iou = [100 * float(i / (p + t - i)) for i, p, t in total]
        return sum(iou[1:3]) / 2, sum(iou[3:]) / 3

    whole, step = figure([1.0] * 6), 1e-6
    base, novel = metric.per_task()
    assert statistics.fmean(base) == pytest.approx(whole[0])
    assert statistics.fmean(novel) == pytest.approx(whole[1])
    for number in range(6):
        moved = figure([1.0 + step * (i == number) for i in range(6)])
        assert base[number] - whole[0] == pytest.approx(6 * (moved[0] - whole[0]) / step, abs=1e-3)
        assert novel[number] - whole[1] == pytest.approx(6 * (moved[1] - whole[1]) / step, abs=1e-3)


def test_the_values_of_per_image_tasks_are_their_own_figures() -> None:
    generator = torch.Generator().manual_seed(1)
    whole = PerImage(BASE, NOVEL)
    single: list[tuple[float | None, float | None]] = []
    for number in range(4):
        both = torch.randint(1, 50, (3, 4, 2), generator=generator)
        counts = torch.stack([both.amin(dim=-1), both[..., 0], both[..., 1]], dim=-1)
        alone = PerImage(BASE, NOVEL)
        for metric in (whole, alone):
            metric.update(counts, [NOVEL[number % 3]])
        figures = alone.summary()
        single.append((figures.base, figures.novel))
    for values, figures in zip(whole.per_task(), zip(*single, strict=True), strict=True):
        assert values == pytest.approx(list(figures))


def found(first: Record, second: Record, name: str, **options: Any) -> Difference:
    return next(one for one in compare([(first, second)], "per-image", **options) if one.figure == name)


@pytest.mark.parametrize("figure", ["base", "harmonic"])
def test_the_p_value_is_that_of_all_exchanges(figure: str) -> None:
    one = record_of(numbers(9, 60, 3, 4), numbers(9, 42, 5, 5))
    two = record_of(numbers(9, 58.5, 3, 6), numbers(9, 39, 5, 7))
    pairs = [tuple(zip(r.per_task["per-image"].base, r.per_task["per-image"].novel, strict=True)) for r in (one, two)]  # type: ignore

    def difference(exchanged: tuple[bool, ...]) -> float:
        sides = ([], [])  # type: tuple[list[Any], list[Any]]
        for swap, a, b in zip(exchanged, *pairs, strict=True):
            sides[0].append(b if swap else a)
            sides[1].append(a if swap else b)
        means = [[statistics.fmean(column) for column in zip(*side, strict=True)] for side in sides]
        return means[0][0] - means[1][0] if figure == "base" else harmonic(*means[0]) - harmonic(*means[1])

    every = [difference(exchanged) for exchanged in itertools.product((False, True), repeat=9)]
    exact = sum(abs(value) >= abs(every[0]) - 0.005 for value in every) / len(every)
    assert found(one, two, figure, resamples=20000).p_value == pytest.approx(exact, abs=0.015)


def test_the_bootstrap_interval_is_that_of_a_loop_inside_the_classes() -> None:
    one = record_of(numbers(24, 60, 3, 8), numbers(24, 42, 5, 9), classes=3)
    two = record_of(numbers(24, 58, 3, 10), numbers(24, 40, 5, 11), classes=3)
    rng, drawn = random.Random(1), []
    values = [r.per_task["per-image"].novel for r in (one, two)]  # type: ignore[index]
    for _ in range(4000):
        classes = []
        for group in range(3):
            chosen = [group + 3 * rng.randrange(8) for _ in range(8)]
            classes.append(statistics.fmean(values[0][i] - values[1][i] for i in chosen))
        drawn.append(statistics.fmean(classes))
    drawn.sort()
    result = found(one, two, "novel")
    assert result.low == pytest.approx(drawn[100], abs=0.25)
    assert result.high == pytest.approx(drawn[3900], abs=0.25)
    assert result.difference == pytest.approx(statistics.fmean(drawn), abs=0.1)


def test_equal_methods_do_not_differ() -> None:
    one = record_of(numbers(12, 60, 3, 8), numbers(12, 42, 5, 9))
    result = found(one, one, "harmonic")
    assert (result.difference, result.low, result.high, result.p_value) == (0, 0, 0, 1)


def test_tables_show_intervals_and_mark_rows_with_fewer_tasks() -> None:
    sure = record_of(numbers(30, 60, 3, 1), numbers(30, 40, 3, 2), method="sure")
    few = record_of(numbers(10, 60, 3, 1), numbers(10, 40, 3, 2), method="few")
    (table,) = grouped_tables(
        [sure, few, fake_record("old", tasks=30, figures=sure.figures, novel_classes=sure.novel_classes)]
    )
    rows = {row[1]: dict(zip(table.header, row, strict=True)) for row in table.rows}
    assert "[" in rows["sure"]["H"]
    assert "[" not in rows["old"]["H"]
    assert {name: row["tasks"] for name, row in rows.items()} == {"sure": "30", "few": "10 *", "old": "30"}
    assert "fewer tasks" in table.title
    assert "95 % confidence" in table.title


def test_records_keep_single_tasks_in_one_line_and_older_ones_stay_valid(tmp_path: Path) -> None:
    record = record_of([60.0, 61.0], [40.0, 41.0])
    write_record(tmp_path / "new.json", record)
    assert read_record(tmp_path / "new.json") == record
    lines = (tmp_path / "new.json").read_text().splitlines()
    assert sum("per_task" in line for line in lines) == 1
    old = record.model_copy(update={"per_task": None})
    write_record(tmp_path / "old.json", old)
    assert "per_task" not in (tmp_path / "old.json").read_text()
    assert read_record(tmp_path / "old.json").per_task is None
    assert same_result(record, old)
    assert not same_result(record, record_of([60.0, 61.0], [41.0, 40.0]))
    with pytest.raises(ValueError, match="as many as the tasks"):
        record_of([60.0], [40.0], tasks=2)


def test_the_command_compares_methods_of_the_folder_and_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for method, centre in (("good", 60), ("bad", 50)):
        for fold in (0, 1):
            record = record_of(numbers(20, centre, 3, fold), numbers(20, 40, 3, 5), method=method, fold=fold)
            write_record(tmp_path / "results" / f"{method}-{fold}.json", record)
    write_record(tmp_path / "results" / "old.json", fake_record("old", tasks=20, novel_classes=["cat"]))
    assert main(["compare", "good", "bad"]) == 0
    text = capsys.readouterr().out
    assert "good (lite0) against bad (lite0)" in text
    assert "fold 0, 1, 40 tasks" in text
    assert "+10" in text.replace("+9.9", "+10")
    assert "0.0002" in text  # the smallest p-value of 5,000 draws
    assert main(["compare", "results/good-0.json", "results/bad-0.json"]) == 0
    for words, said in (
        (["good", "old"], "has no figures of single tasks"),
        (["good", "god"], "did you mean 'good'"),
        (["good"], "takes two methods or records"),
        (["results/good-0.json", "results/bad-1.json"], "same tasks"),
    ):
        assert main(["compare", *words]) == 2
        assert said in capsys.readouterr().err


def test_pairs_without_figures_of_single_tasks_are_left_out() -> None:
    one, other = (record_of([60.0, 61.0], [40.0, 41.0], fold=fold) for fold in (0, 1))
    old = other.model_copy(update={"per_task": None})
    assert [len(pairs) for pairs in matching([one, old], [one, other]).values()] == [1]
    with pytest.raises(GfssError, match="fold 1 has no figures of single tasks"):
        matching([other], [old])


def test_two_records_of_the_same_tasks_are_ambiguous() -> None:
    one = record_of([60.0, 61.0], [40.0, 41.0])
    with pytest.raises(GfssError, match="several records"):
        comparison_tables([one, one], [one])
    with pytest.raises(GfssError, match="several records"):
        comparison_tables([one], [one, one])
