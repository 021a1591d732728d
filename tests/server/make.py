"""Folders of generated scenes, and a server on them."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from PIL import Image

from gfss.data.datasets.base import read_class_names
from gfss.data.datasets.scenes import SCENE_CLASSES, make_scenes
from gfss.data.images import read_mask
from gfss.server.api import create_app
from gfss.server.security import Access
from gfss.server.serve import open_studio
from gfss.server.studio import Studio

MODEL = "scenes-tiny"  # knows nine of the twelve classes; not star, ring and fish
NEW = "star"


def scene_folder(folder: Path, count: int = 12, side: int | None = None) -> dict[str, np.ndarray]:
    """Copy scenes into a folder, those with a star first; returns masks of the star by image id.

    Args:
        side: enlarge the images to so many pixels.
    """
    root = make_scenes(train=120, val=60, workers=1)
    value = read_class_names(root).index(NEW) + 1
    assert SCENE_CLASSES[value - 1] == NEW
    masks = {path.stem: read_mask(path) == value for path in sorted((root / "masks").glob("train_*.png"))}
    largest = sorted((name for name, mask in masks.items() if mask.any()), key=lambda name: -masks[name].sum())
    others = [name for name, mask in masks.items() if not mask.any()]
    chosen = largest[: 2 * count // 3] + others[: count - 2 * count // 3]
    folder.mkdir(parents=True, exist_ok=True)
    for name in chosen:
        image = Image.open(root / "images" / f"{name}.png").convert("RGB")
        if side is not None:
            image = image.resize((side, side), Image.Resampling.BICUBIC)
            mask = Image.fromarray(masks[name]).resize((side, side), Image.Resampling.NEAREST)
            masks[name] = np.asarray(mask)
        image.save(folder / f"{name}.png")
    return {name: masks[name] for name in sorted(chosen)}


def labels_of(folder: Path) -> Path:
    """Where the labels of a folder of images are."""
    return folder.with_name(f"{folder.name}-gfss")


@contextlib.contextmanager
def studio(folder: Path, model: str | None = MODEL, **options: Path) -> Iterator[Studio]:
    """A studio on a folder, closed in the end."""
    made = open_studio(model, folder, **options)
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def served(folder: Path, access: Access | None = None, model: str | None = MODEL) -> Iterator[tuple[str, Studio]]:
    """A server on a free port of loopback; gives its address and its studio."""
    with studio(folder, model) as made:
        listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        config = uvicorn.Config(create_app(made, access or Access()), log_level="warning")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", made
        finally:
            server.should_exit = True
            thread.join(timeout=20)


def centre(mask: np.ndarray) -> tuple[int, int]:
    """Column and row of a pixel well inside a mask."""
    inside = mask.copy()
    while True:
        smaller = inside[1:-1, 1:-1] & inside[:-2, 1:-1] & inside[2:, 1:-1] & inside[1:-1, :-2] & inside[1:-1, 2:]
        smaller = np.pad(smaller, 1)
        if not smaller.any():
            rows, columns = np.nonzero(inside)
            return int(columns[len(columns) // 2]), int(rows[len(rows) // 2])
        inside = smaller


def iou(a: np.ndarray, b: np.ndarray) -> float:
    """Overlap of two masks in [0, 1]."""
    return float((a & b).sum() / max(1, (a | b).sum()))


def hold(studio: Studio) -> threading.Event:
    """Make the next lesson wait until the event is set."""
    going, teach = threading.Event(), studio.model.teach

    def wait(*arguments: Any) -> Any:
        going.wait(60)
        return teach(*arguments)

    studio.model.teach = wait  # type: ignore[method-assign]
    return going
