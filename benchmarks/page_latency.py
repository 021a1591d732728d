"""How long a user of the page waits: first overlay, overlays after teaching, everything else while it teaches.

    python benchmarks/page_latency.py --json latency.json

The server of ``gfss serve`` runs on generated scenes, enlarged to photographs of 1000 pixels, and a scripted user talks
to it over HTTP as the page does: it adds a class, draws a box around an object in three images, saves the proposals,
teaches, and looks at another image. Then overlays are timed, and while a second lesson runs, what the page asks for
meanwhile. Seconds of processor time come along: they stay useful where other work runs on the machine.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import torch
import uvicorn
from PIL import Image

from gfss.common.files import write_json
from gfss.data.datasets.scenes import labelled_scene
from gfss.server.api import create_app
from gfss.server.security import Access
from gfss.server.serve import open_studio

NAME, SHOTS, IMAGES, SIDE = "ring", 3, 12, 1000
STROKE = bytes(20 * 20)  # of the eraser, where nothing is painted


def write_images(folder: Path) -> list[np.ndarray]:
    """Scenes as photographs of 1000 pixels; masks of the class in them."""
    folder.mkdir(parents=True)
    masks: list[np.ndarray] = []
    for number in range(IMAGES):
        image, mask = labelled_scene(NAME, (7, number))
        large = Image.fromarray(image).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        large.save(folder / f"{number:02}.jpg", quality=92)
        masks.append(np.asarray(Image.fromarray(mask).resize((SIDE, SIDE), Image.Resampling.NEAREST)))
    return masks


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds of the clock and of the processor."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


class User:
    """What the page sends when a user clicks."""

    def __init__(self, address: str) -> None:
        self._client = httpx.Client(base_url=address, timeout=120)

    def get(self, path: str, **params: object) -> httpx.Response:
        """A request that must succeed."""
        return self._client.get(path, params=params).raise_for_status()  # type: ignore[arg-type]

    def post(self, path: str, **content: object) -> httpx.Response:
        """The same with a body."""
        return self._client.post(path, **content).raise_for_status()  # type: ignore[arg-type]

    def box(self, image: str, mask: np.ndarray) -> None:
        """Draw a box around what a mask shows and save what is proposed."""
        rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
        box = [int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1]
        answer = self.post(f"/api/images/{image}/region", json={"box": box, "name": NAME})
        header = answer.headers
        part = np.frombuffer(answer.content, np.uint8).reshape(int(header["X-Height"]), int(header["X-Width"]))
        where = {"left": header["X-Left"], "top": header["X-Top"], "width": part.shape[1], "height": part.shape[0]}
        patch = np.where(part > 0, 1, 254).astype(np.uint8)
        self.post(f"/api/images/{image}/strokes", params=where, content=patch.tobytes())

    def teach(self, meanwhile: Callable[[], None] = lambda: time.sleep(0.1)) -> None:
        """Teach and wait, doing something in between."""
        number = self.post("/api/teach", json={}).json()["id"]
        while (job := self.get(f"/api/jobs/{number}").json())["state"] not in ("done", "failed"):
            meanwhile()
        assert job["state"] == "done", job["error"]


def story(user: User, masks: list[np.ndarray]) -> dict[str, float]:
    """From the open page to the first overlay."""
    figures: dict[str, float] = {}
    user.get("/api/images")
    user.post("/api/classes", json={"name": NAME})
    boxes = [timed(lambda n=n: user.box(f"{n:02}", masks[n])) for n in range(SHOTS)]
    figures["box_s"], figures["box_cpu_s"] = (statistics.median(part) for part in zip(*boxes, strict=True))
    figures["teach_s"], figures["teach_cpu_s"] = timed(user.teach)
    figures["first_overlay_s"], figures["first_overlay_cpu_s"] = timed(
        lambda: user.get(f"/api/images/{SHOTS:02}/segment", format="raw")
    )
    return figures


def overlays(user: User) -> dict[str, float]:
    """Overlays of images that were not looked at yet."""
    rounds = [
        timed(lambda n=n: user.get(f"/api/images/{n:02}/segment", format="raw")) for n in range(SHOTS + 1, IMAGES)
    ]
    wall, cpu = (statistics.median(part) for part in zip(*rounds, strict=True))
    return {"overlay_s": wall, "overlay_cpu_s": cpu}


def while_teaching(user: User, masks: list[np.ndarray]) -> dict[str, float]:
    """The longest and the median wait for what the page asks for during a lesson."""
    waits: dict[str, list[float]] = {}
    turn = iter(range(10_000))

    def ask() -> None:
        number = next(turn)
        image = f"{SHOTS + number % (IMAGES - SHOTS):02}"
        where = {"left": number % 900, "top": 0, "width": 20, "height": 20}
        for name, work in {
            "state": lambda: user.get("/api/state"),
            "thumbnail": lambda: user.get(f"/api/images/{image}/thumbnail", overlay=True),
            "segment": lambda: user.get(f"/api/images/{image}/segment", format="raw", balance=0.001 * number),
            "stroke": lambda: user.post(f"/api/images/{image}/strokes", params=where, content=STROKE),
        }.items():
            waits.setdefault(name, []).append(timed(work)[0])

    user.box(f"{SHOTS:02}", masks[SHOTS])
    user.teach(ask)
    figures = {f"{name}_while_teaching_s": statistics.median(values) for name, values in waits.items()}
    return {**figures, **{f"{name}_longest_s": max(values) for name, values in waits.items()}}


def main() -> None:
    """Measure, print, write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="voc20-lite0")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "photos"
        masks = write_images(folder)
        begin, begin_cpu = time.perf_counter(), time.process_time()
        studio = open_studio(options.model, folder)
        listener = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(create_app(studio, Access()), log_level="warning"))
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        user = User(f"http://127.0.0.1:{listener.getsockname()[1]}")
        figures = {"start_s": time.perf_counter() - begin, **story(user, masks)}
        figures["start_to_first_overlay_s"] = time.perf_counter() - begin
        figures["start_to_first_overlay_cpu_s"] = time.process_time() - begin_cpu
        figures |= {**overlays(user), **while_teaching(user, masks), "load": os.getloadavg()[0]}
        server.should_exit = True
        thread.join(timeout=20)
        studio.close()
    for name, value in figures.items():
        print(f"{name:>32} {value:8.3f}")
    if options.json:
        write_json(options.json, {"torch": torch.__version__, "threads": options.threads, **figures})


if __name__ == "__main__":
    main()
