"""Tables of the paper from fake records, and what is said where something is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conftest import REPOSITORY
from tests.experiments.tiny_recipe import fake_record

from gfss.cli import main
from gfss.cli.reproduce import recipe_for
from gfss.common.errors import GfssError
from gfss.evaluation.costs import TrainingCost, add_cost
from gfss.evaluation.records import read_records, write_record
from gfss.experiments.recipes import read_recipe
from gfss.reporting.paper import paper_figure
from gfss.reporting.paper_tables import TABLES, target
from gfss.reporting.reproduce import NOT_RUN, cost_tables, find_costs, make_tables, missing_rows
from gfss.reporting.tables import Table


def row(table: Table, name: str) -> dict[str, str]:
    return dict(zip(table.header, next(r for r in table.rows if r[0] == name), strict=True))


@pytest.mark.parametrize("name", TABLES)
def test_every_row_of_a_table_is_in_its_first_recipe_and_in_the_paper(name: str) -> None:
    table = TABLES[name]
    assert {r.method for r in table.rows} <= set(read_recipe(table.recipes[0]).methods)
    for one in table.rows:
        assert not one.paper or paper_figure(table.source, one.paper) is not None


def test_the_main_table_has_folds_their_mean_and_the_paper_below() -> None:
    records = [fake_record(base=50 + 4 * fold, novel=40, fold=fold) for fold in range(4)]
    one_shot, five_shots = make_tables("table2", records, "lite0")
    ours = row(one_shot, "pcn")
    assert (ours["fold 0 base / novel"], ours["fold 3 base / novel"]) == ("50.00 / 40.00", "62.00 / 40.00")
    assert (ours["base"], ours["novel"]) == ("56.00", "40.00")
    assert ours["H"] == f"{2 * 56 * 40 / 96:.2f}"
    assert (ours["folds"], ours["tasks"], ours["seeds"]) == ("4", "1,000", "1")
    paper = row(one_shot, "pcn, paper (resnet50)")
    assert (paper["fold 0 base / novel"], paper["H"]) == ("59.43 / 47.98", "53.81")
    assert row(five_shots, "pcn")["H"] == NOT_RUN
    assert row(five_shots, "pcn, paper (resnet50)")["H"] == "58.37"
    for word in ("paired protocol", "per-image", "lite0", "1 shot", "pascal"):
        assert word in one_shot.title


def test_folds_may_have_different_numbers_of_tasks_and_are_chosen_first() -> None:
    records = [fake_record("nsf", 50 + fold, 40, fold=fold, tasks=1000 if fold == 0 else 500) for fold in range(4)]
    main_table = make_tables("table2", records, "lite0")[0]
    assert (row(main_table, "nsf")["base"], row(main_table, "nsf")["tasks"]) == ("51.50", "500 to 1,000 *")
    (fold_0,) = make_tables("table4", records, "lite0")  # the other folds have fewer tasks
    assert (row(fold_0, "nsf")["base"], row(fold_0, "nsf")["tasks"]) == ("50.00", "1,000")


def test_of_equal_records_the_one_with_most_tasks_is_shown() -> None:
    records = [fake_record("nsf", base, tasks=tasks) for base, tasks in ((50, 30), (60, 1000), (55, 200))]
    (table,) = make_tables("table4", records, "lite0")
    assert (row(table, "nsf")["base"], row(table, "nsf")["tasks"]) == ("60.00", "1,000")


def test_a_mean_needs_every_fold() -> None:
    records = [fake_record(fold=fold) for fold in range(3)]
    ours = row(make_tables("table2", records, "lite0")[0], "pcn")
    assert (ours["fold 2 base / novel"], ours["fold 3 base / novel"]) == ("60.00 / 40.00", NOT_RUN)
    assert (ours["base"], ours["folds"]) == (NOT_RUN, "3 of 4")


def test_seeds_become_a_spread() -> None:
    records = [fake_record("nsf", base, 30, seed=seed) for seed, base in enumerate((59, 61))]
    (table,) = make_tables("table4", records, "lite0")
    assert row(table, "nsf")["base"] == "60.00 ± 1.41"
    assert row(table, "nsf")["seeds"] == "2"
    assert missing_rows([table]) == ["score", "npf-fitted", "npf"]


def test_seeds_of_training_become_a_spread_too() -> None:
    records = [fake_record("nsf", base, spec={"base": {"seed": seed}}) for seed, base in enumerate((59, 61))]
    (table,) = make_tables("table4", records, "lite0")
    assert (row(table, "nsf")["base"], row(table, "nsf")["seeds"]) == ("60.00 ± 1.41", "2")


def test_all_folds_of_one_setting_come_before_many_seeds_of_another() -> None:
    records = [fake_record("nsf", 50, 40, fold=fold) for fold in range(4)]
    records += [fake_record("nsf", 90, 90, tasks=10, seed=seed, spec={"size": 99}) for seed in range(5)]
    found = row(make_tables("table2", records, "lite0")[0], "nsf (1 of 2 settings)")
    assert (found["base"], found["folds"]) == ("50.00", "4")


def test_other_protocols_metrics_and_encoders_do_not_enter() -> None:
    changes = ({"protocol": "joint"}, {"encoder": "resnet50"}, {"shots": 5})
    records = [fake_record("nsf", **change) for change in changes]
    (table,) = make_tables("table4", records, "lite0")
    assert row(table, "nsf")["H"] == NOT_RUN
    (joint,) = make_tables("table4", records, "lite0", "joint", "accumulated")
    assert row(joint, "nsf")["H"] == "48.00"


def test_figures_of_the_paper_say_how_they_were_measured_where_the_table_differs() -> None:
    paired = [line[0] for line in make_tables("table2", [], "lite0")[0].rows]
    joint = [line[0] for line in make_tables("table2", [], "lite0", "joint", "accumulated")[0].rows]
    assert "pcn, paper (resnet50)" in paired
    assert "pcn, paper (resnet50, paired, per-image)" in joint
    assert "capl, paper (joint, accumulated, background in base)" in paired
    assert "capl, paper (background in base)" in joint


def test_of_several_recipes_the_one_with_most_records_is_shown() -> None:
    few = fake_record("nsf", 10, spec={"size": 100}, tasks=2000)
    many = [fake_record("nsf", 60, spec={"size": 417}, seed=seed) for seed in range(2)]
    (table,) = make_tables("table4", [few, *many], "lite0")
    assert row(table, "nsf (1 of 2 settings)")["base"] == "60.00 ± 0.00"
    (main_table, _) = make_tables("table2", [few, *many], "lite0")  # fold 0 alone
    assert "nsf" in missing_rows([main_table])


def test_costs_stand_beside_the_papers(tmp_path: Path) -> None:
    path = tmp_path / "pascal-lite0" / "fold0" / "costs.csv"
    add_cost(path, TrainingCost("pcn", 1, 100.0, 512.0, False, "a cpu", "p1"))
    add_cost(path, TrainingCost("pcn", 1, 5400.0, 2048.0, True, "a cpu", "p1"))  # in place of the first
    (table,) = cost_tables([fake_record(artifacts=["e1", "p1"])], [tmp_path], "lite0")
    found = row(table, "pcn")
    assert (found["hours, a cpu"], found["GB, a cpu"], found["H"]) == ("> 1.50", "2.0", "48.00")
    printed = (found["hours, paper: RTX 2080 Ti"], found["GB, paper: RTX 2080 Ti"], found["H, paper"])
    assert printed == ("6.80", "4.70", "53.09")
    assert row(table, "denet")["hours, a cpu"] == NOT_RUN
    assert row(table, "pcn-support")["H, paper"] == "-"  # the paper's numbers stand beside the paper's method only
    assert "paired protocol, per-image IoU" in table.title


def test_costs_of_frozen_and_trained_encoders_stand_beside_their_own_figures(tmp_path: Path) -> None:
    path = tmp_path / "pascal-lite0" / "fold0" / "costs.csv"
    for name, seconds in (("frozen", 3600.0), ("trained", 7200.0)):
        add_cost(path, TrainingCost("pcn", 1, seconds, None, False, "a cpu", name))
    records = [
        fake_record(base=50.0 + 10 * t, spec={"base": {"train_encoder": t}}, artifacts=["trained" if t else "frozen"])
        for t in (False, True)
    ]
    frozen, trained = (row(table, "pcn") for table in cost_tables(records, [tmp_path], "lite0"))
    assert (frozen["hours, a cpu"], frozen["H"]) == ("1.00", f"{2 * 50 * 40 / 90:.2f}")
    assert (trained["hours, a cpu"], trained["H"]) == ("2.00", "48.00")


@pytest.mark.parametrize("under", ["joint", "paired/accumulated"])
def test_the_table_of_costs_has_one_protocol_and_metric(under: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "table9", "--under", under]) == 2
    assert "omit --under" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("under", "words"), [("pared", "did you mean 'paired'"), ("joint/iou", "unknown metric 'iou'")]
)
def test_an_unknown_protocol_or_metric_is_answered(under: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "table4", "--under", under]) == 2
    assert words in capsys.readouterr().err


def test_machines_have_columns_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "pascal-lite0" / "fold0" / "costs.csv"
    for method, machine in (("pcn", "slow cpu"), ("acastle", "fast cpu")):
        add_cost(path, TrainingCost(method, 1, 3600.0, 1024.0, False, machine, method))
    records = [fake_record(method, artifacts=[method]) for method in ("pcn", "acastle")]
    (table,) = cost_tables(records, [tmp_path], "lite0")
    pcn, acastle = row(table, "pcn"), row(table, "acastle")
    assert (pcn["hours, slow cpu"], pcn["hours, fast cpu"]) == ("1.00", "-")
    assert (acastle["hours, slow cpu"], acastle["hours, fast cpu"]) == ("-", "1.00")


def test_table_1_is_made_of_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "table1", "--format", "md"]) == 0
    text = capsys.readouterr().out
    assert "| using novel classes during testing | no | yes | no | yes |" in text


def test_latex_can_be_pasted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for fold in range(4):
        for method, base in (("nsf", 47.11), ("pcn-support", 61.5 - fold)):
            write_record(tmp_path / f"{method}{fold}.json", fake_record(method, base, 40, fold=fold))
    write_record(tmp_path / "pcn.json", fake_record("pcn", 50, 40, fold=0))
    assert main(["reproduce", "table2", "--results", str(tmp_path), "--format", "latex"]) == 0
    text = capsys.readouterr().out
    assert NOT_RUN not in text
    assert r"\label{tab:table2-lite0-1shot}" in text
    assert r"\toprule" in text
    assert "fold 0 base / novel" in text
    assert "PCN-support (ours) & " + r"\textbf{61.50} / \textbf{40.00}" in text
    assert "NSF & 47.11 / " + r"\textbf{40.00}" in text
    assert "NSF, paper (resnet50) & 29.38 / 51.86" in text  # not bold: another encoder, another training
    assert "PCN, paper" not in text  # our row of it has gaps
    assert main(["reproduce", "table2", "--results", str(tmp_path), "--format", "latex-all"]) == 0
    assert r"PCN & 50.00 / \textbf{40.00} & not run" in capsys.readouterr().out


def test_confidence_intervals_stand_where_records_have_single_tasks() -> None:
    values = {"base": [59.0, 61.0] * 5, "novel": [38.0, 42.0] * 5}
    sure = fake_record("nsf", 60, 40, tasks=10, per_task={"per-image": values, "accumulated": values})
    (table,) = make_tables("table4", [sure, fake_record("score", tasks=10)], "lite0")
    assert row(table, "nsf")["base"].startswith("60.00 [5")
    assert row(table, "score")["base"] == "60.00"
    assert "95 % confidence intervals" in table.title


def test_other_supports_and_folds_have_tables_of_their_own() -> None:
    usual = fake_record("nsf", 50.0, protocol="joint", spec={"supports": "val"})
    other = fake_record("nsf", 60.0, protocol="joint", spec={"supports": "train"})
    first, second = make_tables("table4", [usual, other], "lite0", "joint")
    assert "supports of the val list" in first.title
    assert "supports of the train list" in second.title
    assert (row(first, "nsf")["base"], row(second, "nsf")["base"]) == ("50.00", "60.00")


def test_the_paper_does_not_stand_beside_other_folds() -> None:
    usual, blocks = (fake_record("nsf", data="coco", spec={"contiguous": c} if c else {}) for c in (False, True))
    (one_shot, _) = make_tables("table3", [usual], "lite0")
    assert "nsf, paper (resnet50)" in {row[0] for row in one_shot.rows}
    (one_shot, _) = make_tables("table3", [blocks], "lite0")
    assert not any("paper" in row[0] for row in one_shot.rows)


def test_seeds_of_trainings_make_no_other_settings() -> None:
    records = [fake_record("pcn", 50 + seed, seed=seed, spec={"training": {"seed": seed}}) for seed in range(2)]
    (table,) = make_tables("table7", records, "lite0")
    assert row(table, "pcn")["seeds"] == "2"


def test_the_committed_records_fill_every_cell_of_the_results_page() -> None:
    """One row of settings per method and no gaps, or `gfss reproduce` shows less than docs/results.md does."""
    records = read_records([REPOSITORY / "results" / "pascal-lite0"])
    gaps = {"base", "pcn"}  # not run on every fold
    for protocol in ("paired", "joint"):
        tables = make_tables("table2", records, "lite0", protocol)
        assert len(tables) == 2
        assert set(missing_rows(tables)) <= gaps
        assert not any("settings" in row[0] for table in tables for row in table.rows)


def test_costs_are_found_from_the_folder_of_records_itself(tmp_path: Path) -> None:
    for folder, name in (("pascal-lite0", "one"), ("pascal-lite0x", "other")):
        add_cost(tmp_path / folder / "fold0" / "costs.csv", TrainingCost("pcn", 1, 1.0, None, False, "a cpu", name))
    for place in (tmp_path, tmp_path / "pascal-lite0"):
        assert [cost.artifact for cost in find_costs([place], [fake_record(artifacts=["one"])])] == ["one"]


def test_frozen_and_trained_encoders_have_tables_of_their_own() -> None:
    records = [
        fake_record(method, 60.0 if trained else 50.0, spec={"base": {"train_encoder": trained, "seed": trained}})
        for method, trained in (("nsf", True), ("nsf", False), ("score", False))
    ]
    first, second = make_tables("table4", records, "lite0")
    assert "encoder trained too" in first.title
    assert "encoder frozen" in second.title
    assert (row(first, "nsf")["base"], row(first, "score")["base"]) == ("60.00", NOT_RUN)
    assert (row(second, "nsf")["base"], row(second, "score")["base"]) == ("50.00", "50.00")


def test_the_recipe_is_that_of_the_encoder() -> None:
    assert recipe_for("table2", "lite0") == "frozen/pascal-lite0"
    assert recipe_for("table2", "resnet50") == "frozen/pascal-resnet50"
    assert recipe_for("table4", "resnet50") == "paper/pascal-resnet50-ablations"
    assert recipe_for("table4", "tiny") is None


def test_what_is_missing_with_another_encoder_is_run_by_another_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for encoder in ("resnet50", "tiny"):
        write_record(tmp_path / f"{encoder}.json", fake_record("nsf", encoder=encoder))
    assert main(["reproduce", "table4", "--results", str(tmp_path)]) == 0
    said = capsys.readouterr().err
    assert "gfss run paper/pascal-resnet50-ablations --set methods=" in said
    assert "not run with tiny: score, npf-fitted, npf; no recipe" in said


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(GfssError, match="did you mean 'table4'"):
        target("tabel4")


@pytest.mark.parametrize("style", ["text", "md", "latex-all"])
@pytest.mark.parametrize("name", ["table2", "table4", "table9"])
def test_the_command_prints_tables_and_says_what_was_not_run(
    name: str, style: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GFSS_PASCAL", raising=False)
    write_record(tmp_path / "one.json", fake_record("nsf", 47.11))
    assert main(["reproduce", name, "--results", str(tmp_path), "--format", style]) == 0
    captured = capsys.readouterr()
    assert NOT_RUN in captured.out
    assert "paper" in captured.out
    assert "47.11" in captured.out or name == "table9"
    assert "; gfss run frozen/" in captured.err
    assert "gfss data prepare pascal" in captured.err


def test_a_narrow_terminal_gets_the_table_without_single_folds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for fold in range(4):
        write_record(tmp_path / f"{fold}.json", fake_record("nsf", 47.11, fold=fold))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for width, single in ((100, False), (300, True)):
        monkeypatch.setenv("COLUMNS", str(width))
        assert main(["reproduce", "table2", "--results", str(tmp_path)]) == 0
        captured = capsys.readouterr()
        assert ("fold 0 base" in captured.out) == single
        assert ("single folds need a terminal of" in captured.err) != single
        assert "47.11" in captured.out


def test_a_folder_without_records_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "table4", "--results", str(tmp_path)]) == 0
    assert f"there are no records in {tmp_path}; --results DIR names another folder" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["fig1"]])
def test_without_data_one_sentence_says_how_to_get_it(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GFSS_PASCAL", raising=False)
    assert main(["reproduce", *words, "--results", str(tmp_path), "--runs", str(tmp_path)]) == 2
    message = capsys.readouterr().err
    assert len(message.splitlines()) == 1
    assert "gfss data prepare pascal" in message
    assert "GFSS_PASCAL=DIR" in message
