"""Models whose checksums are right and whose content is not."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock, Timeout
from tests.app.make import labelled, model

from gfss import load
from gfss.app.model_folder import Parts, describe_classes, lessons, read_model, write_model
from gfss.common.errors import GfssError


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "taught"
    segmenter = model()
    segmenter.teach("box", *labelled())
    segmenter.save(folder)
    return folder


Change = Callable[[Parts, dict[str, Any]], None]


def rewritten(source: Path, target: Path, change: Change) -> Path:
    parts, about = read_model(source)
    change(parts, about)
    write_model(target, parts, {k: v for k, v in about.items() if k not in ("format", "tensors", "sha256")}, "")
    return target


def nan_head(parts: Parts, about: dict[str, Any]) -> None:
    parts["head"]["classifier.weight"].view(-1)[0] = float("nan")  # the first in the file may be a counter of batches


def nan_row(parts: Parts, about: dict[str, Any]) -> None:
    parts["rows of taught classes"]["weight"].view(-1)[0] = float("inf")


def other_row(parts: Parts, about: dict[str, Any]) -> None:
    parts["rows of taught classes"]["weight"] = torch.zeros(1, 9)


def no_row(parts: Parts, about: dict[str, Any]) -> None:
    del parts["rows of taught classes"]


def nan_balance(parts: Parts, about: dict[str, Any]) -> None:
    about["taught"][0]["balance"] = float("nan")


def text_threshold(parts: Parts, about: dict[str, Any]) -> None:
    about["taught"][0]["verdict"]["threshold"] = "high"


def wide_head(parts: Parts, about: dict[str, Any]) -> None:
    about["head"]["width"] = 300_000


def huge_input(parts: Parts, about: dict[str, Any]) -> None:
    about["base"]["size"] = 10**9


def no_head(parts: Parts, about: dict[str, Any]) -> None:
    del parts["head"]


def no_support(parts: Parts, about: dict[str, Any]) -> None:
    del parts["support of class 1"]


def no_base(parts: Parts, about: dict[str, Any]) -> None:
    del about["base"]


def text_for_numbers(parts: Parts, about: dict[str, Any]) -> None:
    about["head"]["width"] = "wide"


def one_class_more(parts: Parts, about: dict[str, Any]) -> None:
    about["base"]["classes"].append("ghost")


def escape_in_base(parts: Parts, about: dict[str, Any]) -> None:
    about["base"]["classes"][0] = "\x1b]0;owned\x07"


def escape_in_taught(parts: Parts, about: dict[str, Any]) -> None:
    about["taught"][0]["name"] = "\x1b[2J"


CASES: list[tuple[Change, str]] = [
    (nan_head, "NaN or infinite"),
    (nan_row, "NaN or infinite"),
    (other_row, "do not fit its encoder's"),
    (no_row, "does not fit together"),
    (nan_balance, "the balance is nan"),
    (text_threshold, "does not fit together"),
    (wide_head, "another version of gfss"),
    (huge_input, "an input of 1000000000 pixels"),
    (no_head, "does not fit together"),
    (no_support, "does not fit together"),
    (no_base, "does not fit together"),
    (text_for_numbers, "does not fit together"),
    (one_class_more, "has 4 outputs for 4 classes"),
    (escape_in_base, "class names are printable text"),
    (escape_in_taught, "class names are printable text"),
]


@pytest.mark.parametrize(("change", "sentence"), CASES, ids=[change.__name__ for change, _ in CASES])
def test_nonsense_with_valid_checksums_gets_one_sentence(
    taught: Path, tmp_path: Path, change: Change, sentence: str
) -> None:
    with pytest.raises(GfssError, match=sentence):
        load(rewritten(taught, tmp_path / "x", change))


def test_an_unchanged_model_is_read(taught: Path, tmp_path: Path) -> None:
    assert load(rewritten(taught, tmp_path / "x", lambda parts, about: None)).classes[-1] == "box"


def test_escape_sequences_in_names_are_not_listed(taught: Path, tmp_path: Path) -> None:
    with pytest.raises(GfssError, match="printable"):
        describe_classes(rewritten(taught, tmp_path / "x", escape_in_base))


def test_names_that_look_like_html_are_text_in_the_card(tmp_path: Path) -> None:
    segmenter = model()
    segmenter.teach("<script>alert(1)</script>", *labelled())
    segmenter.save(tmp_path / "x")
    card = (tmp_path / "x" / "card.md").read_text()
    assert "<script>" not in card
    assert "&lt;script&gt;" in card


def test_an_empty_name_is_no_model() -> None:
    with pytest.raises(GfssError, match="the name of the model is empty; known: "):
        load("")


@pytest.mark.parametrize("balance", [float("nan"), float("inf"), 1e9])
def test_a_balance_is_a_number(balance: float) -> None:
    with pytest.raises(GfssError, match="the balance is"):
        model().segment(labelled()[0], balance=balance)


def teach_into(folder: Path, name: str, ready: Any, answers: Any) -> None:
    torch.set_num_threads(1)
    segmenter = model()
    segmenter.teach(name, *labelled())
    ready.wait()
    try:
        segmenter.save(folder)
        answers.put(name)
    except GfssError:
        answers.put(None)


def test_two_processes_do_not_lose_a_lesson_in_a_new_folder(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    for attempt in range(2):
        ready, answers = context.Barrier(2), context.Queue()
        folder = tmp_path / f"new{attempt}"
        jobs = [context.Process(target=teach_into, args=(folder, name, ready, answers)) for name in ("box", "ball")]
        for job in jobs:
            job.start()
        saved = {answers.get(timeout=120) for _ in jobs}
        for job in jobs:
            job.join()
        assert None in saved  # the second one is told
        assert set(lessons(folder)) == saved - {None}


def test_the_check_is_asked_inside_the_lock(taught: Path, tmp_path: Path) -> None:
    """What appears in the folder after the model was prepared is seen all the same; nobody can write meanwhile."""
    parts, about = read_model(taught)
    words = {k: v for k, v in about.items() if k not in ("format", "tensors", "sha256")}
    seen: list[bool] = []
    write_model(tmp_path / "x", parts, words, "")

    def check() -> None:
        with pytest.raises(Timeout):
            FileLock(tmp_path / "x" / ".lock", timeout=0).acquire()
        seen.append((tmp_path / "x" / "model.json").exists())

    write_model(tmp_path / "x", parts, words, "", check=check)
    assert seen == [True]
    assert json.loads((tmp_path / "x" / "model.json").read_text())["taught"][0]["name"] == "box"


def test_a_tensor_file_with_an_impossible_name(taught: Path, tmp_path: Path) -> None:
    from gfss.app.model_folder import ABOUT, _about_digest

    folder = rewritten(taught, tmp_path / "x", lambda parts, about: None)
    about = json.loads((folder / ABOUT).read_text())
    about["tensors"] = "a\x00b"
    about["sha256"][ABOUT] = _about_digest(about)
    (folder / ABOUT).write_text(json.dumps(about))
    with pytest.raises(GfssError, match="cannot be read"):
        load(folder)
