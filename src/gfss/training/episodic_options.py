"""How stage 2 trains on episodes: options, and the paper's values."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from gfss.common.options import options
from gfss.training.loop import Schedule

# what only calibrators read, and only with cached episodes
CALIBRATOR_ONLY = ("episodes", "pairs", "novel_weight", "overlap", "mixed", "ways", "several", "held_out")

MOST_PARTS = 60  # base classes of COCO, the data set with most of them; a part has at least one


@options
class EpisodicOptions:
    """How to train on episodes; :data:`PAPER` is the paper's way.

    Attributes:
        shots: supports per fake novel class.
        iterations: optimiser steps.
        batch: episodes per iteration.
        episodes: how many different episodes are cached; None draws fresh ones in every iteration.
        pairs: query pairs (fake novel image, base image) of a cached episode; one of them is used at a time.
        rate: highest learning rate.
        optimiser: ``sgd`` or ``adamw``.
        weight_decay: weight decay.
        label_stride: the loss is taken at every so many pixels.
        novel_weight: pixels of the fake novel class count so many times in a calibrator's loss on cached episodes.
        overlap: weight of the missed overlap (see :func:`gfss.methods.losses.missed_overlap`) in that loss.
        seed: of episodes and batches.
        mixed: a calibrator for several shots sees episodes of one shot as often as those of several; cached episodes of
            one shot are as many as ``episodes``, those of several shots, which cost more, a third of that.
        ways: fake novel classes of a cached episode; several at once are shown any images as queries, as in the joint
            protocol, and not pairs.
        several: so many further episodes of one shot and five ways (or as many as there can be) are cached, and used in
            every third iteration.
        held_out: train on episodes of so many base models, each without a part of the base classes
            (see :class:`gfss.features.episodes.HeldOutSamplers`); 0 uses the base model itself, as the paper does.
    """

    shots: PositiveInt = 1
    iterations: PositiveInt = 1200
    batch: PositiveInt = 8
    episodes: PositiveInt | None = 600
    pairs: PositiveInt = 4
    rate: PositiveFloat = 2e-3
    optimiser: Literal["sgd", "adamw"] = "adamw"
    weight_decay: float = 1e-4
    label_stride: PositiveInt = 8
    novel_weight: NonNegativeFloat = 2.0
    overlap: NonNegativeFloat = 0.5
    seed: NonNegativeInt = 0
    mixed: bool = True
    ways: PositiveInt = 1
    several: NonNegativeInt = 90
    held_out: Annotated[int, Field(ge=0, le=MOST_PARTS)] = 3

    def schedule(self) -> Schedule:
        """The optimiser's part."""
        return Schedule(self.iterations, self.rate, self.optimiser, self.weight_decay)


PAPER = EpisodicOptions(
    iterations=10_000,
    episodes=None,
    rate=1e-2,
    optimiser="sgd",
    label_stride=1,
    novel_weight=1,
    overlap=0,
    mixed=False,
    several=0,
    held_out=0,
)
