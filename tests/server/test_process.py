"""``gfss serve`` as a process of its own: killed, started again, under load.

``GFSS_LOAD_SECONDS=60`` makes the load last as long as docs/serve.md says.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
from PIL import Image
from tests.server import make

from gfss.cli import main
from gfss.data.images import read_mask

CLIENTS = 50
WARM_UP = 3  # requests of each before memory is looked at
SECONDS = float(os.environ.get("GFSS_LOAD_SECONDS", "4"))


@contextlib.contextmanager
def process(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``gfss serve`` on a free port; gives the process and its address."""
    words = [sys.executable, "-m", "gfss", "serve", make.MODEL, "--folder", str(folder), "--port", "0", *options]
    started = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert started.stdout is not None
    address, said = None, []
    try:
        for line in started.stdout:
            said.append(line)
            if found := re.search(r"open (http://\S+)", line):
                address = found[1]
                break
        assert address, said
        yield started, address
    finally:
        started.kill()
        started.wait()
        started.stdout.close()


def test_a_killed_server_loses_nothing_that_was_saved(folder: Path, stars: dict[str, np.ndarray]) -> None:
    name, mask = next(iter(stars.items()))
    with process(folder) as (server, address):
        client = httpx.Client(base_url=address, timeout=60)
        client.post("/api/classes", json={"name": make.NEW})
        for top in range(0, mask.shape[0], 8):
            patch = mask[top : top + 8].astype(np.uint8)
            where = {"left": 0, "top": top, "width": mask.shape[1], "height": len(patch)}
            assert client.post(f"/api/images/{name}/strokes", params=where, content=patch.tobytes()).is_success
        job = client.post("/api/teach").json()
        while client.get(f"/api/jobs/{job['id']}").json()["state"] != "done":
            time.sleep(0.1)
        server.send_signal(signal.SIGKILL)
        server.wait()
    assert (read_mask(make.labels_of(folder) / "masks" / f"{name}.png") == mask).all()
    with process(folder) as (_, address):
        client = httpx.Client(base_url=address, timeout=60)
        listed = {one["name"]: one for one in client.get("/api/classes").json()["classes"]}
        assert listed[make.NEW]["taught_from"] == 1
        assert client.get("/api/state").json()["model"]["undoable"] == 1


def test_a_token_is_made_up_for_other_addresses_and_printed(folder: Path) -> None:
    with process(folder, "--host", "0.0.0.0") as (_, address):
        plain, _, token = address.replace("0.0.0.0", "127.0.0.1").partition("/?token=")
        assert len(token) >= 32
        assert httpx.get(f"{plain}/api/state").status_code == 401
        assert httpx.get(f"{plain}/api/state", headers={"Authorization": f"Bearer {token}"}).status_code == 200


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--folder", "nowhere"], "does not exist"),
        (["--host", "256.1.1.1"], "cannot listen"),
        (["--label-studio", "localhost"], "expected http://"),
        (["nomodel"], "unknown model"),
    ],
)
def test_what_cannot_be_served_is_said_in_one_sentence(
    folder: Path, options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--folder", str(folder), *options] if options[0] != "--folder" else options
    assert main(["serve", "--port", "0", *given]) == 2
    assert words in capsys.readouterr().err


def test_many_clients_at_once(folder: Path, stars: dict[str, np.ndarray]) -> None:
    """No error, no lost request, memory flat."""
    name = next(iter(stars))
    contents = []
    for seed in range(8):
        picture = Image.fromarray(np.random.default_rng(seed).integers(0, 256, (90 + seed, 120, 3), dtype=np.uint8))
        buffer = io.BytesIO()
        picture.save(buffer, format="PNG")
        contents.append(buffer.getvalue())
    answers: list[int] = []
    failures: list[str] = []
    warm = threading.Barrier(CLIENTS + 1)
    with process(folder) as (server, address):
        usage = psutil.Process(server.pid)

        def work(number: int) -> None:
            with httpx.Client(base_url=address, timeout=120) as client:
                for turn in range(number, number + WARM_UP):
                    ask(client, turn)
                warm.wait(timeout=300)  # until here every thread of the server has had work
                end, turn = time.monotonic() + SECONDS, number
                while turn == number or time.monotonic() < end:  # each at least once
                    turn += 1
                    ask(client, turn)

        def ask(client: httpx.Client, turn: int) -> None:
            try:
                if turn % 3:
                    answer = client.post("/api/segment", content=contents[turn % len(contents)])
                else:
                    answer = client.get(f"/api/images/{name}/segment", params={"format": "json"})
                answers.append(answer.status_code)
            except httpx.HTTPError as error:
                failures.append(repr(error))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        warm.wait(timeout=300)
        early = usage.memory_info().rss
        for thread in threads:
            thread.join()
        late = usage.memory_info().rss
    megabytes = f"{early / 2**20:.0f} MB after warming up, {late / 2**20:.0f} MB at the end"
    print(f"{len(answers)} requests, load of {SECONDS:g} s, {megabytes}")
    assert failures == []
    assert set(answers) == {200}
    assert len(answers) >= CLIENTS * (WARM_UP + 1)
    assert late < early * 1.1 + 20 * 2**20
