"""The example of docs/add-a-method.md is run as it stands there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.methods.cases import make_context, make_episode, map_labels

from gfss.methods import UNTRAINED, build_method

PAGE = Path(__file__).resolve().parents[2] / "docs" / "add-a-method.md"


@pytest.fixture
def example() -> Iterator[str]:
    """The example's code, run; what it registers is taken away again."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    before = dict(UNTRAINED)
    exec(compile(code, str(PAGE), "exec"), {"__name__": "example"})
    yield code
    UNTRAINED.clear()
    UNTRAINED.update(before)


def test_the_example_is_a_method(example: str) -> None:
    episode = make_episode(shots=5)
    method = build_method("nearest", make_context())
    method.learn(episode.support)
    scores = method.scores(episode.query.features)
    assert scores.shape[1] == episode.support.base + 2
    new = map_labels(episode.query.labels, episode.query.features.size) == episode.support.base + 1
    assert scores[:, -1][new].mean() > 1.2 * scores[:, -1][~new].mean()


def test_the_example_can_be_calibrated(example: str) -> None:
    assert build_method("nearest+T", make_context()).name == "nearest+T"


def test_the_example_is_short(example: str) -> None:
    assert len([line for line in example.splitlines() if line.strip()]) <= 30
