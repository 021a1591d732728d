"""The page about bad input is what the program says."""

from __future__ import annotations

import pytest
from tests.fuzz.bad_inputs import PAGE, READ, Kind, answer, kinds, table

from gfss.common.errors import GfssError

NOT_FOR_USERS = ("Traceback", "unexpected", "object has no attribute", "object is not", "Error:", "codec can't encode")


def test_the_page_is_up_to_date_and_has_at_least_200_kinds() -> None:
    """``python -m tests.fuzz.bad_inputs`` writes it."""
    assert len(kinds()) >= 200
    assert PAGE.read_text() == table()


def test_every_kind_is_there_once() -> None:
    names = [(kind.group, kind.words) for kind in kinds()]
    assert len(set(names)) == len(names)


def test_answers_are_sentences_for_users() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and "| answer |" not in line]
    for row in rows:
        assert not any(word in row for word in NOT_FOR_USERS), row


def test_an_answer_is_the_error_or_that_it_was_read() -> None:
    def refuse(root: object) -> None:
        raise GfssError(f"{root}/x is wrong")

    assert answer(Kind("x", "y", refuse)) == "DATA/x is wrong"
    assert answer(Kind("x", "y", lambda root: None)) == READ
    with pytest.raises(KeyError):
        answer(Kind("x", "y", lambda root: {}["a"]))
