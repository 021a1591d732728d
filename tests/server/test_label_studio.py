"""Label Studio's backend, by its HTTP interface."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.server import make

from gfss.common.errors import GfssError
from gfss.server.brush import decode_brush, encode_brush
from gfss.server.label_studio import read_config
from gfss.server.studio import Studio

CONFIG = """<View><Image name="img" value="$photo"/><BrushLabels name="brush" toName="img">
<Label value="star"/><Label value="moon"/></BrushLabels></View>"""


def reference_decode(code: list[int]) -> list[int]:
    """The format again, from a string of bits."""
    bits = "".join(f"{byte:08b}" for byte in code)

    def take(width: int) -> int:
        nonlocal bits
        value, bits = int(bits[:width], 2), bits[width:]
        return value

    count, word = take(32), take(5) + 1
    widths = [take(4) + 1 for _ in range(4)]
    values: list[int] = []
    while len(values) < count:
        repeated = take(1)
        length = take(widths[take(2)]) + 1
        values += [take(word)] * length if repeated else [take(word) for _ in range(length)]
    return values


@given(st.integers(1, 12), st.integers(1, 12), st.randoms())
@settings(max_examples=40, deadline=None)
def test_brush_masks_come_back(height: int, width: int, random: object) -> None:
    rng = np.random.default_rng(random.getrandbits(32))  # type: ignore[attr-defined]
    mask = rng.random((height, width)) < 0.5
    code = encode_brush(mask)
    assert (decode_brush(code, height, width) == mask).all()
    assert reference_decode(code) == (np.repeat(mask.ravel(), 4) * 255).tolist()


def test_values_one_by_one_are_read_too() -> None:
    bits = f"{8:032b}{7:05b}" + "".join(f"{w - 1:04b}" for w in (3, 4, 8, 16)) + "0" + "00" + "111"
    bits += "".join(f"{value:08b}" for value in (1, 2, 3, 0, 9, 9, 9, 200))
    bits += "0" * (-len(bits) % 8)
    code = [int(bits[i : i + 8], 2) for i in range(0, len(bits), 8)]
    assert decode_brush(code, 1, 2).tolist() == [[False, True]]


@pytest.mark.parametrize("code", [[], [0] * 4, [255] * 40, ["a"], [300], list(range(60))])
def test_damaged_brush_masks_are_refused(code: list) -> None:
    with pytest.raises(GfssError, match="damaged"):
        decode_brush(code, 10, 10)


def annotation(name: str, mask: np.ndarray) -> dict:
    return {
        "result": [
            {
                "type": "brushlabels",
                "original_width": mask.shape[1],
                "original_height": mask.shape[0],
                "value": {"format": "rle", "rle": encode_brush(mask), "brushlabels": [name]},
            }
        ]
    }


def test_learns_from_annotations_and_predicts(
    client: TestClient, studio: Studio, stars: dict[str, np.ndarray], folder: Path
) -> None:
    assert client.get("/label-studio/health").json()["status"] == "UP"
    first = client.post("/label-studio/setup", json={"project": "1.2", "schema": CONFIG}).json()["model_version"]
    names = list(stars)
    for name in names[:3]:
        event = {
            "action": "ANNOTATION_CREATED",
            "annotation": annotation(make.NEW, stars[name]),
            "task": {"id": 1, "data": {"photo": f"/data/upload/1/0a1b2c3d-{name}.png"}},
            "project": {"id": 1, "label_config": CONFIG},
        }
        answer = client.post("/label-studio/webhook", json=event)
        assert answer.json()["status"] == "ok", answer.text
        assert studio.jobs.get(answer.json()["job"]["id"]).finished.wait(60)
        assert (studio.project.label(name) == stars[name]).all()
    assert studio.model.taught == {make.NEW: 3}

    content = base64.b64encode((folder / f"{names[-1]}.png").read_bytes()).decode()
    tasks = [
        {"id": 7, "data": {"photo": f"/data/local-files/?d=some/where/{names[-1]}.png"}},
        {"id": 8, "data": {"photo": f"data:image/png;base64,{content}"}},
    ]
    answer = client.post("/label-studio/predict", json={"tasks": tasks, "label_config": CONFIG, "params": {}})
    value = studio.model.classes.index(make.NEW)
    for result in answer.json()["results"]:
        assert result["model_version"] != first
        found = {one["value"]["brushlabels"][0]: one for one in result["result"]}
        assert set(found) <= {"star", "moon"}
        one = found["star"]
        mask = decode_brush(one["value"]["rle"], one["original_height"], one["original_width"])
        assert (mask == (studio.mask(names[-1]) == value)).all()
        assert (one["from_name"], one["to_name"]) == ("brush", "img")


def test_a_key_point_or_a_rectangle_gives_a_region(client: TestClient, studio: Studio, stars: dict) -> None:
    name, mask = next(iter(stars.items()))
    x, y = make.centre(mask)
    values = {
        "keypointlabels": {"x": 100 * x / 112, "y": 100 * y / 112, "keypointlabels": [make.NEW]},
        "rectanglelabels": {"x": 5, "y": 5, "width": 80, "height": 80, "rectanglelabels": [make.NEW]},
    }
    for kind, value in values.items():
        context = {"result": [{"type": kind, "value": value}]}
        body = {
            "tasks": [{"id": 1, "data": {"photo": f"{name}.png"}}],
            "label_config": CONFIG,
            "params": {"context": context},
        }
        (result,) = client.post("/label-studio/predict", json=body).json()["results"]
        found = decode_brush(result["result"][0]["value"]["rle"], 112, 112)
        assert found.any()
        if kind == "keypointlabels":
            assert found[y, x]


def test_what_cannot_be_used_is_refused_with_a_sentence(client: TestClient, studio: Studio, stars: dict) -> None:
    name, mask = next(iter(stars.items()))
    good = {
        "action": "ANNOTATION_CREATED",
        "annotation": annotation(make.NEW, mask),
        "task": {"id": 1, "data": {"photo": f"{name}.png"}},
        "project": {"label_config": CONFIG},
    }
    for change, status in [
        ({"project": {"label_config": "<View/>"}}, 400),
        ({"project": {"label_config": "<!DOCTYPE a [<!ENTITY b 'b'>]><View>&b;</View>"}}, 400),
        ({"project": {"label_config": "<View"}}, 400),
        ({"task": {"data": {}}}, 400),
        ({"task": None}, 400),
        ({"task": {"data": {"photo": "http://169.254.169.254/secret.png"}}}, 409),  # nothing is fetched from anywhere
        ({"task": {"data": {"photo": "file:///etc/passwd.png"}}}, 409),
        ({"task": {"data": {"photo": "data:image/png;base64,%%%"}}}, 400),
        ({"annotation": annotation(make.NEW, np.ones((5, 5), bool))}, 409),
        ({"annotation": {"result": [{"type": "brushlabels", "original_width": 9, "original_height": 9,
                                     "value": {"rle": [1, 2], "brushlabels": ["star"]}}]}}, 400),
    ]:  # fmt: skip
        answer = client.post("/label-studio/webhook", json={**good, **change})
        assert answer.status_code == status, (change, answer.text)
        assert answer.json()["error"]
    assert client.post("/label-studio/webhook", json={"action": "TASKS_CREATED"}).json() == {"status": "ignored"}
    base = {**good, "annotation": annotation("moon", mask)}  # a base class is not taught
    assert client.post("/label-studio/webhook", json=base).json() == {"status": "ignored"}
    assert studio.project.areas(name) == {}


def test_the_configuration_of_the_mask_template() -> None:
    config = read_config(CONFIG)
    assert (config.control, config.image, config.key, config.labels) == ("brush", "img", "photo", ("star", "moon"))
