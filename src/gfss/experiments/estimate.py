"""Rough cost of the steps of a recipe: arithmetic of every stage, divided by what this machine multiplies per second.

Meant for "minutes or days", "fits in memory or not": expect a factor of two either way.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from gfss.data.catalog import CLASSES_PER_FOLD
from gfss.data.datasets import coco, pascal, scenes
from gfss.experiments.recipes import Recipe
from gfss.features.cache import CACHE_SHARE, free_memory
from gfss.methods import inner_method
from gfss.methods.diam_low_rank import LowRankForm
from gfss.models.encoders import build_encoder
from gfss.models.encoders.base import Encoder
from gfss.training.episodic import SEVERAL_WAYS

# giga multiply-adds of one 417 px image at the stated output stride; dilation makes the last stages dearer
ENCODER_WORK = {"tiny": (1.2, 4), "lite": (2.2, 16), "resnet18": (15, 8), "resnet50": (72, 8), "resnet101": (123, 8)}
OTHER_WORK = (60, 14)  # a ViT-S of the Hugging Face hub
# giga multiply-adds of one training episode of a compared system on 27 x 27 maps, as measured
EPISODE_WORK = {"acastle": 0.5, "capl": 0.9, "denet": 1.6, "pfenet": 1.7}
REACHED = 0.4  # share of the speed of large matrix products that convolutions reach
PIXEL_SECONDS = 0.0025  # labels, upsampling and counting of one 417 px image
SCORE_MAPS, NOVEL_MAPS = 5, 7  # maps that a kept episode holds for every class, and for its novel class besides
PROGRAM_GB = 0.7  # Python, torch and buffers
KEPT_PER_WORK = 0.0125  # gigabytes of activations per giga multiply-add that training keeps
GIGA = 1e9


class Cost(NamedTuple):
    """Time in seconds, peak memory and new disk space in gigabytes."""

    seconds: float
    memory: float
    disk: float

    def and_then(self, other: Cost) -> Cost:
        """Both, one after the other."""
        return Cost(self.seconds + other.seconds, max(self.memory, other.memory), self.disk + other.disk)


@cache
def speed() -> float:
    """Giga multiply-adds per second of this machine in a large matrix product."""
    matrix = np.ones((512, 512), dtype=np.float32)
    best = float("inf")
    for _ in range(20):  # the best of many: other programs may be at work
        start = time.perf_counter()
        np.dot(matrix, matrix)
        best = min(best, time.perf_counter() - start)
    return 512**3 / best / GIGA


def image_counts(recipe: Recipe) -> tuple[int, int]:
    """Images of train and val, as the public lists have them; own data is counted as if it were the scenes."""
    counts = {"pascal": pascal.COUNTS, "coco": coco.COUNTS}.get(recipe.data)
    return (counts["train"], counts["val"]) if counts else (scenes.TRAIN_IMAGES, scenes.VAL_IMAGES)


@dataclass
class Estimate:
    """Costs of the steps of a recipe, all of one fold."""

    recipe: Recipe

    def __post_init__(self) -> None:
        recipe = self.recipe
        self.train, self.val = image_counts(recipe)
        encoder = _architecture(recipe.encoder, recipe.output_stride)
        self.channels = encoder.channels
        self.positions = encoder.map_size(recipe.size) ** 2
        self.scale = (recipe.size / 417) ** 2
        work, stride = next((v for k, v in ENCODER_WORK.items() if recipe.encoder.startswith(k)), OTHER_WORK)
        self.encoder_work = work * self.scale * (stride / encoder.stride)
        self.base_classes = CLASSES_PER_FOLD.get(recipe.data, (9, 3))[0]
        self.speed = speed() * REACHED

    def _maps_gb(self, names: tuple[str, ...]) -> float:
        """Gigabytes of the named maps of one image in fp16."""
        return sum(self._width(name) for name in names) * self.positions * 2 / GIGA

    def _width(self, name: str) -> int:
        base = self.recipe.base
        return {"pooled": 4 * base.pyramid, "bottleneck": base.width}.get(name) or self.channels[name]

    @property
    def _head_work(self) -> float:
        """Giga multiply-adds of the pyramid head on one image."""
        base = self.recipe.base
        joined = sum(self._width(name) for name in (*base.levels, "pooled"))
        return self.positions * base.width * (joined if base.separable else 9 * joined) / GIGA

    def _fit_work(self, shots: int) -> float:
        """Giga multiply-adds of fitting one novel classifier, by the cheaper of its two exact forms."""
        novel = self.recipe.novel
        channels, rows = sum(self._width(name) for name in novel.features), shots * self.positions
        plain = novel.steps * 2 * rows * 9 * channels * novel.hidden
        dual = rows**2 * (channels + novel.steps * novel.hidden) + 2 * rows * 9 * channels * novel.hidden
        return min(plain, dual) / GIGA

    @property
    def _query_work(self) -> float:
        """Giga multiply-adds of a query under the novel classifier, once for all methods that read it."""
        novel = self.recipe.novel
        return self.positions * 9 * sum(self._width(name) for name in novel.features) * novel.hidden / GIGA

    def bank(self, images: int) -> Cost:
        """Features of some images, computed once."""
        size = images * (self._maps_gb(self.recipe.levels) + self.recipe.size**2 / GIGA)
        return Cost(images * self.encoder_work / self.speed, PROGRAM_GB + 0.3, size)

    def base(self, first: bool = True) -> Cost:
        """Stage 1 with the banks that it needs; a frozen encoder's are made for the first fold and serve all."""
        options = self.recipe.base
        both = self.bank(self.train + self.val if first or options.changes_encoder else 0)
        passes = options.epochs * self.train
        pixels = PIXEL_SECONDS * self.scale * 16 / options.label_stride**2
        work = self._head_work + (self.encoder_work if options.train_encoder else 0)
        seconds = passes * (3 * work / self.speed + pixels)
        memory = PROGRAM_GB + options.batch * work * KEPT_PER_WORK + options.batch * 8 * self._maps_gb(options.levels)
        return Cost(seconds + both.seconds, memory, both.disk)

    def measuring(self) -> Cost:
        """The base model alone on every val image."""
        return Cost(self.val * (self._head_work / self.speed + PIXEL_SECONDS * self.scale), PROGRAM_GB + 0.3, 0)

    def held_out(self, groups: int) -> Cost:
        """The base models without a part of classes and images that calibrators are trained on."""
        one = self.base(first=False)
        share = 2 / 3 * (1 - 1 / groups)  # of the epochs and of the images
        return Cost(groups * share * one.seconds, one.memory, one.disk)

    def method(self, name: str, shots: int) -> Cost:
        """Stage 2 of one method, on base models that are there."""
        options = self.recipe.training(name, shots)
        calibrated, episodes, disk = self.recipe.calibrator(name) is not None, options.iterations * options.batch, 0.0
        queries = 2 * episodes
        if calibrated and options.episodes is not None:
            episodes = -(-options.episodes // 3) if options.mixed and shots > 1 else options.episodes
            maps = (self.base_classes + 1) * SCORE_MAPS + NOVEL_MAPS
            disk = (episodes + options.several) * 2 * options.pairs * maps * self.positions * 2 / GIGA
            queried = 2 * options.pairs * (self._query_work + self._head_work)
            work = self._fit_work(shots) + queried
            work += options.several / episodes * (self._fit_work(SEVERAL_WAYS) + queried)
        elif calibrated:
            work = self._fit_work(shots) + 2 * (self._query_work + self._head_work)
        else:
            work = EPISODE_WORK.get(name, 1) * self.positions / 27**2
        pixels = PIXEL_SECONDS * self.scale * 16 / options.label_stride**2
        seconds = episodes * (work + shots * self._head_work) / self.speed
        seconds += queries * (self._head_work / self.speed + pixels)
        maps = self._maps_gb(self.recipe.base.levels)
        return Cost(seconds, PROGRAM_GB + options.batch * (2 + shots) * 12 * maps + disk, disk)

    def _adaptation_work(self, method: str, supports: int, novel: int) -> float:
        """Giga multiply-adds with which a DIaM adapts to one query; nothing for other methods."""
        options = self.recipe.diam(inner_method(method))
        if options is None:
            return 0
        rows, columns = self.base_classes + 1 + novel, self.recipe.base.width + 1
        along = (
            min(LowRankForm().query_rank, columns) + min(LowRankForm().support_rank, columns) * supports / 2
        )  # most are read every second time
        steps = 4 * options.iterations * rows * along  # two products, and powers and sums as long again
        return (steps + columns**2) * self.positions / GIGA

    def evaluation(self, methods: Sequence[str], shots: int, protocol: str, tasks: int) -> Cost:
        """Some methods over the tasks of a protocol; a novel classifier is fitted and asked once for all of them."""
        paired = protocol == "paired"
        novel = 1 if paired else CLASSES_PER_FOLD.get(self.recipe.data, (9, 3))[1]
        queries = tasks * (2 * self.base_classes if paired else self.val)
        seconds = (tasks * self._fit_work(shots * novel) + queries * (self._query_work + self._head_work)) / self.speed
        seconds += queries * sum(self._adaptation_work(name, shots * novel, novel) for name in methods) / self.speed
        seconds += len(methods) * queries * PIXEL_SECONDS * self.scale
        derived = self.recipe.novel.hidden * self.positions * 2 / GIGA
        kept = self.val * (self._maps_gb((*self.recipe.levels, "bottleneck")) + derived)
        if free := free_memory():
            kept = min(kept, CACHE_SHARE * free / GIGA)
        return Cost(seconds, PROGRAM_GB + kept + 64 * self.scale * 0.01, 0.0)


@cache
def _architecture(name: str, output_stride: int | None) -> Encoder:
    return build_encoder(name, None, output_stride, pretrained=False)
