"""Presets: options of every stage under a name that recipes use, and how a table of changes is read over one."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from gfss.common.errors import unknown
from gfss.methods.diam_options import CHOSEN, PROGRAM, PUBLISHED
from gfss.models.novel import classifier as novel
from gfss.training import base, episodic_options
from gfss.training.base import BaseOptions
from gfss.training.episodic_options import EpisodicOptions

# embedded scenes: a tiny encoder trained from scratch together with the head
SCRATCH = BaseOptions(
    levels=("layer2", "layer3", "layer4"),
    pyramid=24,
    width=96,
    epochs=11,
    batch=8,
    rate=6e-3,
    warmup=200,
    shuffle_colours=True,
    label_stride=2,
    train_encoder=True,
)
BASE_PRESETS = {"frozen": BaseOptions(), "tuned": base.TUNED, "paper": base.PAPER, "scratch": SCRATCH}
NOVEL_PRESETS = {"frozen": novel.FROZEN, "paper": novel.PAPER}
TRAINING_PRESETS = {"frozen": EpisodicOptions(), "paper": episodic_options.PAPER}
DIAM_PRESETS = {"chosen": CHOSEN, "published": PUBLISHED, "program": PROGRAM}


def from_preset(given: Any, presets: Mapping[str, Any], usual: str = "frozen") -> Any:
    """Values of options: those of a preset, changed by what a table says."""
    if isinstance(given, str):
        given = {"preset": given}
    if not isinstance(given, Mapping):
        return given
    name = given.get("preset", usual)
    if not isinstance(name, str):
        raise ValueError(f"a preset is named by a word, not by {reprlib.repr(name)[:60]}; known: {', '.join(presets)}")
    if name not in presets:
        raise ValueError(str(unknown("preset", name, presets)))
    return {**asdict(presets[name]), **{key: value for key, value in given.items() if key != "preset"}}


def training_from(given: Any) -> Any:
    """Values of stage 2; shots and seed belong to the recipe as a whole."""
    for key in ("shots", "seed"):
        if isinstance(given, Mapping) and key in given:
            raise ValueError(f"its '{key}' would contradict the recipe's own; leave it out")
    return from_preset(given, TRAINING_PRESETS)
