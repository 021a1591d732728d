"""Label Studio's machine-learning backend: predicts brush masks, learns from brush annotations.

Add ``http://HOST:PORT/label-studio`` as a model in the settings of a Label Studio project. Its labelling configuration
needs an ``Image`` and ``BrushLabels``; labels are classes of the model, or new ones to teach.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Any
from xml.etree import ElementTree

import numpy as np
from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, Field

from gfss.common.errors import GfssError
from gfss.data.images import read_image
from gfss.server.brush import decode_brush, encode_brush
from gfss.server.errors import Conflict
from gfss.server.project import ImageEntry
from gfss.server.security import LARGEST_BODY
from gfss.server.studio import Studio
from gfss.server.uploads import decode

LEARNED_FROM = ("ANNOTATION_CREATED", "ANNOTATION_UPDATED")
START = "START_TRAINING"
UPLOADED = re.compile(r"^[0-9a-f]{8}-")  # what Label Studio puts before the names of uploads
SECONDS = 20  # to wait for an image
LONGEST_CONFIG = 200_000  # characters

router = APIRouter(prefix="/label-studio", tags=["label studio"])


def _studio(request: Request) -> Studio:
    return request.app.state.studio


Here = Annotated[Studio, Depends(_studio)]


@dataclass(frozen=True)
class Source:
    """The Label Studio that images may be fetched from.

    Attributes:
        address: its address, as ``http://localhost:8080``; nothing is fetched from anywhere else.
        token: its access token.
    """

    address: str
    token: str | None = None


class Prediction(BaseModel):
    """What Label Studio asks for: tasks, and what the user has pointed at."""

    tasks: list[dict[str, Any]] = Field(max_length=1000)
    label_config: str = Field("", max_length=LONGEST_CONFIG)
    params: dict[str, Any] | None = None


class Setup(BaseModel):
    """What Label Studio says of itself."""

    label_config: str = Field("", alias="schema", max_length=LONGEST_CONFIG)


class Webhook(BaseModel):
    """Something happened in Label Studio."""

    action: str
    annotation: dict[str, Any] | None = None
    task: dict[str, Any] | None = None
    project: dict[str, Any] | None = None


@router.get("")
@router.get("/health")
def health() -> dict[str, str]:
    """Whether the backend is there."""
    return {"status": "UP", "model_class": "gfss"}


@router.post("/setup")
def setup(here: Here, setup: Setup) -> dict[str, str]:
    """Check the labelling configuration of a project."""
    if setup.label_config:
        read_config(setup.label_config)
    return {"model_version": _version(here)}


@router.get("/versions")
def versions(here: Here) -> dict[str, list[str]]:
    """Versions of the model: the one that is there now."""
    return {"versions": [_version(here)], "message": []}


@router.post("/predict")
def predict(here: Here, request: Request, asked: Prediction) -> dict[str, Any]:
    """Brush masks for tasks; for what the user points at, where the request says so."""
    config = read_config(asked.label_config)
    pointed = ((asked.params or {}).get("context") or {}).get("result") or []
    source = request.app.state.label_studio
    return {"results": [_predicted(here, config, task, pointed, source) for task in asked.tasks]}


@router.post("/webhook")
def webhook(here: Here, request: Request, event: Webhook) -> dict[str, Any]:
    """Learn from an annotation that was created or changed."""
    if event.action == START:
        return {"status": "ok", "job": here.teach().as_json()}
    if event.action not in LEARNED_FROM or event.annotation is None:
        return {"status": "ignored"}
    task = event.task or event.annotation.get("task")
    if not isinstance(task, dict):
        raise GfssError("the webhook does not send the task; turn on 'send payload' in Label Studio")
    config = read_config(str((event.project or {}).get("label_config", "")))
    names = store_annotation(here, config, task, event.annotation.get("result") or [], request.app.state.label_studio)
    if not names:
        return {"status": "ignored"}
    return {"status": "ok", "job": here.teach(names).as_json()}


@dataclass(frozen=True)
class Config:
    """What a labelling configuration says.

    Attributes:
        control: name of the brush labels.
        image: name of the image.
        key: where a task has the address of the image.
        labels: names that can be painted.
    """

    control: str
    image: str
    key: str
    labels: tuple[str, ...]


def read_config(text: str) -> Config:
    """The parts of a labelling configuration that matter here."""
    if "<!" in re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL):
        raise GfssError("the labelling configuration declares entities; take them out")
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise GfssError(f"the labelling configuration is not valid XML ({error})") from None
    brush, image = next(root.iter("BrushLabels"), None), next(root.iter("Image"), None)
    if brush is None or image is None:
        raise GfssError(
            "the labelling configuration needs an Image and BrushLabels; use Label Studio's template for masks"
        )
    labels = tuple(one.get("value") or "" for one in brush.iter("Label"))
    key = (image.get("value") or "$image").lstrip("$")
    return Config(brush.get("name") or "tag", image.get("name") or "image", key, labels)


def store_annotation(
    here: Studio, config: Config, task: dict[str, Any], results: Sequence[dict[str, Any]], source: Source | None
) -> list[str]:
    """Make an annotation the label of its image; returns the classes that can be taught from it."""
    regions = [one for one in results if one.get("type") == "brushlabels"]
    found: dict[str, np.ndarray] = {}
    for one in regions:
        value = one.get("value") or {}
        mask = decode_brush(value.get("rle") or [], int(one["original_height"]), int(one["original_width"]))
        for name in value.get("brushlabels") or []:
            if name in here.model.base_classes:
                continue
            if name in found and found[name].shape != mask.shape:
                raise GfssError("the regions of the annotation are of images of different sizes")
            found[name] = found[name] | mask if name in found else mask
    if not found:
        return []
    entry = _stored_image(here, config, task, source)
    for name in found:
        if name not in here.project.classes:
            here.add_class(name)
    label = here.project.label(entry.id).copy()
    for name, mask in found.items():
        if mask.shape != label.shape:
            raise Conflict(f"the annotation is {mask.shape[1]} x {mask.shape[0]} but {entry.path.name} is not")
        label[label == here.project.value(name)] = 0
    for name, mask in sorted(found.items(), key=lambda pair: -int(pair[1].sum())):  # small regions on top
        label[mask] = here.project.value(name)
    here.project.set_label(entry.id, label)
    return [name for name, mask in found.items() if mask.any()]


def _predicted(
    here: Studio, config: Config, task: dict[str, Any], pointed: Sequence[dict[str, Any]], source: Source | None
) -> dict[str, Any]:
    """The prediction of one task."""
    entry, image = _task_image(here, config, task, source)
    if pointed:
        name, mask = _pointed_region(here, pointed[-1], image, entry.id if entry else str(task.get("id")))
        masks = {name: mask} if name in config.labels and mask.any() else {}
    else:
        mask = here.mask(entry.id) if entry else here.model.segment(image).mask
        names = here.model.classes
        masks = {names[v]: mask == v for v in np.unique(mask) if v and names[v] in config.labels}
    results = [_brush_result(config, name, mask) for name, mask in masks.items()]
    share = sum(float(mask.mean()) for mask in masks.values())
    return {"model_version": _version(here), "score": round(share, 4), "result": results}


def _pointed_region(here: Studio, result: dict[str, Any], image: np.ndarray, key: str) -> tuple[str, np.ndarray]:
    """The region that a key point or a rectangle of Label Studio asks for, and its label."""
    height, width = image.shape[:2]
    value = result.get("value") or {}
    kind = str(result.get("type"))
    name = next(iter(value.get(kind) or []), "")
    try:
        x, y = float(value["x"]) * width / 100, float(value["y"]) * height / 100
        point, box = (min(width - 1, int(x)), min(height - 1, int(y))), None
        if kind.startswith("rectangle"):
            right = min(width, round(x + float(value["width"]) * width / 100))
            bottom = min(height, round(y + float(value["height"]) * height / 100))
            point, box = None, (int(x), int(y), right, bottom)
    except (KeyError, TypeError, ValueError):
        raise GfssError("the context has no place; expected a key point or a rectangle with x and y") from None
    return name, here.regions.propose(("label-studio", key, image.shape), lambda: image, point, box)


def _brush_result(config: Config, name: str, mask: np.ndarray) -> dict[str, Any]:
    return {
        "id": uuid.uuid4().hex[:10],
        "type": "brushlabels",
        "from_name": config.control,
        "to_name": config.image,
        "original_width": mask.shape[1],
        "original_height": mask.shape[0],
        "image_rotation": 0,
        "value": {"format": "rle", "rle": encode_brush(mask), "brushlabels": [name]},
    }


def _task_image(
    here: Studio, config: Config, task: dict[str, Any], source: Source | None
) -> tuple[ImageEntry | None, np.ndarray]:
    """The image of a task: from the folder if it has one of that name, else as it was sent or fetched."""
    name, address = _image_name(config, task)
    entry = _in_folder(here, name)
    if entry is not None:
        return entry, read_image(entry.path)
    return None, decode(_content(address, source), f"the image {name}", read_image)


def _stored_image(here: Studio, config: Config, task: dict[str, Any], source: Source | None) -> ImageEntry:
    """The image of a task as one of the folder; put there if it is not."""
    name, address = _image_name(config, task)
    return _in_folder(here, name) or here.project.add_image(name, _content(address, source))


def _image_name(config: Config, task: dict[str, Any]) -> tuple[str, str]:
    """File name and address of a task's image."""
    address = (task.get("data") or {}).get(config.key)
    if not isinstance(address, str) or not address:
        raise GfssError(f"the task has no image under '{config.key}'")
    if address.startswith("data:"):
        kind = address[5:].partition(";")[0].partition("/")[2]
        return f"task-{task.get('id', 'image')}.{'jpg' if kind == 'jpeg' else kind or 'png'}", address
    parts = urllib.parse.urlsplit(address)
    local = urllib.parse.parse_qs(parts.query).get("d")
    return PurePosixPath(urllib.parse.unquote(local[0] if local else parts.path)).name, address


