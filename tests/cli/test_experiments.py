"""`gfss run`, `gfss evaluate` and `gfss runs` from the command line, on a small set of scenes."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from gfss.cli import main
from gfss.evaluation.records import read_record, same_result

# small, so that every command takes a second or two
SMALL = ["size=49", "base.epochs=1", "training.iterations=4", "training.episodes=4", "shots=1", "protocols.paired=3"]
WORDS = ["quickstart", *(word for change in SMALL for word in ("--set", change))]


@pytest.fixture(scope="module", autouse=True)
def _small_scenes(scenes_root: Path) -> object:
    """``data: scenes`` means the small set here."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("gfss.data.datasets.scenes.make_scenes", lambda root=None: scenes_root)
        yield


@pytest.fixture(scope="module")
def runs(_small_scenes: object, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a base model and a calibrator."""
    folder = tmp_path_factory.mktemp("runs")
    assert main(["run", *WORDS, "--only", "methods", "--runs", str(folder)]) == 0
    return folder


def test_only_says_where_to_stop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--runs", str(tmp_path), "run", *WORDS, "--only", "base"]) == 0
    assert f"1 step(s) done, artefacts in {tmp_path}" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["base"]
    assert main(["--runs", str(tmp_path), "run", *WORDS, "--only", "base"]) == 0
    assert "nothing left to do" in capsys.readouterr().out


def test_a_dry_run_lists_steps_with_state_and_time(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *WORDS, "--dry-run", "--runs", str(runs), "-o", str(runs / "none")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "fold 0: train the base model done" in shown
    assert "fold 0: evaluate base on every val image todo" in shown
    assert "2 of 4 steps left" in shown
    assert "feature banks take" in shown


def test_evaluate_writes_records_that_repeat(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["evaluate", *WORDS, "--set", "seeds=4", "--runs", str(runs)]
    for name in ("first", "second"):
        assert main([*words, "-o", str(tmp_path / name)]) == 0
    first, second = (sorted((tmp_path / name).rglob("*.json")) for name in ("first", "second"))
    assert [path.name for path in first] == [path.name for path in second]
    assert len(first) == 4
    assert all(same_result(read_record(a), read_record(b)) for a, b in zip(first, second, strict=True))
    record = read_record(next(path for path in first if "pcn-support" in path.name))
    assert (record.method, record.tasks, record.seed, record.spec["size"]) == ("pcn-support", 3, 4, 49)
    assert f"base {record.figures['accumulated'].base:.2f}" in capsys.readouterr().out


def test_evaluate_without_a_folder_writes_nothing(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", *WORDS, "--set", "methods=nsf", "--runs", str(runs)]) == 0
    assert not list(tmp_path.rglob("*"))


def test_the_bank_is_built_checked_and_damage_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GFSS_CACHE", str(tmp_path))
    words = ["run", *WORDS, "--set", "base=frozen", "--only", "bank"]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(",")[0] for line in lines] == ["120 images", "60 images"]
    folder = Path(lines[1].partition(", in ")[2])
    content = bytearray((folder / "0000.features.npy").read_bytes())
    content[-1] ^= 1
    (folder / "0000.features.npy").write_bytes(content)
    assert main(words) == 2
    assert "is damaged in shard 0000; build it again" in capsys.readouterr().err
    assert main(words) == 0


def test_runs_lists_and_prunes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["runs"]) == 0
    assert "nothing has been trained in runs yet" in capsys.readouterr().out
    for rate in (1, 2):
        folder = tmp_path / "runs" / "base" / f"scenes-{rate}"
        folder.mkdir(parents=True)
        (folder / "spec.json").write_text(
            json.dumps({"kind": "base", "parents": [], "spec": {"rate": rate, "size": 3}})
        )
    assert main(["runs"]) == 0
    shown = capsys.readouterr().out
    assert "base: 2" in shown
    assert "scenes-1  (not complete)  rate=1\n" in shown
    monkeypatch.setattr("typer.confirm", lambda words: False)
    assert main(["runs", "prune"]) == 0
    assert len(list((tmp_path / "runs" / "base").iterdir())) == 2
    assert main(["runs", "prune", "--yes"]) == 0
    assert "removed 2 artefact(s)" in capsys.readouterr().out
    assert not list((tmp_path / "runs" / "base").iterdir())
    assert main(["runs", "prune"]) == 0
    assert "everything is needed" in capsys.readouterr().out


def test_runs_lists_feature_banks_and_removes_those_that_nothing_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GFSS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("gfss.experiments.storage.needed_artifacts", set)  # reads all recipes, which takes a while
    for name, days in (("old", 9), ("new", 0)):
        folder = tmp_path / "cache" / "banks" / name
        folder.mkdir(parents=True)
        about = {"data": f"scenes {name}", "size": 33, "channels": {"layer3": 4}, "count": 7}
        (folder / "bank.json").write_text(json.dumps(about))
        opened = time.time() - days * 86400
        os.utime(folder / "bank.json", (opened, opened))
    (tmp_path / "cache" / "banks" / "torn").mkdir()
    assert main(["runs"]) == 0
    shown = capsys.readouterr().out
    assert "3, 0.0 MB" in shown
    assert "scenes old, 7 images at 33 px, layer3, opened 9 day(s) ago" in shown
    assert "not complete" in shown
    assert main(["runs", "prune", "--yes"]) == 0
    assert "everything is needed" in capsys.readouterr().out
    assert main(["runs", "prune", "--yes", "--banks", "5"]) == 0
    assert "0 artefact(s) and 1 feature bank(s)" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "cache" / "banks").iterdir()) == ["new", "torn"]


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["evaluate", "quickstart", "--set", "folds=1"], "train it first with the same recipe: gfss run"),
        (["evaluate", *WORDS, "--set", "methods=capl"], "train it first with the same recipe"),
        (["evaluate", *WORDS, "--set", "methods=pcm"], "unknown method 'pcm'; did you mean 'pcn'"),
        (["evaluate", *WORDS, "-o", "/dev/null/out"], "cannot create the folder /dev/null/out"),
        (["evaluate", *WORDS, "--set", "protocols.pared=3"], "'paired' or 'joint'"),
        (["evaluate", *WORDS, "--set", "methods=nsf", "--set", "shots=50"], "usable image(s) to learn from, 50 asked"),
        (["run", *WORDS, "--set", "folds=4"], "'folds.0' is 4; expected at most 3"),
        (["run", *WORDS, "--set", "encoder=tinny"], "unknown encoder 'tinny'; did you mean 'tiny'"),
        (["run", *WORDS, "--set", "base.epoch=2"], "unknown key 'base.epoch'; did you mean 'base.epochs'"),
        (["run", *WORDS, "--set", "base.epochs=-1"], "'base.epochs' is -1; expected more than 0"),
        (["run", *WORDS, "--set", "seed=-3"], "'seed' is -3; expected at least 0"),
        (["run", *WORDS, "--set", "data=scense"], "unknown data set 'scense'; did you mean 'scenes'"),
        (["run", *WORDS, "--only", "all"], "'all' is not one of"),
        (["run", "quickstrt"], "unknown recipe 'quickstrt'; did you mean 'quickstart'"),
        (["run", *WORDS, "--device", "gpu"], "device"),
        (["run", *WORDS, "--threads", "many"], "--threads"),
    ],
    ids=lambda value: " ".join(value[-2:]) if isinstance(value, list) else "",
)
def test_mistakes_are_answered_in_one_sentence(
    runs: Path, words: list[str], answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main([*words, "--runs", str(runs)]) == 2
    said = capsys.readouterr().err
    assert answer in said
    assert said.strip().splitlines()[-1].startswith("gfss: ")
    assert said.count("gfss: ") == 1  # a feature bank may have been noted before
    assert "unexpected" not in said
