"""Tables of records, through the functions and through the command."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from gfss.cli import main
from gfss.evaluation.metrics import summarise
from gfss.evaluation.records import Record, write_record
from gfss.reporting.tables import COLUMNS, csv_table, grouped_tables


def make_record(base: float = 60.0, novel: float = 40.0, **changes: Any) -> Record:
    figures = summarise({"bus": base - 5, "car": base + 5}, {"cat": novel}, background=90.0)
    content: dict[str, Any] = {
        "data": "pascal",
        "fold": 0,
        "shots": 1,
        "encoder": "resnet50",
        "method": "pcn",
        "protocol": "paired",
        "tasks": 1000,
        "seed": 0,
        "base_classes": ["bus", "car"],
        "novel_classes": ["cat"],
        "supports": [],
        "figures": {"per-image": figures},
    }
    return Record(**(content | changes))


def shown(records: list[Record], paper: bool = False) -> list[dict[str, str]]:
    """The rows of the one table of these records, either ours or the paper's."""
    (table,) = grouped_tables(records)
    rows = [dict(zip(table.header, row, strict=True)) for row in table.rows]
    return [row for row in rows if row["method"].endswith(", paper") == paper]


def test_csv_has_one_row_per_record_and_metric() -> None:
    both = {name: make_record().figures["per-image"] for name in ("per-image", "accumulated")}
    records = [make_record(figures=both), make_record(seed=3, fold=2), make_record(base=50, novel=50, method="nsf")]
    rows = list(csv.DictReader(io.StringIO(csv_table(records))))
    assert tuple(rows[0]) == COLUMNS
    assert [row["metric"] for row in rows] == ["per-image", "accumulated", "per-image", "per-image"]
    assert rows[2] == {
        **{"data": "pascal", "fold": "2", "shots": "1", "encoder": "resnet50", "method": "pcn", "protocol": "paired"},
        **{"metric": "per-image", "tasks": "1000", "seeds": "3", "base": "60.0000", "novel": "40.0000"},
        **{"miou": "53.3333", "mean": "50.0000", "harmonic": "48.0000", "background": "90.0000", "settings": ""},
        **{f"{name}_ci95": "" for name in ("base", "novel", "miou", "mean", "harmonic")},
        "fewer_tasks": "",
    }


def test_csv_tells_settings_apart() -> None:
    records = [make_record(spec=spec) for spec in ({"size": 417}, {"size": 417, "supports": "train"})]
    rows = list(csv.DictReader(io.StringIO(csv_table(records))))
    assert [row["settings"] for row in rows] == ["", "supports=train"]


def test_csv_leaves_missing_figures_empty() -> None:
    figures = summarise({"bus": 5.0, "car": None}, {"cat": None}, background=None)
    (row,) = csv.DictReader(io.StringIO(csv_table([make_record(figures={"accumulated": figures})])))
    assert (row["base"], row["novel"], row["harmonic"], row["background"]) == ("5.0000", "", "", "")


def test_seeds_become_mean_and_spread() -> None:
    (row,) = shown([make_record(base, 30, seed=seed) for seed, base in enumerate((59, 60, 61))])
    assert (row["seeds"], row["base"], row["novel"]) == ("3", "60.00 ± 1.00", "30.00 ± 0.00")
    assert row["H"].startswith("40.00 ± ")


def test_folds_are_averaged_with_the_harmonic_mean_of_the_averages() -> None:
    rows = shown([make_record(60, 20, fold=0), make_record(40, 60, fold=1)])
    assert [row["fold"] for row in rows] == ["0", "1", "mean of 2"]
    assert (rows[2]["base"], rows[2]["novel"], rows[2]["H"]) == ("50.00", "40.00", "44.44")


def test_spread_of_the_average_is_over_seeds_not_over_folds() -> None:
    records = [make_record(50 + 10 * fold + seed, 30, fold=fold, seed=seed) for fold in (0, 1) for seed in (0, 2)]
    *_, mean = shown(records)
    assert (mean["base"], mean["seeds"]) == ("56.00 ± 1.41", "2")
    *_, mean = shown(records[:3])  # fold 1 has only one of the seeds
    assert (mean["base"], mean["seeds"]) == ("55.50", "1")


def test_the_paper_stands_below_what_it_measured() -> None:
    (table,) = grouped_tables([make_record(fold=fold, encoder="lite0") for fold in range(4)])
    assert [row[:3] for row in table.rows[:2]] == [("lite0", "pcn", "0"), ("resnet50", "pcn, paper", "0")]
    assert table.rows[1][5:] == ("59.43", "47.98", "56.57", "-", "53.09")
    assert table.rows[-1] == ("resnet50", "pcn, paper", "mean of 4", "-", "-", "61.28", "47.96", "57.95", "-", "53.81")
    assert len(table.rows) == 10


