"""The examples of docs/add-a-method.md are run as they stand there, as plugins."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import yaml
from tests.experiments.tiny_recipe import tiny_content
from tests.methods.cases import make_context, make_episode, map_labels

import gfss.methods as plugins
from gfss.cli import main
from gfss.common.errors import GfssError
from gfss.evaluation.records import read_records
from gfss.methods import TRAINED, UNTRAINED, build_method
from gfss.methods.base import Method

PAGE = Path(__file__).resolve().parents[2] / "docs" / "add-a-method.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """What a test registers is taken away again."""
    tables = (UNTRAINED, TRAINED, plugins.SOURCES)
    before = [dict(table) for table in tables]
    yield
    for table, old in zip(tables, before, strict=True):
        table.clear()
        table.update(old)  # type: ignore[arg-type]


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """The examples in a file."""
    path = tmp_path / "my_method.py"
    path.write_text("\n\n".join(BLOCKS), encoding="utf-8")
    return path


def test_the_example_is_a_method_and_can_be_calibrated(plugin: Path) -> None:
    assert plugins.load_plugin(plugin) == ["nearest", "darkest"]
    episode = make_episode(shots=5)
    method = build_method("nearest", make_context())
    method.learn(episode.support)
    scores = method.scores(episode.query.features)
    assert scores.shape[1] == episode.support.base + 2
    new = map_labels(episode.query.labels, episode.query.features.size) == episode.support.base + 1
    assert scores[:, -1][new].mean() > 1.2 * scores[:, -1][~new].mean()
    assert build_method("nearest+T", make_context()).name == "nearest+T"
    assert build_method("darkest+T", make_context()).reads_images
    assert not build_method("nearest+T", make_context()).reads_images


def test_the_example_is_short() -> None:
    assert len([line for line in BLOCKS[0].splitlines() if line.strip()]) <= 30


def test_the_command_line_evaluates_a_plugin_and_knows_a_changed_one(
    plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content = tiny_content(tmp_path / "data", methods=["nearest", "darkest", "nsf"])
    Path("recipe.yaml").write_text(yaml.safe_dump(content))
    assert main(["run", "recipe.yaml", "--plugin", str(plugin)]) == 0
    records = {record.method: record for record in read_records([Path("results")]) if record.shots}
    assert set(records) == {"nearest", "darkest", "nsf"}
    assert "plugin" in records["nearest"].spec
    assert "plugin" not in records["nsf"].spec
    novel = records["darkest"].figures["per-image"].novel
    assert novel is not None
    assert novel > 0  # the images were those of the task
    for table in (UNTRAINED, plugins.SOURCES):
        for name in ("nearest", "darkest"):
            del table[name]  # as in a new process
    plugin.write_text(plugin.read_text() + "\n# another version\n")
    assert main(["run", "recipe.yaml", "--plugin", str(plugin)]) == 0
    again = [record for record in read_records([Path("results")]) if record.method == "nearest"]
    assert len({record.spec["plugin"] for record in again}) == 2


def test_installed_methods_are_known_without_an_option(plugin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(plugin.parent))
    entry = EntryPoint("nearest", "my_method:NearestPrototype", plugins.GROUP)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [entry])
    assert plugins.load_installed() == ["nearest"]
    assert build_method("nearest", make_context()).name == "nearest"
    wrong = EntryPoint("support", "my_method:Support", plugins.GROUP)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [wrong])
    with pytest.raises(GfssError, match="is not a class of"):
        plugins.load_installed()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1", "defines no method"),
        ("1 / 0", "cannot be run: ZeroDivisionError"),
        (BLOCKS[0].replace('"nearest"', '"nsf"'), "there is a method 'nsf' already"),
        (BLOCKS[0].replace('name = "nearest"', "pass"), "has the name None"),
    ],
)
def test_a_plugin_that_cannot_be_used_is_answered_in_a_sentence(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(GfssError, match=words):
        plugins.load_plugin(path)
    with pytest.raises(GfssError, match="is not a file"):
        plugins.load_plugin(tmp_path / "absent.py")


def test_a_method_with_a_loss_is_trained_by_gfss_run_unless_it_reads_images() -> None:
    own = {"name": "own", "learn": lambda self, support: None, "scores": lambda self, query: query.base}
    trainable = own | {"loss": lambda self, episode: None}
    plugins.register(type("Own", (Method,), trainable))
    assert "own" in TRAINED
    with pytest.raises(GfssError, match="does not train"):
        plugins.register(type("Own", (Method,), trainable | {"name": "other", "reads_images": True}))
