"""What is fuzzed: good input of every kind, how it is damaged, and what the program does with it."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tests.data.make import SIZE, box_polygon, boxes, photo, png
from tests.fuzz.mutate import Damage, damage_bytes, damage_json, damage_text

from gfss.data.labels import read_labels

HEIGHT, WIDTH = SIZE


@dataclass(frozen=True)
class Target:
    """One kind of input.

    Attributes:
        name: what it is called on the command line.
        good: a good input, as the damage takes it.
        damage: makes a bad one of it.
        prepare: lays the surroundings out once, in an empty folder.
        run: writes the damaged input into that folder and lets the program read it.
    """

    name: str
    good: Any
    damage: Damage
    prepare: Callable[[Path], None]
    run: Callable[[Path, bytes], None]


def one_image(root: Path) -> None:
    photo(root / "images" / "a.jpg")


def read_all(source: Path, name: str = "cat") -> None:
    labels = read_labels(source, class_name=name)
    for i in range(len(labels)):
        labels.mask(i)


def reads(path: str, source: str = ".") -> Callable[[Path, bytes], None]:
    """Write a file and read the labels of a folder or of the file."""

    def run(root: Path, content: bytes) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
        read_all(root / source)

    return run


def png_bytes(pixels: np.ndarray, palette: bool = False) -> bytes:
    buffer = io.BytesIO()
    picture = Image.fromarray(pixels)
    (picture.convert("P") if palette else picture).save(buffer, "PNG")
    return buffer.getvalue()


def labelme() -> dict[str, Any]:
    stamp = io.BytesIO()
    Image.fromarray(np.full((4, 5), 255, dtype=np.uint8)).save(stamp, "PNG")
    import base64

    painted = {"mask": base64.b64encode(stamp.getvalue()).decode()}
    kinds = {
        "polygon": [[1, 1], [9, 1], [9, 9]],
        "rectangle": [[2, 2], [8, 12]],
        "circle": [[10, 10], [12, 10]],
        "mask": [[3, 3], [8, 7]],
        "line": [[0, 0], [5, 5]],
    }
    shapes = [
        {"label": "cat", "shape_type": kind, "points": points, **(painted if kind == "mask" else {})}
        for kind, points in kinds.items()
    ]
    words = {"imagePath": "../images/a.jpg", "imageHeight": HEIGHT, "imageWidth": WIDTH, "imageData": None}
    return {"version": "5.5.0", "flags": {}, "shapes": shapes, **words}


def coco() -> dict[str, Any]:
    runs = {"size": [HEIGHT, WIDTH], "counts": [100, 50, HEIGHT * WIDTH - 150]}
    segments = [[box_polygon(2, 2, 9, 9)], runs, {"size": [HEIGHT, WIDTH], "counts": "d3<5Vd0"}]
    annotations = [
        {"id": i, "image_id": 1, "category_id": 3, "iscrowd": int(i == 1), "segmentation": segment}
        for i, segment in enumerate(segments[:2])
    ]
    image = {"id": 1, "file_name": "a.jpg", "height": HEIGHT, "width": WIDTH}
    return {"images": [image], "annotations": annotations, "categories": [{"id": 3, "name": "cat"}]}


def panoptic() -> dict[str, Any]:
    infos = [{"id": 1, "category_id": 3, "iscrowd": 0, "area": 64, "bbox": [0, 8, 8, 8]}]
    return {
        "images": [{"id": 1, "file_name": "a.jpg", "height": HEIGHT, "width": WIDTH}],
        "annotations": [{"image_id": 1, "file_name": "a.png", "segments_info": infos}],
        "categories": [{"id": 3, "name": "cat", "isthing": 1}],
    }


def panoptic_root(root: Path) -> None:
    one_image(root)
    png(root / "labels" / "a.png", np.stack([boxes(1), boxes(), boxes()], axis=-1))


def cvat() -> bytes:
    buffer = io.BytesIO()
    colours = np.array([[0, 0, 0], [128, 0, 0]], dtype=np.uint8)
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("labelmap.txt", "background:0,0,0::\ncat:128,0,0::\n")
        archive.writestr("SegmentationClass/a.png", png_bytes(colours[boxes(1)]))
    return buffer.getvalue()


def yolo_root(root: Path) -> None:
    one_image(root)
    (root / "labels").mkdir()
    (root / "data.yaml").write_text("names: [cat, dog]\n")
    (root / "labels" / "a.txt").write_text("0 0.1 0.1 0.5 0.1 0.5 0.5\n")


def binary_root(root: Path) -> None:
    one_image(root)
    png(root / "masks" / "a.png", boxes(1))


def index_root(root: Path) -> None:
    binary_root(root)
    (root / "classes.txt").write_text("cat\ndog\n")


def run_record(root: Path, content: bytes) -> None:
    from gfss.evaluation.records import read_record

    (root / "record.json").write_bytes(content)
    read_record(root / "record.json")


def record() -> dict[str, Any]:
    """A record of this version, found among the results that lie in the repository."""
    folder = Path(__file__).parents[2] / "results"
    for path in sorted(folder.rglob("*.json")):
        content = json.loads(path.read_text())
        if "protocol" in content and "method" in content:
            content["supports"] = content["supports"][:2]
            return content
    raise AssertionError("no record under results")


def recipe() -> dict[str, Any]:
    """A recipe with every kind of key: presets, changes of presets, methods in their several forms."""
    return {
        "about": "one sentence",
        "data": "scenes",
        "folds": [0, 1],
        "encoder": "tiny",
        "size": 113,
        "levels": ["layer2", "layer3", "layer4"],
        "base": {"preset": "scratch", "epochs": 2},
        "novel": {"preset": "frozen", "steps": 50},
        "training": {"preset": "frozen", "iterations": 800, "episodes": 400, "several": 0, "held_out": 0},
        "trained_shots": 1,
        "methods": {
            "nsf": None,
            "pcn": {"training": {"iterations": 20}},
            "ours": {"calibrator": {"preset": "pcn-support", "features": ["layer3"]}},
            "acastle+T": None,
            "my-diam": {"diam": {"preset": "published", "iterations": 5}},
            "denet": {"published": True},
        },
        "shots": [1, 5],
        "protocols": {"paired": 20, "joint": 2},
        "supports": "val",
        "seeds": [0],
        "seed": 0,
    }


def recipe_text() -> str:
    import yaml

    return yaml.safe_dump(recipe(), sort_keys=False)


def run_recipe(root: Path, content: bytes) -> None:
    """Read a recipe and list its steps, as ``gfss run --dry-run`` does."""
    from gfss.experiments.recipes import read_recipe
    from gfss.experiments.steps import Plan

    (root / "recipe.yaml").write_bytes(content)
    plan = Plan(read_recipe(root / "recipe.yaml"), root / "runs", root / "results")
    for step in plan.steps:
        _ = step.words


def run_model_words(root: Path, content: bytes) -> None:
    """The words of a model with a checksum that fits them, then the whole model."""
    from gfss.app.model_folder import ABOUT, _about_digest
    from gfss.app.segmenter import load

    try:
        about = json.loads(content)
        about["sha256"][ABOUT] = _about_digest(about)
        content = json.dumps(about).encode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass  # then it is read as it is
    (root / "model" / ABOUT).write_bytes(content)
    load(root / "model")


def model_root(root: Path) -> None:
    from tests.app.make import labelled, model

    segmenter = model()
    segmenter.teach("box", *labelled())
    segmenter.save(root / "model")


def model_words() -> dict[str, Any]:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        model_root(Path(folder))
        return json.loads((Path(folder) / "model" / "model.json").read_text())


def run_model_tensors(root: Path, content: bytes) -> None:
    """The tensors of a model with checksums that fit them, where they can be read, then the whole model."""
    from gfss.app.model_folder import ABOUT, TENSORS, _about_digest, _digest, _part_digest, _split, load_tensors
    from gfss.app.segmenter import load

    place = root / "model" / ABOUT
    about = json.loads(place.read_text())
    sums = about["sha256"]
    with suppress(Exception):  # then the checksums are those of other tensors
        parts = _split(load_tensors(content))
        sums["parts"] = {part: _part_digest(group) for part, group in parts.items()}
    sums[TENSORS] = _digest(content)
    sums[ABOUT] = _about_digest(about)
    place.write_text(json.dumps(about))
    next((root / "model").glob("model-*.safetensors")).write_bytes(content)
    load(root / "model")


def model_tensors() -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        model_root(Path(folder))
        return next((Path(folder) / "model").glob("model-*.safetensors")).read_bytes()


def nothing(root: Path) -> None:
    """No surroundings."""


TARGETS: dict[str, Callable[[], Target]] = {
    "labelme": lambda: Target("labelme", labelme(), damage_json, one_image, reads("labels/a.json", "labels/a.json")),
    "coco": lambda: Target("coco", coco(), damage_json, one_image, reads("labels.json", "labels.json")),
    "panoptic": lambda: Target("panoptic", panoptic(), damage_json, panoptic_root, reads("labels.json", "labels.json")),
    "yolo": lambda: Target(
        "yolo", "0 0.1 0.1 0.5 0.1 0.5 0.5\n1 0.2 0.3 0.4 0.5 0.6 0.9", damage_text, yolo_root, reads("labels/a.txt")
    ),
    "yolo-names": lambda: Target(
        "yolo-names", "train: images\nnc: 2\nnames:\n  0: cat\n  1: dog", damage_text, yolo_root, reads("data.yaml")
    ),
    "png": lambda: Target("png", png_bytes(boxes(1)), damage_bytes, binary_root, reads("masks/a.png")),
    "palette": lambda: Target("palette", png_bytes(boxes(1, 2), True), damage_bytes, index_root, reads("masks/a.png")),
    "wide": lambda: Target(
        "wide", png_bytes(boxes(1, 2).astype(np.uint16)), damage_bytes, index_root, reads("masks/a.png")
    ),
    "names": lambda: Target("names", "cat\ndog\n", damage_text, index_root, reads("classes.txt")),
    "labelmap": lambda: Target(
        "labelmap", "background:0,0,0::\ncat:1,1,1::\n", damage_text, binary_root, reads("labelmap.txt")
    ),
    "cvat": lambda: Target("cvat", cvat(), damage_bytes, one_image, reads("task.zip", "task.zip")),
    "record": lambda: Target("record", record(), damage_json, nothing, run_record),
    "recipe": lambda: Target("recipe", recipe(), damage_json, nothing, run_recipe),
    "recipe-text": lambda: Target("recipe-text", recipe_text(), damage_text, nothing, run_recipe),
    "model": lambda: Target("model", model_words(), damage_json, model_root, run_model_words),
    "tensors": lambda: Target("tensors", model_tensors(), damage_bytes, model_root, run_model_tensors),
}