def test_the_paper_is_left_out_where_it_measured_something_else() -> None:
    assert len(shown([make_record(fold=fold) for fold in range(3)], paper=True)) == 3  # no average of three folds
    assert not shown([make_record(figures={"accumulated": make_record().figures["per-image"]})], paper=True)
    assert not shown([make_record(protocol="joint")], paper=True)


def test_ablated_calibrators_stand_beside_their_own_row() -> None:
    records = [make_record(spec={"calibrator": name, "fold": 0}) for name in ("covariance", "linear")]
    assert [row["method"] for row in shown(records)] == ["pcn (calibrator=covariance)", "pcn (calibrator=linear)"]
    paper = [(row["method"], row["base"]) for row in shown(records, paper=True)]
    assert paper == [("pcn, paper", "59.43"), ("linear, paper", "22.53")]


def test_recipes_are_kept_apart_and_repeated_records_count_once() -> None:
    wide, narrow = make_record(spec={"width": 512, "seed": 0}), make_record(50, spec={"width": 64, "seed": 0})
    rows = shown([wide, narrow, wide])
    assert {row["method"]: (row["base"], row["seeds"]) for row in rows} == {
        "pcn (width=512)": ("60.00", "1"),
        "pcn (width=64)": ("50.00", "1"),
    }


def test_seeds_and_folds_inside_a_recipe_make_no_other_recipe() -> None:
    records = [make_record(59 + 2 * seed, spec={"base": {"seed": seed, "epochs": 3}}) for seed in (0, 1)]
    (row,) = shown(records)
    assert (row["method"], row["seeds"], row["base"]) == ("pcn", "2", "60.00 ± 1.41")
    rows = shown([*records, make_record(spec={"base": {"seed": 0, "epochs": 9, "fold": 0}})])
    assert [row["method"] for row in rows] == ["pcn (base.epochs=3)", "pcn (base.epochs=9)"]


def test_two_results_of_one_recipe_and_seed_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, base in (("one", 60), ("two", 61)):
        write_record(tmp_path / f"{name}.json", make_record(base))
    assert main(["tables", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path / 'one.json'} and {tmp_path / 'two.json'}" in " ".join(said.split())
    write_record(tmp_path / "two.json", make_record(60))
    assert main(["tables", str(tmp_path)]) == 0


def test_the_paper_does_not_stand_beside_other_folds() -> None:
    assert shown([make_record(data="coco")], paper=True)
    assert not shown([make_record(data="coco", spec={"contiguous": True})], paper=True)


def test_background_is_counted_and_named_if_asked_for() -> None:
    (table,) = grouped_tables([make_record()], with_background=True)
    assert table.title == "pascal, 1 shot, paired protocol, per-image (background in base) IoU in percent"
    assert [row[5:7] for row in table.rows] == [("70.00", "40.00")]


def test_every_table_has_one_protocol_and_metric() -> None:
    both = {name: make_record().figures["per-image"] for name in ("per-image", "accumulated")}
    records = [make_record(shots=5), make_record(figures=both), make_record(protocol="joint"), make_record(data="coco")]
    assert [table.title for table in grouped_tables(records)] == [
        "coco, 1 shot, paired protocol, per-image IoU in percent",
        "pascal, 1 shot, joint protocol, per-image IoU in percent",
        "pascal, 1 shot, paired protocol, accumulated IoU in percent",
        "pascal, 1 shot, paired protocol, per-image IoU in percent",
        "pascal, 5 shots, paired protocol, per-image IoU in percent",
    ]


@pytest.mark.parametrize("style", ["text", "md", "csv", "latex"])
def test_the_command_prints_every_format(
    style: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_record(tmp_path / "results" / "record.json", make_record(47.11, method="my[bold]"))
    monkeypatch.chdir(tmp_path)
    assert main(["tables", "--format", style]) == 0
    text = capsys.readouterr().out
    for word in ("47.11", "my[bold]", "paired", "per-image", "pascal"):
        assert word in text


def test_the_command_names_a_bad_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_record(tmp_path / "good.json", make_record())
    (tmp_path / "model.json").write_text("{}")  # no record at all
    (tmp_path / "bad.json").write_text('{"protocol": "paired", "method": "pcn"}')
    assert main(["tables", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert "bad.json is not a record" in captured.err
    assert (captured.out, len(captured.err.splitlines())) == ("", 1)
