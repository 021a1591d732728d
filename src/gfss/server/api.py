"""The HTTP interface: the verbs of the command line, the labels of the page, jobs for long work."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from PIL import Image
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

import gfss
from gfss.common.errors import GfssError
from gfss.data.images import class_colours, read_image, read_mask
from gfss.data.images import overlay as in_colour
from gfss.server.errors import status_of
from gfss.server.label_studio import Source
from gfss.server.label_studio import router as label_studio_router
from gfss.server.security import Access, App, Guard
from gfss.server.studio import Studio
from gfss.server.uploads import decode, read_body

STATIC = Path(__file__).parent / "static"
THUMBNAIL = 240  # pixels of its long side, if not said otherwise
Format = Literal["png", "json", "raw", "overlay"]

router = APIRouter(prefix="/api")


def _studio(request: Request) -> Studio:
    return request.app.state.studio


Here = Annotated[Studio, Depends(_studio)]
Balance = Annotated[
    float | None, Query(ge=-50, le=50, description="Above 0 finds more of the taught classes, below 0 fewer.")
]
Tile = Annotated[bool, Query(description="Look at a large image piece by piece, for small objects.")]


class ClassName(BaseModel):
    """A class by name."""

    name: str = Field(min_length=1, max_length=60)


class Teaching(BaseModel):
    """Which classes to teach; those with new labels if left out."""

    classes: list[str] | None = Field(None, max_length=253)


class Marking(BaseModel):
    """Whether an image does not show a class."""

    name: str
    without: bool = True


class Pointing(BaseModel):
    """A click (x, y) on an object, or a box (left, top, right, bottom) around it.

    With the name of a class, it corrects what is painted of it: adds to that or, with ``away``, takes from it.
    """

    x: int | None = None
    y: int | None = None
    box: tuple[int, int, int, int] | None = None
    name: str | None = None
    away: bool = False


class BalanceValue(BaseModel):
    """Balance of a taught class."""

    value: float = Field(ge=-50, le=50, allow_inf_nan=False)


@router.get("/state", tags=["state"])
def state(here: Here) -> dict[str, Any]:
    """What changed lately: revision of the labels, version of the model, the job under way."""
    return here.state()


@router.get("/images", tags=["images"])
def images(here: Here) -> dict[str, Any]:
    """The images of the folder, with what is painted in each."""
    return {"revision": here.project.revision, "images": here.images()}


@router.post("/images", status_code=201, tags=["images"])
async def add_image(here: Here, request: Request, name: Annotated[str, Query(max_length=200)]) -> dict[str, Any]:
    """Put an image into the folder; its file is the body of the request."""
    content = await read_body(request)
    entry = await run_in_threadpool(here.project.add_image, name, content)
    return {"id": entry.id, "width": entry.width, "height": entry.height}


@router.get("/images/{image_id}/file", tags=["images"])
def image_file(here: Here, image_id: str) -> Response:
    """The image as JPEG, turned as it should be seen."""
    return _jpeg(Image.fromarray(read_image(here.project.image(image_id).path)), 92)


@router.get("/images/{image_id}/thumbnail", tags=["images"])
def thumbnail(
    here: Here,
    image_id: str,
    size: Annotated[int, Query(ge=16, le=1024)] = THUMBNAIL,
    overlay: Annotated[bool, Query(description="With the taught classes in colour, as the model finds them.")] = False,
) -> Response:
    """The image in small."""
    picture = Image.fromarray(read_image(here.project.image(image_id).path))
    picture.thumbnail((size, size))
    if overlay:
        mask = Image.fromarray(here.mask(image_id)).resize(picture.size, Image.Resampling.NEAREST)
        picture = Image.fromarray(in_colour(np.asarray(picture), *here.taught_only(np.asarray(mask))))
    return _jpeg(picture, 85)


@router.get("/images/{image_id}/label", tags=["labels"])
def label(here: Here, image_id: str, format: Literal["png", "raw"] = "png") -> Response:
    """What is painted in an image: an index PNG, or one byte per pixel."""
    mask, version = here.project.label(image_id), here.project.version(image_id)
    if format == "raw":
        return _raw(mask, {"X-Version": str(version)})
    return _index_png(mask, here.project.palette(), {"X-Version": str(version)})


@router.put("/images/{image_id}/label", tags=["labels"])
async def put_label(here: Here, request: Request, image_id: str) -> dict[str, Any]:
    """Replace what is painted in an image; the body is an index PNG as large as the image."""
    content = await read_body(request)

    def store() -> int:
        here.project.image(image_id)
        return here.project.set_label(image_id, decode(content, "the label", read_mask))

    return {"version": await run_in_threadpool(store)}


@router.post("/images/{image_id}/strokes", tags=["labels"])
async def stroke(
    here: Here,
    request: Request,
    image_id: str,
    left: Annotated[int, Query(ge=0)],
    top: Annotated[int, Query(ge=0)],
    width: Annotated[int, Query(ge=1)],
    height: Annotated[int, Query(ge=1)],
) -> dict[str, Any]:
    """Paint a rectangle of mask values, one byte per pixel; 254 leaves a pixel as it is."""
    content = await read_body(request)
    if len(content) != width * height:
        raise GfssError(f"the stroke is {width} x {height} but {len(content)} bytes came; send one per pixel")
    patch = np.frombuffer(content, dtype=np.uint8).reshape(height, width)
    return {"version": await run_in_threadpool(here.project.paint, image_id, left, top, patch)}


@router.post("/images/{image_id}/without", tags=["labels"])
def without(here: Here, image_id: str, marking: Marking) -> dict[str, Any]:
    """Say that an image does not show a class."""
    here.project.set_without(image_id, marking.name, marking.without)
    return {"without": marking.without}


@router.post("/images/{image_id}/region", tags=["labels"])
def region(here: Here, image_id: str, pointing: Pointing) -> Response:
    """What a click or a box means: one byte per pixel of the rectangle that the headers X-Left ... name."""
    point = None if pointing.x is None or pointing.y is None else (pointing.x, pointing.y)
    mask = here.region(image_id, point, pointing.box, pointing.name, pointing.away)
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        return _raw(np.zeros((0, 0), dtype=np.uint8), {"X-Left": "0", "X-Top": "0"})
    part = mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    return _raw(part.astype(np.uint8), {"X-Left": str(columns[0]), "X-Top": str(rows[0])})


@router.get("/images/{image_id}/segment", tags=["segment"])
def segment_image(here: Here, image_id: str, format: Format = "png", balance: Balance = None) -> Response:
    """What the model says of an image of the folder: an index PNG, JSON, one byte per pixel, or the image in colour."""
    version = here.model.version
    mask = here.mask(image_id, balance)
    image = read_image(here.project.image(image_id).path) if format == "overlay" else None
    return _segmented(here, mask, image, format, {"X-Model-Version": str(version)})


@router.post("/segment", tags=["segment"])
async def segment(
    here: Here, request: Request, format: Format = "png", balance: Balance = None, tile: Tile = False
) -> Response:
    """Segment an image that is not in the folder; its file is the body of the request."""
    content = await read_body(request)

    def work() -> Response:
        image = decode(content, "the image", read_image)
        mask = here.model.segment(image, balance=balance, tile=tile).mask
        return _segmented(here, mask, image, format, {})

    return await run_in_threadpool(work)


@router.get("/classes", tags=["classes"])
def classes(here: Here) -> dict[str, Any]:
    """All classes: mask value, colour, what each was taught from."""
    return {"classes": here.classes()}


@router.post("/classes", status_code=201, tags=["classes"])
def add_class(here: Here, new: ClassName) -> dict[str, Any]:
    """Add a class to paint."""
    here.add_class(new.name)
    return {"name": new.name, "label": here.project.value(new.name)}


@router.post("/classes/{name}/rename", tags=["classes"])
def rename(here: Here, name: str, new: ClassName) -> dict[str, Any]:
    """Give a class another name, in the labels and in the model."""
    here.rename(name, new.name)
    return {"name": new.name}


@router.post("/classes/{name}/forget", tags=["classes"])
def forget(here: Here, name: str) -> dict[str, Any]:
    """Take a class out of the model; what was painted stays."""
    here.forget(name)
    return {"classes": list(here.model.classes[1:])}


@router.delete("/classes/{name}", tags=["classes"])
def remove(here: Here, name: str) -> dict[str, Any]:
    """Take a class out of the model and its labels out of the project."""
    here.remove(name)
    return {"classes": list(here.model.classes[1:])}


@router.put("/classes/{name}/balance", tags=["classes"])
def set_balance(here: Here, name: str, balance: BalanceValue) -> dict[str, Any]:
    """Find more of a taught class (above 0) or less of it (below 0)."""
    here.set_balance(name, balance.value)
    return {"name": name, "balance": balance.value}


@router.post("/teach", status_code=202, tags=["teach"])
def teach(here: Here, teaching: Teaching | None = None) -> dict[str, Any]:
    """Teach classes from what is painted; the answer is a job."""
    return here.teach(teaching.classes if teaching else None).as_json()


@router.get("/report", tags=["teach"])
def report(here: Here) -> dict[str, Any]:
    """What the last lesson changed for every known class, in figures and words."""
    return here.report()


@router.post("/undo", tags=["teach"])
def undo(here: Here) -> dict[str, Any]:
    """Take back the last change of the model; what was painted stays."""
    here.undo()
    return {"undoable": here.model.undoable}


@router.post("/reload", tags=["teach"])
def reload(here: Here) -> dict[str, Any]:
    """Take the model as another program left it on disk."""
    here.reload()
    return {"version": here.model.version}


@router.post("/suggest", status_code=202, tags=["teach"])
def suggest(here: Here) -> dict[str, Any]:
    """Rank images without labels by how much a label would help; the answer is a job."""
    return here.suggest().as_json()


@router.post("/exports/{kind}", status_code=202, tags=["export"])
def export(here: Here, kind: str) -> dict[str, Any]:
    """Write masks, coco, labels, labels-coco, model or onnx; the answer is a job whose result names the file."""
    return here.export(kind).as_json()


@router.get("/exports/{file}", tags=["export"])
def exported(here: Here, file: str) -> FileResponse:
    """A file that was exported."""
    path = here.exported(file)
    return FileResponse(path, filename=path.name)


@router.get("/jobs", tags=["jobs"])
def jobs(here: Here) -> dict[str, Any]:
    """Jobs that wait, run or ended lately."""
    return {"jobs": [job.as_json() for job in here.jobs.all()]}


@router.get("/jobs/{number}", tags=["jobs"])
def job(here: Here, number: int) -> dict[str, Any]:
    """One job: state, progress, result or error."""
    return here.jobs.get(number).as_json()


def create_app(studio: Studio, access: Access, label_studio: Source | None = None) -> App:
    """The whole server as an ASGI application.

    Args:
        studio: what it serves.
        access: who is let in.
        label_studio: where images of Label Studio's tasks may be fetched from.
    """
    app = FastAPI(
        title="gfss",
        version=gfss.__version__,
        summary="Teach a segmentation model a new class from a few labelled images.",
        docs_url=None,  # these pages come from the internet; ours is /docs
        redoc_url=None,
    )
    app.state.studio = studio
    app.state.label_studio = label_studio
    app.include_router(router)
    app.include_router(label_studio_router)
    app.add_exception_handler(GfssError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _unknown_address)
    app.add_exception_handler(Exception, _unexpected)

    @app.get("/", include_in_schema=False)
    def page() -> FileResponse:
        return FileResponse(STATIC / "index.html")

    @app.get("/docs", include_in_schema=False)
    def docs() -> FileResponse:
        return FileResponse(STATIC / "docs.html")

    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    return Guard(app, access)  # type: ignore[arg-type]  # starlette types ASGI more loosely


def _segmented(
    here: Studio, mask: np.ndarray, image: np.ndarray | None, format: str, headers: dict[str, str]
) -> Response:
    names = here.model.classes
    if format == "raw":
        return _raw(mask, headers)
    if format == "json":
        counts = np.bincount(mask.ravel(), minlength=len(names)) / mask.size
        found = {name: round(float(share), 6) for name, share in zip(names, counts, strict=False) if share}
        content = {"height": mask.shape[0], "width": mask.shape[1], "classes": list(names), "found": found}
        return JSONResponse(content, headers=headers)
    colours = class_colours(len(names) - 1)
    if format == "overlay":
        assert image is not None
        return _jpeg(Image.fromarray(in_colour(image, mask, colours)), 90)
    return _index_png(mask, colours.ravel().tolist(), headers)


def _raw(mask: np.ndarray, headers: dict[str, str]) -> Response:
    """One byte per pixel, compressed on the way."""
    content = gzip.compress(np.ascontiguousarray(mask).tobytes(), compresslevel=1, mtime=0)
    size = {"X-Width": str(mask.shape[1]), "X-Height": str(mask.shape[0])}
    plain = {"Content-Encoding": "gzip", "Cache-Control": "no-store"}
    return Response(content, media_type="application/octet-stream", headers={**size, **plain, **headers})


def _index_png(mask: np.ndarray, palette: list[int], headers: dict[str, str]) -> Response:
    picture = Image.fromarray(mask)
    picture.putpalette(palette)
    content = io.BytesIO()
    picture.save(content, format="PNG")
    return Response(content.getvalue(), media_type="image/png", headers={"Cache-Control": "no-store", **headers})


def _jpeg(picture: Image.Image, quality: int) -> Response:
    content = io.BytesIO()
    picture.save(content, format="JPEG", quality=quality)
    return Response(content.getvalue(), media_type="image/jpeg", headers={"Cache-Control": "private, max-age=3600"})


def _refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, GfssError)
    return JSONResponse({"error": " ".join(str(error).split())}, status_of(error))


def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"][1:]) or "the body"
    return JSONResponse({"error": f"{place}: {first['msg'].lower()}; /docs says what is expected"}, 422)


def _unknown_address(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    words = {404: "there is nothing at this address", 405: "this address does not take this method"}
    return JSONResponse({"error": f"{words.get(error.status_code, error.detail)}; see /docs"}, error.status_code)


def _unexpected(request: Request, error: Exception) -> JSONResponse:
    sentence = f"unexpected {type(error).__name__} ({error}); this is a bug in gfss, please report it"
    return JSONResponse({"error": sentence}, 500)
