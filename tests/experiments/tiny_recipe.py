"""A recipe on the very small data set of the training tests: everything trained and evaluated in seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.training.tiny import write_images

from gfss.evaluation.metrics import summarise
from gfss.evaluation.records import Record
from gfss.experiments.recipes import make_recipe
from gfss.experiments.spec import Recipe

SMALL = {"calibrator": {"dimension": 8}}


def tiny_content(data: Path, **changes: Any) -> dict[str, Any]:
    """The recipe's content; the data set is written if it is not there."""
    write_images(data, "train", 40)
    write_images(data, "val", 24, seed=1)
    content: dict[str, Any] = {
        "data": str(data),
        "encoder": "tiny",
        "size": 33,
        "levels": ["layer3", "layer4"],
        "base": {"levels": ["layer3", "layer4"], "pyramid": 4, "width": 8, "epochs": 1},
        "novel": {"hidden": 4, "steps": 3},
        "training": {"iterations": 2, "batch": 2, "episodes": 3, "pairs": 1},
        "methods": {"nsf": None, "pcn-support": SMALL},
        "protocols": {"paired": 2},
    }
    return content | changes


def tiny_recipe(data: Path, **changes: Any) -> Recipe:
    """The recipe itself."""
    return make_recipe(tiny_content(data, **changes))


def fake_record(method: str = "pcn", base: float = 60.0, novel: float = 40.0, **changes: Any) -> Record:
    """A record with two base classes and a novel one."""
    figures = summarise({"bus": base - 5, "car": base + 5}, {"cat": novel}, background=90.0)
    content: dict[str, Any] = {
        "data": "pascal",
        "fold": 0,
        "shots": 1,
        "encoder": "lite0",
        "method": method,
        "protocol": "paired",
        "tasks": 1000,
        "seed": 0,
        "base_classes": ["bus", "car"],
        "novel_classes": ["cat"],
        "supports": [],
        "figures": {"per-image": figures, "accumulated": figures},
        "run": {"seconds": {"learn": 1.0, "segment": 2.0, "count": 3.0}, "peak_memory_mb": 900.0},
    }
    return Record(**(content | changes))