def _in_folder(here: Studio, name: str) -> ImageEntry | None:
    stem = PurePosixPath(name).stem
    return here.project.images.get(stem) or here.project.images.get(UPLOADED.sub("", stem))


def _content(address: str, source: Source | None) -> bytes:
    """The bytes of an image, from the address itself or from the one Label Studio that may be asked."""
    if address.startswith("data:"):
        try:
            return base64.b64decode(address.partition(",")[2], validate=True)
        except binascii.Error:
            raise GfssError("the image in the task is not valid base64") from None
    if source is None:
        raise Conflict(
            "the image is not in the folder; copy it there, or start gfss serve with --label-studio ADDRESS so that it "
            "may be fetched"
        )
    whole = urllib.parse.urljoin(source.address.rstrip("/") + "/", address)
    if urllib.parse.urlsplit(whole)[:2] != urllib.parse.urlsplit(source.address)[:2]:
        raise Conflict(f"images are fetched from {source.address} only; copy this one into the folder")
    try:
        content = _fetch(whole, _authorization(source))
    except (urllib.error.URLError, OSError, ValueError, KeyError) as error:
        raise Conflict(f"Label Studio does not give the image ({error}); check the address and the token") from None
    if len(content) > LARGEST_BODY:
        raise GfssError(f"the image has more than {LARGEST_BODY // 2**20} MB; scale it down")
    return content


def _fetch(address: str, headers: dict[str, str], body: bytes | None = None) -> bytes:
    asked = urllib.request.Request(address, data=body, headers=headers)
    with _opener().open(asked, timeout=SECONDS) as answer:
        return answer.read(LARGEST_BODY + 1)


def _authorization(source: Source) -> dict[str, str]:
    """The header for a token: a personal access token is exchanged for a short-lived one, a legacy one is sent."""
    if not source.token:
        return {}
    if source.token.count(".") != 2:
        return {"Authorization": f"Token {source.token}"}
    place = source.address.rstrip("/") + "/api/token/refresh"
    body = json.dumps({"refresh": source.token}).encode()
    answer = json.loads(_fetch(place, {"Content-Type": "application/json"}, body))
    return {"Authorization": f"Bearer {answer['access']}"}


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """An address may not lead to another machine."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        return None


def _opener() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(_NoRedirects, urllib.request.ProxyHandler({}))


def _version(here: Studio) -> str:
    return f"{here.model.name}-{here.session}-{here.model.version}"
