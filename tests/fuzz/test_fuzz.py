"""A bounded run of the fuzzer; ``python -m tests.fuzz.run`` is the long one."""

from __future__ import annotations

import numpy as np
import pytest
from tests.fuzz.run import attempt, fuzz
from tests.fuzz.targets import TARGETS, Target, nothing

CASES = {"model": 25, "tensors": 25, "cvat": 60}  # the others are faster


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_input_gets_one_sentence(name: str) -> None:
    assert fuzz(name, 0, CASES.get(name, 150)) == []


@pytest.mark.parametrize("name", TARGETS)
def test_undamaged_input_is_read(name: str, tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    """Else the fuzzer would only ever see the first refusal."""
    target = TARGETS[name]()
    target.prepare(tmp_path)
    good = target.good
    if not isinstance(good, bytes):
        import json

        good = good.encode() if isinstance(good, str) else json.dumps(good).encode()
    target.run(tmp_path, good)


def test_the_fuzzer_sees_what_is_wrong(tmp_path) -> None:
    def crash(root: object, content: bytes) -> None:
        raise KeyError("boom")

    def damage(good: bytes, rng: np.random.Generator) -> bytes:
        return good

    assert attempt(Target("x", b"", damage, nothing, crash), tmp_path, 0) == "KeyError: 'boom'"


def test_the_fuzzer_sees_memory_that_was_given_back(tmp_path) -> None:
    def large(root: object, content: bytes) -> None:
        np.ones(75_000_000).sum()  # 600 MB, one after the other

    def damage(good: bytes, rng: np.random.Generator) -> bytes:
        return good

    for number in range(2):
        assert "MB" in (attempt(Target("x", b"", damage, nothing, large), tmp_path, number) or "")
