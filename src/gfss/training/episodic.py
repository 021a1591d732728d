"""Stage 2: train a calibrator, or any method, on episodes with fake novel classes.

A calibrator is trained on cached episodes (:mod:`gfss.training.episode_cache`), or the paper's way, on
fresh episodes in every iteration (``episodes=None``), like any other method. The losses are in
:mod:`gfss.methods.losses`.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import Tensor

from gfss.common.devices import Workers
from gfss.common.errors import GfssError
from gfss.methods.base import Method
from gfss.methods.pcn import Calibrated
from gfss.training.episode_cache import CachedEpisodes, Source, cached_loss, drawn_pairs
from gfss.training.episodic_options import EpisodicOptions
from gfss.training.loop import Iteration, TrainingRun, mixed_seed, train

SEVERAL_WAYS = 5  # classes of an episode with several


def train_calibrator(
    method: Calibrated,
    source: Source,
    options: EpisodicOptions,
    *,
    key: str,
    folder: Path | None = None,
    resume: bool = False,
    workers: Workers | None = None,
) -> list[float]:
    """Train the calibrator of a method; the method is ready afterwards.

    Args:
        key: hash of what the score maps depend on; see :class:`CachedEpisodes`.

    Returns:
        The loss of every iteration.
    """
    workers = workers or Workers()
    if options.episodes is None:
        losses = train_method(method, source, options, key=key, folder=folder, resume=resume, workers=workers)
    else:
        turns = [CachedEpisodes(method, source, part, key) for part in _turns(options, source.most_ways)]
        for episodes in turns:
            episodes.fill(workers)
        workers.wait()

        def of_step(number: int) -> CachedEpisodes:
            return turns[number % len(turns)]

        losses = train(
            method.calibrator,
            lambda step: cached_loss(method.calibrator, of_step(step.number), step),
            options.schedule(),
            TrainingRun(options.seed, folder, resume, workers),
            name="calibrator",
            settings=[asdict(options), asdict(method.calibrator.options), [episodes.folder.name for episodes in turns]],
            describe=lambda number: (
                "episodes " + ", ".join(str(i) for i, _ in drawn_pairs(of_step(number).count, options, number))
            ),
        )
    method.calibrator.requires_grad_(False)
    method.trained = True
    return losses


def _turns(options: EpisodicOptions, most_ways: int) -> list[EpisodicOptions]:
    """Kinds of cached episodes that iterations take in turn."""
    assert options.episodes is not None
    ways = min(SEVERAL_WAYS, most_ways)
    turns = [options]
    if options.mixed and options.shots > 1:
        turns = [replace(options, episodes=-(-options.episodes // 3)), replace(options, shots=1)]
    if options.several and ways > 1:
        turns = [turns[0], turns[-1], replace(options, shots=1, ways=ways, episodes=options.several)]
    return turns


def train_method(
    method: Method,
    source: Source,
    options: EpisodicOptions,
    *,
    key: str = "",
    folder: Path | None = None,
    resume: bool = False,
    workers: Workers | None = None,
) -> list[float]:
    """Train a method's module on fresh episodes; the method is ready afterwards.

    Args:
        key: hash of what the episodes depend on; an unfinished training on others is not continued.
    """
    if method.module is None:
        raise GfssError(f"method '{method.name}' has nothing to train")

    ways = min(method.fake_classes, source.most_ways) if method.fake_classes > 1 else 1

    def loss(step: Iteration) -> tuple[Tensor, Tensor]:
        numbers = range(step.number * options.batch, (step.number + 1) * options.batch)
        total, count = torch.zeros(()), torch.zeros(())
        for i in step.share(numbers):
            torch.manual_seed(mixed_seed(options.seed, i))  # dropout of this episode, whichever process computes it
            part, pixels = method.loss(
                source.for_episode(i).episode(options.seed, i, options.shots, ways=ways, stride=options.label_stride)
            )
            total, count = total + part, count + pixels
        return total, count

    losses = train(
        method.module,
        loss,
        options.schedule(),
        TrainingRun(options.seed, folder, resume, workers or Workers()),
        name=method.name,
        settings=[asdict(options), key, asdict(method.calibrator.options) if isinstance(method, Calibrated) else {}],
        describe=lambda number: f"episodes {number * options.batch} and following",
    )
    method.module.requires_grad_(False)
    with torch.no_grad():  # what it knows of the last episode still has gradients
        method.learn(source.for_episode(0).episode(options.seed, 0, options.shots).support)
    method.trained = True
    return losses
