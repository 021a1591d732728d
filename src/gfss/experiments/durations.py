"""Roughly how long the steps of a recipe take, minutes or days, and how much disk its feature banks do.

Seconds were measured on two cores of a server CPU with 417 px images and EfficientNet-Lite0; other sizes and encoders
are scaled. Expect a factor of two or three either way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gfss.data.catalog import CLASSES_PER_FOLD
from gfss.data.datasets import coco, pascal, scenes
from gfss.experiments.spec import Recipe
from gfss.models.encoders import HUGGING_FACE, build_encoder

if TYPE_CHECKING:
    from gfss.experiments.steps import Step

# one image through the encoder, at 417 px
ENCODER = {"tiny": 0.02, "lite4": 0.1, "lite": 0.05, "resnet18": 0.3, "resnet50": 1.5, "resnet101": 2.6, "hf:": 1.2}
HEAD, DECODER = 0.012, 0.03  # one image in one epoch of stage 1 on a frozen encoder, and what a decoder adds
CACHED_EPISODE, FRESH_EPISODE, ITERATION = 0.7, 0.1, 0.3  # stage 2
TASK, QUERY = 0.15, {"calibrator": 0.025, "diam": 0.045, "other": 0.004}  # evaluation, per support and per query


@dataclass(frozen=True)
class Durations:
    """Seconds of the steps of a recipe."""

    recipe: Recipe

    @property
    def _scale(self) -> float:
        return (self.recipe.size / 417) ** 2

    @property
    def _encoder(self) -> float:
        known = (seconds for name, seconds in ENCODER.items() if self.recipe.encoder.startswith(name))
        return next(known, ENCODER["resnet50"]) * self._scale

    @property
    def _images(self) -> tuple[int, int]:
        """Images of train and val, as the public lists have them; custom data is counted as the scenes."""
        counts = {"pascal": pascal.COUNTS, "coco": coco.COUNTS}.get(self.recipe.data)
        return (counts["train"], counts["val"]) if counts else (scenes.TRAIN_IMAGES, scenes.VAL_IMAGES)

    def bank_bytes(self) -> int | None:
        """Disk that the feature banks of one encoder take, train and val together; None for encoders of a hub."""
        recipe = self.recipe
        if recipe.encoder.startswith(HUGGING_FACE):
            return None
        encoder = build_encoder(recipe.encoder, output_stride=recipe.stride, pretrained=False)
        coarsest = (recipe.size - 1) // encoder.stride + 1
        finest = (recipe.size - 1) // min(8, encoder.stride) + 1
        sides = {level: finest if recipe.base.own_sizes and level == "layer2" else coarsest for level in recipe.levels}
        halves = sum(encoder.channels[level] * side**2 for level, side in sides.items())
        return sum(self._images) * (2 * halves + recipe.size**2)

    def of(self, step: Step) -> float:
        """Seconds of one step."""
        if step.kind == "base":
            return self._base() * (0.5 if step.part else 1)
        return self._training(step) if step.kind == "method" else self._evaluation(step)

    def _base(self) -> float:
        """Stage 1 with the feature bank that it reads, or that is made of its encoder."""
        train, val = self._images
        options = self.recipe.base
        each = (HEAD + (DECODER if options.decoder else 0)) * self._scale
        each += (3 * options.train_encoder + 2 * bool(options.frozen_until)) * self._encoder
        return options.epochs * train * each + (train + val) * self._encoder

    def _training(self, step: Step) -> float:
        options = self.recipe.training_of(step.method, step.shots)
        if self.recipe.is_calibrated(step.method) and options.episodes is not None:
            seconds = (options.episodes + options.several) * CACHED_EPISODE * (1 + 0.3 * (step.shots - 1))
            return self._scale * (seconds + options.iterations * ITERATION)
        return self._scale * options.iterations * options.batch * FRESH_EPISODE

    def _evaluation(self, step: Step) -> float:
        assert step.evaluation is not None
        base, novel = CLASSES_PER_FOLD.get(self.recipe.data, (9, 3))
        tasks, val = step.evaluation.tasks, self._images[1]
        queries = tasks * (2 * base if step.evaluation.protocol == "paired" else val)
        supports = max(1, step.evaluation.shots) * (1 if step.evaluation.protocol == "paired" else novel)
        kinds = ("diam" if self.recipe.diam(n) else "calibrator" * self.recipe.is_calibrated(n) for n in step.left)
        return self._scale * (tasks * supports * TASK + sum(queries * QUERY[kind or "other"] for kind in kinds))
