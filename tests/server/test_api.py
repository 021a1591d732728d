"""The REST interface: the verbs, the errors, and what may not get through."""

from __future__ import annotations

import gzip
import io
import json
import random
import struct
import threading
import time
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image
from tests.server import make

import gfss
from gfss.app.exported import OnnxModel
from gfss.app.inputs import labelled_images
from gfss.server.studio import Studio


def paint(client: TestClient, stars: dict[str, np.ndarray], count: int = 3) -> list[str]:
    """Add the class and paint it in some images."""
    assert client.post("/api/classes", json={"name": make.NEW}).status_code == 201
    names = list(stars)[:count]
    for name in names:
        assert client.put(f"/api/images/{name}/label", content=png(stars[name].astype(np.uint8))).status_code == 200
    return names


def wait(client: TestClient, answer: object) -> dict:
    job = answer.json()  # type: ignore[attr-defined]
    assert answer.status_code == 202, job  # type: ignore[attr-defined]
    end = time.monotonic() + 120
    while job["state"] not in ("done", "failed"):
        assert time.monotonic() < end
        time.sleep(0.02)
        job = client.get(f"/api/jobs/{job['id']}").json()
    assert job["state"] == "done", job["error"]
    return job["result"]


def png(pixels: np.ndarray) -> bytes:
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, format="PNG")
    return content.getvalue()


def test_teach_segment_report_rename_forget_undo(
    client: TestClient, studio: Studio, stars: dict[str, np.ndarray], folder: Path
) -> None:
    names = paint(client, stars)
    result = wait(client, client.post("/api/teach"))
    assert result["classes"] == [make.NEW]
    assert result["report"]["words"]
    listed = {one["name"]: one for one in client.get("/api/classes").json()["classes"]}
    assert listed[make.NEW]["taught_from"] == 3
    assert listed[make.NEW]["value"] == len(studio.model.classes) - 1
    assert not listed[make.NEW]["changed"]

    # the same as the command line and Python would do
    model = gfss.load(make.MODEL)
    model.teach(make.NEW, [folder / f"{n}.png" for n in sorted(names)], [stars[n] for n in sorted(names)])
    query = list(stars)[-1]
    expected = model.segment(folder / f"{query}.png")
    answer = client.get(f"/api/images/{query}/segment")
    assert (np.asarray(Image.open(io.BytesIO(answer.content))) == expected.mask).all()
    content = (folder / f"{query}.png").read_bytes()
    for format in ("png", "raw", "json", "overlay"):
        sent = client.post("/api/segment", params={"format": format}, content=content)
        assert sent.status_code == 200
        if format == "raw":
            assert (np.frombuffer(sent.content, np.uint8) == expected.mask.ravel()).all()
        if format == "json":
            assert sent.json()["found"][make.NEW] == pytest.approx(expected.found[make.NEW], abs=1e-5)
    assert (gfss.load(make.labels_of(folder) / "model").segment(folder / f"{query}.png").mask == expected.mask).all()

    assert client.get("/api/report").json() == result["report"]
    assert client.post(f"/api/classes/{make.NEW}/rename", json={"name": "five points"}).status_code == 200
    assert studio.model.classes[-1] == "five points"
    assert client.post("/api/classes/five points/forget").status_code == 200
    assert studio.model.taught == {}
    assert studio.project.areas(names[0])  # labels stay
    for left in (2, 1, 0):
        assert client.post("/api/undo").json() == {"undoable": left}
    assert client.post("/api/undo").status_code == 409
    plain = gfss.load(make.MODEL).segment(folder / f"{query}.png")
    assert (studio.mask(query) == plain.mask).all()


def test_balance_finds_more_or_less(client: TestClient, stars: dict[str, np.ndarray]) -> None:
    paint(client, stars)
    wait(client, client.post("/api/teach"))
    query = list(stars)[-1]

    def share(**params: float) -> float:
        return (
            client.get(f"/api/images/{query}/segment", params={"format": "json", **params})
            .json()["found"]
            .get(make.NEW, 0)
        )

    assert share(balance=-50) < share() < share(balance=50)
    assert client.put(f"/api/classes/{make.NEW}/balance", json={"value": 50}).status_code == 200
    assert share() == share(balance=50)
    assert client.put(f"/api/classes/{make.NEW}/balance", json={"value": 51}).status_code == 422
    assert client.put("/api/classes/moon/balance", json={"value": 1}).status_code == 404


