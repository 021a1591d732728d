"""Trains a method on small episodes for a few iterations; started with torchrun by the tests.

torchrun --nproc-per-node 2 train_small.py METHOD FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

import torch
from tests.methods.cases import make_context, make_episode

from gfss.common.devices import start_workers
from gfss.features.episodes import Episode, EpisodeSampler
from gfss.methods import build_method
from gfss.training.checkpoints import save_method
from gfss.training.episodic import train_method
from gfss.training.episodic_options import EpisodicOptions


class SmallSource:
    """Episodes of the tests in place of those of a data set."""

    def for_episode(self, i: int) -> SmallSource:
        return self

    def episode(self, seed: int, i: int, shots: int = 1, **_: Any) -> Episode:
        return make_episode(shots, seed=seed + i)


def train_small(name: str, folder: Path) -> None:
    """Train a method by name and save it."""
    context = make_context()
    torch.manual_seed(0)
    method = build_method(name, context)
    options = EpisodicOptions(iterations=3, batch=4, episodes=None)
    workers = start_workers()
    train_method(method, cast(EpisodeSampler, SmallSource()), options, workers=workers)
    if workers.rank == 0:
        save_method(folder, method, context.model.card, {})


if __name__ == "__main__":
    train_small(sys.argv[1], Path(sys.argv[2]))
