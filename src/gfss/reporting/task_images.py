"""Images of a task: support, query, truth, score maps and what every method makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from colorsys import hsv_to_rgb
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gfss.data.catalog import VOID
from gfss.data.episodes import Task
from gfss.data.images import fitted_size, overlay, square_image
from gfss.features.episodes import EpisodeSampler
from gfss.methods.base import Method
from gfss.models.ops.upsample import class_map, upsample

NOVEL_COLOUR = (255, 106, 0)
HUES = 0.17, 0.93  # of base classes: from yellow over green and blue to pink, far from the novel colour
GOLDEN = 0.618034
VISIBLE = 3e-3  # share of an image from which a class is in the legend
HEAT_STEPS = 256  # of the bar of colours


@dataclass(frozen=True)
class TaskView:
    """One query of a task as images, (height, width, 3) uint8.

    Attributes:
        support: support image with the novel object marked.
        query: the query image.
        truth: its labels.
        base_heat: score of one base class as a heat map over the image.
        base_name: that class: the base class with most pixels in the query or, where none is there, the highest scores.
        shown: base classes that the truth or a prediction shows, by label; single pixels do not count.
        novel_heat: novel score as a heat map over the image.
        predictions: method name -> its class map over the image.
    """

    support: np.ndarray
    query: np.ndarray
    truth: np.ndarray
    base_heat: np.ndarray
    base_name: str
    shown: tuple[int, ...]
    novel_heat: np.ndarray
    predictions: dict[str, np.ndarray]


@torch.no_grad()
def view_task(source: EpisodeSampler, drawn: Task, query: int, methods: Sequence[Method], heat: Method) -> TaskView:
    """Look at one query of a task.

    Args:
        query: place of the query among the task's queries.
        methods: whose predictions are shown; they learn the task here.
        heat: method whose scores give the heat maps (NSF).
    """
    support = source.support(drawn, source.fold)
    image = drawn.queries[query]
    features = source.store.features([image])
    table = source.fold.label_table(drawn.novel)
    size = source.store.size
    pixels = square_image(source.dataset.image(image), size)
    height, width = _fitted(source.dataset.image(image), size)
    heat.learn(support)
    scores = upsample(heat.scores(features), (size, size))[0]
    base = len(source.fold.base)
    predictions: dict[str, np.ndarray] = {}
    for method in methods:
        method.learn(support)
        predictions[method.name] = class_map(method.scores(features), (size, size))[0].numpy()

    def crop(image: np.ndarray) -> np.ndarray:
        return image[:height, :width]

    first = drawn.supports[0][0]
    support_pixels = square_image(source.dataset.image(first), size)
    support_label = support.labels[0].numpy()
    support_size = _fitted(source.dataset.image(first), size)
    truth = source.store.labels([image], table)[0].numpy()
    chosen = _main_base_class(truth, scores[1 : base + 1])
    found = np.stack(
        [np.bincount(one[:height, :width].ravel(), minlength=256) for one in (truth, *predictions.values())]
    )
    labels = np.flatnonzero(found.max(axis=0) >= VISIBLE * height * width)
    example = marked(support_pixels, np.where(support_label > base, support_label, 0), base)
    return TaskView(
        support=example[: support_size[0], : support_size[1]],
        query=crop(pixels),
        truth=crop(marked(pixels, truth, base)),
        base_heat=crop(heat_map(pixels, scores[chosen])),
        base_name=source.dataset.classes[source.fold.base[chosen - 1] - 1],
        shown=tuple(int(label) for label in labels if 0 < label <= base),
        novel_heat=crop(heat_map(pixels, scores[base + 1 :].amax(dim=0))),
        predictions={name: crop(marked(pixels, labels, base)) for name, labels in predictions.items()},
    )


def _main_base_class(truth: np.ndarray, scores: Tensor) -> int:
    """Label of the base class with most true pixels or, where none is there, with the highest mean score."""
    pixels = np.bincount(truth[truth != VOID].ravel(), minlength=len(scores) + 1)[1 : len(scores) + 1]
    return 1 + int(pixels.argmax() if pixels.any() else scores.mean(dim=(1, 2)).argmax())


def _fitted(image: np.ndarray, size: int) -> tuple[int, int]:
    return fitted_size(image.shape[0], image.shape[1], size)


def marked(image: np.ndarray, labels: np.ndarray, base: int) -> np.ndarray:
    """Labels as colours over a grey image: novel classes (labels above ``base``) bright orange, base classes pale."""
    colours = label_colours(base)
    grey = np.broadcast_to(image.mean(axis=2, keepdims=True), image.shape) * 0.7
    pale = overlay(grey, labels, colours, strength=0.45)
    novel = ((labels > base) & (labels != VOID))[..., None]
    return np.where(novel, overlay(grey, labels, colours, strength=0.8), pale)


def label_colours(base: int) -> np.ndarray:
    """Colour of every label, (256, 3) uint8."""
    colours = np.zeros((256, 3), dtype=np.uint8)
    for number in range(base):
        hue = HUES[0] + (HUES[1] - HUES[0]) * (number * GOLDEN % 1)
        saturation, value = (0.9, 0.55)[number // 2 % 2], (1.0, 0.65)[number % 2]
        colours[number + 1] = [round(255 * part) for part in hsv_to_rgb(hue, saturation, value)]
    colours[base + 1 : VOID] = NOVEL_COLOUR
    colours[VOID] = 128
    return colours


def heat_colours(values: np.ndarray) -> np.ndarray:
    """Scores in [0, 1] as colours from blue over green to red, (..., 3) in [0, 1]."""
    return np.stack([values, 1 - np.abs(2 * values - 1), 1 - values], axis=-1)


def heat_map(image: np.ndarray, scores: Tensor) -> np.ndarray:
    """Scores in [0, 1] as colours from blue over green to red, over a grey image."""
    ramp = 255 * heat_colours(scores.clamp(0, 1).numpy())
    grey = image.mean(axis=2, keepdims=True).repeat(3, axis=2)
    return (0.35 * grey + 0.65 * ramp).clip(0, 255).astype(np.uint8)