def test_lessons_of_many_clients_at_once_are_all_there(client: TestClient, studio: Studio, stars: dict) -> None:
    names = [f"class {i}" for i in range(4)]
    image = next(iter(stars))
    for i, name in enumerate(names):
        client.post("/api/classes", json={"name": name})
        patch = np.full((14, 14), i + 1, dtype=np.uint8)
        assert client.post(
            f"/api/images/{image}/strokes",
            params={"left": 25 * i, "top": 40, "width": 14, "height": 14},
            content=patch.tobytes(),
        ).json() == {"version": i + 1}
    jobs = []
    threads = [
        threading.Thread(target=lambda n=name: jobs.append(client.post("/api/teach", json={"classes": [n]})))
        for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for answer in jobs:
        wait(client, answer)
    assert set(studio.model.taught) == set(names)
    assert set(gfss.load(studio.model.folder).classes) >= set(names)


def test_a_model_that_changed_on_disk_is_noticed_and_not_overwritten(
    client: TestClient, studio: Studio, stars: dict[str, np.ndarray]
) -> None:
    paint(client, stars, 1)
    wait(client, client.post("/api/teach"))
    other = gfss.load(studio.model.folder)
    other.rename(make.NEW, "renamed elsewhere")
    other.save(studio.model.folder)
    assert client.get("/api/state").json()["model"]["changed_on_disk"]
    answer = client.post(f"/api/classes/{make.NEW}/forget")
    assert answer.status_code == 409
    assert "another program" in answer.json()["error"]
    assert client.post("/api/reload").status_code == 200
    assert studio.model.classes[-1] == "renamed elsewhere"
    assert not client.get("/api/state").json()["model"]["changed_on_disk"]


def test_a_failed_lesson_leaves_everything_as_it_was(client: TestClient, studio: Studio, stars: dict) -> None:
    client.post("/api/classes", json={"name": "all"})
    name = next(iter(stars))
    client.put(f"/api/images/{name}/label", content=png(np.ones_like(stars[name], dtype=np.uint8)))
    answer = client.post("/api/teach").json()
    studio.jobs.get(answer["id"]).finished.wait(60)
    job = client.get(f"/api/jobs/{answer['id']}").json()
    assert job["state"] == "failed"
    assert "only the class" in job["error"]
    assert studio.model.taught == {}
    assert studio.project.changed == {"all"}  # can be taught once the label is corrected
    assert client.get("/api/state").json()["model"]["undoable"] == 0


def test_it_goes_on_where_it_stopped(folder: Path, stars: dict[str, np.ndarray]) -> None:
    with make.studio(folder) as first:
        first.add_class(make.NEW)
        name = next(iter(stars))
        first.project.set_label(name, stars[name].astype(np.uint8))
        first.teach().finished.wait(60)
        mask = first.mask(name)
    with make.studio(folder, None) as second:  # continues the project's own model
        assert second.model.taught == {make.NEW: 1}
        assert (second.mask(name) == mask).all()
        assert second.report()["sections"]
        second.undo()
        assert second.model.taught == {}
        assert second.model.base_classes == gfss.load(make.MODEL).network.card.classes


def test_negatives_and_suggestions(client: TestClient, studio: Studio, stars: dict[str, np.ndarray]) -> None:
    names = paint(client, stars, 2)
    other = next(name for name in studio.project.images if name not in stars)
    assert client.post(f"/api/images/{other}/without", json={"name": make.NEW}).json() == {"without": True}
    listed = {one["id"]: one for one in client.get("/api/images").json()["images"]}
    assert listed[other]["without"] == [make.NEW]
    assert client.post(f"/api/images/{names[0]}/without", json={"name": make.NEW}).status_code == 409
    wait(client, client.post("/api/teach"))
    ranked = wait(client, client.post("/api/suggest"))["images"]
    assert {one["id"] for one in ranked} == set(studio.project.images) - {*names, other}


def test_exports(client: TestClient, studio: Studio, stars: dict[str, np.ndarray], tmp_path: Path) -> None:
    names = paint(client, stars, 2)
    client.post(
        f"/api/images/{names[0]}/strokes",
        params={"left": 0, "top": 0, "width": 2, "height": 2},
        content=b"\xff" * 4,
    )
    wait(client, client.post("/api/teach"))
    files = {}
    for kind in ("masks", "coco", "labels", "labels-coco", "model", "onnx"):
        name = wait(client, client.post(f"/api/exports/{kind}"))["file"]
        answer = client.get(f"/api/exports/{name}")
        assert answer.status_code == 200
        files[kind] = tmp_path / name
        files[kind].write_bytes(answer.content)
    with zipfile.ZipFile(files["masks"]) as archive:
        mask = np.asarray(Image.open(io.BytesIO(archive.read(f"masks/{names[0]}.png"))))
    assert (mask == studio.mask(names[0])).all()

    # labels come back the same, from both forms
    for source in (files["labels"], files["labels-coco"]):
        back = {one.id: one.mask for one in labelled_images([studio.project.folder], source, make.NEW)}
        for name in names:
            label = studio.project.label(name)
            assert (back[f"{name}.png"] == np.where(label == 255, 255, label)).all()
    content = json.loads(files["coco"].read_text())
    assert len(content["images"]) == len(studio.project.images)
    value = studio.model.classes.index(make.NEW)
    areas = {(a["image_id"], a["category_id"]): a["area"] for a in content["annotations"]}
    number = next(one["id"] for one in content["images"] if one["file_name"] == f"{names[0]}.png")
    assert areas[number, value] == int((studio.mask(names[0]) == value).sum())

    with zipfile.ZipFile(files["model"]) as archive:
        archive.extractall(tmp_path / "unpacked")
    path = studio.project.image(names[1]).path
    assert (gfss.load(tmp_path / "unpacked" / "model").segment(path).mask == studio.mask(names[1])).all()
    assert (OnnxModel(files["onnx"]).segment(path).mask == studio.mask(names[1])).mean() > 0.99
    assert client.post("/api/exports/word").status_code == 400
    assert client.get("/api/exports/..%2fproject.json").status_code == 404


def test_thumbnails_and_files(client: TestClient, stars: dict[str, np.ndarray]) -> None:
    name = next(iter(stars))
    paint(client, stars, 1)
    wait(client, client.post("/api/teach"))
    plain = client.get(f"/api/images/{name}/thumbnail", params={"size": 64})
    assert max(Image.open(io.BytesIO(plain.content)).size) == 64
    assert client.get(f"/api/images/{name}/thumbnail", params={"size": 64, "overlay": True}).content != plain.content
    assert Image.open(io.BytesIO(client.get(f"/api/images/{name}/file").content)).size == (112, 112)


def test_the_openapi_page_lists_every_verb_without_the_internet(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    for verb in ("/api/segment", "/api/teach", "/api/classes", "/api/report", "/api/classes/{name}/forget"):
        assert verb in paths
    assert all(one.get("description") for methods in paths.values() for one in methods.values())
    static = Path(gfss.__file__).parent / "server" / "static"
    for path in static.iterdir():
        outside = [word for word in path.read_text().split() if "http" in word and "www.w3.org/2000/svg" not in word]
        assert outside == [], path.name
    assert client.get("/docs").status_code == 200


def test_unknown_things_are_answered_with_a_sentence(client: TestClient) -> None:
    for method, path, status in [
        ("GET", "/api/images/nothing/label", 404),
        ("GET", "/api/images/nothing/segment", 404),
        ("GET", "/api/images/..%2F..%2Fetc%2Fpasswd/file", 404),
        ("GET", "/api/images/%2e%2e/file", 404),
        ("GET", "/static/../api.py", 404),
        ("GET", "/static/%2e%2e/api.py", 404),
        ("GET", "/api/jobs/99", 404),
        ("GET", "/api/jobs/x", 422),
        ("GET", "/nowhere", 404),
        ("DELETE", "/api/state", 405),
        ("POST", "/api/classes/moon/forget", 409),
        ("POST", "/api/classes/nothing/forget", 404),
        ("POST", "/api/teach", 409),
        ("GET", "/api/report", 409),
    ]:
        answer = client.request(method, path)
        assert answer.status_code == status, (path, answer.text)
        assert answer.json()["error"]
        assert "\n" not in answer.json()["error"]


def malformed() -> list[tuple[str, bytes]]:
    """A hundred kinds of uploads that are not good images."""
    good = {}
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8))
    for format in ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF", "PPM"):
        content = io.BytesIO()
        picture.save(content, format=format)
        good[format] = content.getvalue()
    kinds: list[tuple[str, bytes]] = []
    for format, content in good.items():
        # Pillow fills up some formats where the end is missing; a header alone is never an image
        kinds += [(f"{format} cut at {cut}", content[:cut]) for cut in (1, 2, 3, 4, 6, 8, 10, 12)]
        kinds.append((f"{format} with another beginning", b"\0\0\0\0" + content[4:]))
    names = ("zip", "gzip", "pdf", "html", "svg", "xml bomb", "elf", "eps", "json", "text")
    contents = (
        b"PK\x03\x04" + b"\0" * 100, gzip.compress(b"x" * 1000), b"%PDF-1.7\n", b"<html><script>alert(1)</script>",
        b'<svg xmlns="http://www.w3.org/2000/svg"/>',
        b'<!DOCTYPE a [<!ENTITY b "b">]><a>&b;</a>', b"\x7fELF" + b"\0" * 60,
        b"%!PS-Adobe-3.0 EPSF-3.0\n", b"{}", "ünï".encode(),
    )  # fmt: skip
    kinds += list(zip(names, contents, strict=True))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    start = b"\x89PNG\r\n\x1a\n"
    for width, height in ((0, 0), (0, 5), (2**31 - 1, 2**31 - 1), (100_000, 100_000), (2**31, 1)):
        header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
        kinds.append(
            (f"PNG of {width} x {height}", start + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b""))
        )
    rng = random.Random(0)
    kinds += [(f"{size} random bytes", rng.randbytes(size)) for size in (1, 2, 7, 16, 100, 1000, 4096, 10_000, 60_000)]
    kinds += [(f"zeros {size}", b"\0" * size) for size in (1, 100, 10_000)]
    kinds += [(f"spaces and newlines {size}", b" \n" * size) for size in (1, 50)]
    kinds += [("multipart", b"--x\r\nContent-Disposition: form-data\r\n\r\nabc\r\n--x--"), ("empty", b"")]
    kinds += [(f"text path {text}", text.encode()) for text in ("/etc/passwd", "file:///etc/passwd", "../../a.png")]
    kinds += [(f"BMP header {n}", b"BM" + struct.pack("<IHHI", n, 0, 0, 54)) for n in (0, 10, 2**32 - 1)]
    return kinds


