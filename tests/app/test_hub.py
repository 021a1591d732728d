"""Models on a hub: pushed, fetched by revision, and what is never fetched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.app import hub_stand_in, make
from tests.app.hub_stand_in import TOKEN, Hub

from gfss.app.segmenter import Segmenter
from gfss.common.errors import GfssError

pytest.importorskip("huggingface_hub", reason="the extra 'hf' is not installed")

NAME = "owner/yard"
QUERY = make.labelled(5)[0]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub of our own, whose library keeps its files in the test's folder."""
    from huggingface_hub import constants

    with hub_stand_in.running() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.address)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield running


@pytest.fixture
def model() -> Segmenter:
    model = make.model()
    model.teach("box", *make.labelled(1))
    return model


def test_a_pushed_model_comes_back_the_same(hub: Hub, model: Segmenter) -> None:
    address = model.push_to_hub(NAME, license="mit")
    again = Segmenter.from_pretrained(NAME)
    assert again.classes == model.classes
    assert (again.segment(QUERY).mask == model.segment(QUERY).mask).all()
    assert address == f"{hub.address}/{NAME}/commit/{hub.refs[NAME]['main']}"
    assert hub.private[NAME]


def test_the_card_is_in_the_form_of_the_hub(hub: Hub, model: Segmenter) -> None:
    model.push_to_hub(NAME, license="mit")
    text = hub.commits[NAME][hub.refs[NAME]["main"]]["README.md"].decode()
    _, front, card = text.split("---\n", 2)
    assert yaml.safe_load(front) == {
        "library_name": "gfss",
        "license": "mit",
        "pipeline_tag": "image-segmentation",
        "tags": ["gfss", "semantic-segmentation", "few-shot-learning"],
    }
    assert "### box" in card
    assert "from_pretrained" in card


def test_only_weights_and_their_description_travel(hub: Hub, model: Segmenter) -> None:
    model.push_to_hub(NAME)
    pushed = set(hub.commits[NAME][hub.refs[NAME]["main"]]) - {".gitattributes"}
    assert pushed == {"README.md", "model.json", *(name for name in pushed if name.endswith(".safetensors"))}
    assert len(pushed) == 3
    hub.commit(NAME, "main", {"model.pkl": b"run me", "setup.py": b"run me", "pytorch_model.bin": b"run me"})
    Segmenter.from_pretrained(NAME)
    fetched = {path.rpartition("/")[2] for path in hub.asked if "/resolve/" in path}
    assert fetched == pushed - {"README.md"}


def test_a_revision_stays_what_it_was(hub: Hub, model: Segmenter) -> None:
    model.push_to_hub(NAME)
    first = hub.refs[NAME]["main"]
    model.teach("disc", *make.labelled(2))
    model.push_to_hub(NAME)
    assert Segmenter.from_pretrained(NAME, revision=first).classes[-1] == "box"
    assert Segmenter.from_pretrained(NAME).classes[-1] == "disc"
    with pytest.raises(GfssError, match="has no revision 'v9'"):
        Segmenter.from_pretrained(NAME, revision="v9")


def test_a_fetched_model_needs_no_hub_the_next_time(
    hub: Hub, model: Segmenter, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.push_to_hub(NAME)
    commit = hub.refs[NAME]["main"]
    Segmenter.from_pretrained(NAME, revision=commit)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    assert Segmenter.from_pretrained(NAME, revision=commit).classes == model.classes
    with pytest.raises(GfssError, match="cannot be reached"):
        Segmenter.from_pretrained("owner/other")


def test_what_the_hub_refuses_is_said_in_a_sentence(
    hub: Hub, model: Segmenter, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(GfssError, match="the hub has no model owner/none"):
        Segmenter.from_pretrained("owner/none")
    with pytest.raises(GfssError, match="expected owner/name"):
        Segmenter.from_pretrained("a/b/c")
    hub.create("owner/empty", private=False)
    hub.commit("owner/empty", "main", {"model.safetensors": b"x"})
    with pytest.raises(GfssError, match=r"is not a model of gfss: it has no model\.json"):
        Segmenter.from_pretrained("owner/empty")
    monkeypatch.setenv("HF_TOKEN", "wrong")
    with pytest.raises(GfssError, match="hf auth login"):
        model.push_to_hub(NAME)


def test_a_damaged_model_is_refused(hub: Hub, model: Segmenter) -> None:
    model.push_to_hub(NAME)
    files = hub.commits[NAME][hub.refs[NAME]["main"]]
    name = next(name for name in files if name.endswith(".safetensors"))
    hub.commit(NAME, "main", {name: files[name][:-8] + b"somebody"})
    with pytest.raises(GfssError, match="damaged or was modified"):
        Segmenter.from_pretrained(NAME)
