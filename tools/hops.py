"""Which files of src/gfss a command enters between its function and the written result.

    python tools/hops.py             # evaluate, teach and segment on the embedded scenes
    python tools/hops.py teach       # one of them

A file counts if one of its functions is called, in any thread; importing a module does not count. The numbers are
bounded by :data:`MOST`; the exit code is 1 where one is exceeded.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import numpy as np
from PIL import Image

import gfss
from gfss.cli import main

PACKAGE = Path(gfss.__file__).parent
MOST = {"evaluate": 30, "teach": 20, "segment": 15}
RECIPE = ["quickstart", "--set", "methods=pcn-support", "--set", "shots=1", "--set", "protocols.paired=2"]
SMALL = ["--set", "size=49", "--set", "base.epochs=1", "--set", "training.iterations=2", "--set", "training.episodes=2"]


def files_entered(command: Callable[[], int], start: str) -> list[str]:
    """Files of the package that are entered after a function is called, in the order of their first call."""
    found: dict[str, None] = {}
    begun = False

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal begun
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(str(PACKAGE)) or code.co_name == "<module>":
            return
        begun = begun or code.co_name == start
        if begun:
            found[str(Path(code.co_filename).relative_to(PACKAGE))] = None

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        assert command() == 0
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return list(found)


def prepared(folder: Path) -> dict[str, list[str]]:
    """A command line for each verb, with all that it needs in a folder."""
    rng = np.random.default_rng(0)
    for place in ("images", "masks"):
        (folder / place).mkdir()
    Image.fromarray(rng.integers(0, 255, (80, 100, 3), dtype=np.uint8)).save(folder / "images" / "a.png")
    mask = np.zeros((80, 100), dtype=np.uint8)
    mask[20:60, 30:70] = 255
    Image.fromarray(mask).save(folder / "masks" / "a.png")
    recipe = [*RECIPE, *SMALL, "--runs", str(folder / "runs")]
    assert main(["run", *recipe, "--only", "methods"]) == 0
    return {
        "evaluate": ["evaluate", *recipe, "-o", str(folder / "records")],
        "teach": ["teach", "scenes-tiny", "--name", "box", "--images", str(folder / "images"),
                  "--masks", str(folder / "masks"), "-o", str(folder / "model")],
        "segment": ["segment", "scenes-tiny", str(folder / "images" / "a.png"), "-o", str(folder / "out")],
    }  # fmt: skip


def count() -> int:
    """Print the files of every command that was asked for."""
    wanted = sys.argv[1:] or list(MOST)
    too_many = 0
    with tempfile.TemporaryDirectory() as name:
        for verb, words in prepared(Path(name)).items():
            if verb in wanted:
                files = files_entered(lambda words=words: main(words), verb)
                too_many += len(files) > MOST[verb]
                print(f"{verb}: {len(files)} files (at most {MOST[verb]})")
                print("".join(f"  {file}\n" for file in files))
    return 1 if too_many else 0


if __name__ == "__main__":
    sys.exit(count())