def test_a_hundred_malformed_uploads_get_a_sentence(client: TestClient, studio: Studio, folder: Path) -> None:
    kinds = malformed()
    assert len(kinds) >= 100
    before = sorted(folder.iterdir())
    name = next(iter(studio.project.images))
    for what, content in kinds:
        for method, path in (
            ("POST", "/api/segment"),
            ("POST", "/api/images?name=new.png"),
            ("PUT", f"/api/images/{name}/label"),
        ):
            answer = client.request(method, path, content=content)
            assert 400 <= answer.status_code < 500, (what, path, answer.status_code, answer.text[:200])
            sentence = answer.json()["error"]
            assert sentence, (what, path)
            assert "/tmp" not in sentence, (what, path, sentence)
            assert str(folder) not in sentence, (what, path, sentence)
    assert sorted(folder.iterdir()) == before
    assert not studio.project.mask_file(name).exists()


def test_labels_that_do_not_fit_are_refused(client: TestClient, studio: Studio) -> None:
    name = next(iter(studio.project.images))
    url = f"/api/images/{name}/label"
    assert client.put(url, content=png(np.zeros((5, 5), np.uint8))).status_code == 400
    assert client.put(url, content=png(np.full((112, 112), 7, np.uint8))).status_code == 400
    assert client.put(url, content=png(np.zeros((112, 112, 3), np.uint8))).status_code == 400
    where = {"left": 0, "top": 0, "width": 4, "height": 4}
    for change, status in [
        ({"left": -1}, 422), ({"width": 0}, 422), ({"left": 111}, 400), ({"width": 5}, 400), ({"top": 10**12}, 400),
        ({"width": "x"}, 422),
    ]:  # fmt: skip
        answer = client.post(f"/api/images/{name}/strokes", params={**where, **change}, content=bytes(16))
        assert answer.status_code == status
        assert answer.json()["error"]


@pytest.mark.parametrize(
    "body",
    [{}, {"x": 1}, {"x": 5000, "y": 1}, {"x": -1, "y": 1}, {"box": [0, 0, 0, 0]}, {"box": [5, 5, 500, 9]}, {"box": [1]},
     {"x": 1, "y": 1, "box": [0, 0, 9, 9]}, {"x": "a", "y": 1}],
)  # fmt: skip
def test_points_and_boxes_outside_the_image_are_refused(client: TestClient, studio: Studio, body: dict) -> None:
    name = next(iter(studio.project.images))
    answer = client.post(f"/api/images/{name}/region", json=body)
    assert answer.status_code in (400, 422)
    assert answer.json()["error"]
