"""Which files of src/gfss a command enters between its function and the written result.

    python tools/hops.py             # evaluate, teach and segment on a small data set
    python tools/hops.py teach       # one of them

A file counts if one of its functions is called, in any thread; importing a module does not count. The numbers are
bounded by :data:`MOST`; the exit code is 1 where one is exceeded.
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import numpy as np
import yaml
from PIL import Image

import gfss
from gfss.cli import main

PACKAGE = Path(gfss.__file__).parent
MOST = {"evaluate": 30, "teach": 20, "segment": 15}
CLASSES = 8
SETTINGS = {
    "encoder": "tiny",
    "size": 33,
    "base": {"pyramid": 4, "width": 8, "epochs": 1},
    "training": {"iterations": 1, "batch": 2, "episodes": 2, "several": 0, "held_out": 0},
    "methods": ["pcn-support"],
    "protocols": {"paired": 2},
}


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


def write_data(folder: Path) -> None:
    """A small data set: one coloured square per image."""
    rng = np.random.default_rng(0)
    for place in ("images", "masks"):
        (folder / place).mkdir(parents=True)
    (folder / "classes.txt").write_text("".join(f"class{number}\n" for number in range(1, CLASSES + 1)))
    for split in ("train", "val"):
        names = [f"{split}{number}" for number in range(3 * CLASSES)]
        (folder / f"{split}.txt").write_text("\n".join(names))
        for number, name in enumerate(names):
            image = rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)
            mask = np.zeros((32, 32), dtype=np.uint8)
            mask[6:26, 6:26] = number % CLASSES + 1
            image[6:26, 6:26] = 30 * (number % CLASSES)
            Image.fromarray(image).save(folder / "images" / f"{name}.png")
            Image.fromarray(mask).save(folder / "masks" / f"{name}.png")


def prepared(folder: Path) -> dict[str, list[str]]:
    """A command line for each verb, with all that it needs in a folder."""
    write_data(folder / "data")
    image, mask = folder / "data" / "images" / "train0.png", folder / "data" / "masks" / "train0.png"
    Image.fromarray(255 * (np.asarray(Image.open(mask)) > 0).astype(np.uint8)).save(folder / "mask.png")
    (folder / "recipe.yaml").write_text(yaml.safe_dump({"data": str(folder / "data"), **SETTINGS}))
    recipe = [str(folder / "recipe.yaml"), "--runs", str(folder / "runs")]
    assert main(["run", *recipe, "--only", "methods"]) == 0
    return {
        "evaluate": ["evaluate", *recipe, "-o", str(folder / "records")],
        "teach": ["teach", "scenes-tiny", "--name", "box", "--images", str(image), "--masks", str(folder / "mask.png"),
                  "-o", str(folder / "model")],
        "segment": ["segment", "scenes-tiny", str(image), "-o", str(folder / "out")],
    }  # fmt: skip


def import_everything() -> None:
    """So that nothing is imported while a command is traced: class bodies would count as calls."""
    for module in pkgutil.walk_packages([str(PACKAGE)], "gfss."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError):  # of an extra that is not installed
                importlib.import_module(module.name)


def count() -> int:
    """Print the files of every command that was asked for."""
    import_everything()
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
