"""`gfss train`, `gfss bank` and `gfss evaluate` from the command line, on a small set of scenes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gfss.cli import main
from gfss.evaluation.records import read_record, same_result

SIZE = ["--size", "49"]  # small, so that every command takes a second or two


@pytest.fixture(scope="module", autouse=True)
def _small_scenes(scenes_root: Path) -> object:
    """``--data scenes`` means the small set here."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("gfss.data.datasets.scenes.make_scenes", lambda root=None: scenes_root)
        yield


@pytest.fixture(scope="module")
def runs(_small_scenes: object, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a base model and a calibrator."""
    folder = tmp_path_factory.mktemp("runs")
    assert main(["train", "base", "--epochs", "1", "--runs", str(folder), *SIZE]) == 0
    limits = ["--iterations", "4", "--episodes", "4"]
    assert main(["train", "calibrator", *limits, "--runs", str(folder), *SIZE]) == 0
    return folder


@pytest.fixture
def evaluate(runs: Path) -> Callable[..., int]:
    return lambda *words: main(["evaluate", "--runs", str(runs), "--tasks", "3", *SIZE, *words])


def test_base_prints_the_iou_of_every_base_class(
    tmp_path: Path, scenes_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "base", "--epochs", "1", "--fold", "1", "--runs", str(tmp_path), *SIZE]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    names = (scenes_root / "classes.txt").read_text().split()
    assert [line[0] for line in lines] == ["base", "background", *names[:3], *names[6:]]
    assert all(0 <= float(line[1]) <= 100 for line in lines)


def test_evaluate_writes_a_record_that_repeats(
    evaluate: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / name for name in ("first.json", "second.json")]
    for path in paths:
        assert evaluate("--method", "pcn-support", "--seed", "4", "-o", str(path)) == 0
    first, second = map(read_record, paths)
    assert same_result(first, second)
    assert (first.method, first.tasks, first.seed, first.recipe["size"]) == ("pcn-support", 3, 4, 49)
    assert len(first.supports) == 3
    assert f"base {first.figures['accumulated'].base:.2f}" in capsys.readouterr().out


def test_several_methods_see_the_same_tasks(evaluate: Callable[..., int], tmp_path: Path) -> None:
    assert evaluate("--method", "oracle, background,nsf", "--protocol", "joint", "-o", str(tmp_path)) == 0
    records = {record.method: record for record in map(read_record, tmp_path.rglob("*.json"))}
    assert set(records) == {"oracle", "background", "nsf"}
    assert records["oracle"].supports == records["nsf"].supports
    for name, expected in (("oracle", 100.0), ("background", 0.0)):
        for figures in records[name].figures.values():
            assert [figures.base, figures.novel, figures.miou, figures.harmonic] == [expected] * 4


def test_a_quick_look_does_not_replace_a_record_of_more_tasks(
    evaluate: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate("--method", "background", "-o", str(tmp_path)) == 0
    (path,) = tmp_path.rglob("*.json")
    before = path.read_bytes()
    assert evaluate("--method", "background", "-o", str(tmp_path), "--tasks", "2") == 2
    assert "is a record of 3 tasks and would be replaced by one of 2" in capsys.readouterr().err
    assert path.read_bytes() == before
    joint = ("--method", "background", "--protocol", "joint", "-o", str(tmp_path))
    assert evaluate(*joint) == evaluate(*joint, "--supports", "train") == 0
    assert len(list(tmp_path.rglob("*.json"))) == 3  # supports of another split have a record of their own


def test_bank_is_built_checked_and_damage_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GFSS_CACHE", str(tmp_path))
    assert main(["bank", "build", *SIZE]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("train: 120 images, 13 x 13 maps, in ")
    assert lines[1].startswith("val: 60 images")
    assert main(["bank", "check", *SIZE]) == 0
    folder = Path(lines[1].partition(", in ")[2])
    content = bytearray((folder / "0000.features.npy").read_bytes())
    content[-1] ^= 1
    (folder / "0000.features.npy").write_bytes(content)
    assert main(["bank", "check", *SIZE]) == 2
    assert "is damaged in shard 0000; build it again to fix it" in capsys.readouterr().err
    assert main(["bank", "build", *SIZE]) == 0
    assert main(["bank", "check", *SIZE]) == 0


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["evaluate", "--method", "nsf", "--fold", "1"], "there is no base model in"),
        (["train", "calibrator", "--fold", "1"], "train it first: gfss train base --data scenes --fold 1"),
        (["train", "calibrator", "--preset", "pcm"], "unknown method 'pcm'; did you mean 'pcn'"),
        (["train", "method", "--method", "npf"], "method 'npf' needs no training"),
        (["train", "base", "--recipe", "papr"], "unknown recipe 'papr'; did you mean 'paper'"),
        (["train", "base", "--fold", "4"], "fold 4 is out of range: this data set has folds 0 to 3"),
        (["train", "base", "--encoder", "tinny"], "unknown encoder 'tinny'; did you mean 'tiny'"),
        (["train", "base", "--data", "scense"], "unknown data set 'scense'; did you mean 'scenes'"),
        (["train", "base", "--epochs", "-1"], "should be greater than or equal to 0"),
        (["evaluate", "--method", "pcm"], "unknown method 'pcm'; did you mean 'pcn'"),
        (["evaluate", "--method", "pcm", "--fold", "1"], "unknown method 'pcm'"),  # before the missing base model
        (["evaluate", "--method", "nsf", "-o", "/dev/null/out"], "cannot create the folder /dev/null/out"),
        (["evaluate", "--method", ","], "no method is named"),
        (["evaluate", "--method", "capl"], "method 'capl' is not trained for 1 shot"),
        (["evaluate", "--method", "nsf", "--protocol", "pared"], "unknown protocol 'pared'; did you mean 'paired'"),
        (["evaluate", "--method", "nsf", "--fold", "-1"], "fold -1 is out of range"),
        (["evaluate", "--method", "nsf", "--shots", "0"], "should be greater than or equal to 1"),
        (["evaluate", "--method", "nsf", "--shots", "50"], "usable image(s) to learn from, 50 asked for"),
        (["evaluate", "--method", "nsf", "--seed", "-3"], "should be greater than or equal to 0"),
        (["evaluate", "--method", "nsf,score", "-o", "one.json"], "one.json can hold one record only"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_answered_in_one_sentence(
    runs: Path, words: list[str], answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main([*words, "--runs", str(runs), *SIZE]) == 2
    said = capsys.readouterr().err
    assert answer in said
    assert len(said.strip().splitlines()) == 1
    assert "unexpected" not in said
