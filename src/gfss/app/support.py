"""What a model remembers of the images it was taught from, and how a novel classifier is fitted on them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from gfss.app.inputs import Labelled
from gfss.app.network import CHUNK, Knowledge, Network
from gfss.common.errors import GfssError
from gfss.data.catalog import BACKGROUND, VOID
from gfss.data.transforms import square_image, square_label
from gfss.features.support import Support
from gfss.methods.score_fusion import NovelFitter
from gfss.models.calibrators.support_similarity import build_support_memory
from gfss.models.novel.classifier import NovelClassifier
from gfss.models.pspnet import Features, concatenate

MOST_CLASSES = VOID - 1  # what an 8-bit mask can name beside background and void


@dataclass(frozen=True)
class Example:
    """One support image.

    Attributes:
        id: name of the image.
        sha256: of its pixels.
        lesson: number of the teaching it came with, from 1.
        levels: encoder levels, name -> (1, channels, h, w) fp16.
        labels: (size, size) uint8: 1 the class, 0 the rest, 255 void.
        image: the square image (size, size, 3) where it is at hand.
        kept: the image belongs to the saved model.
    """

    id: str
    sha256: str
    lesson: int
    levels: dict[str, Tensor]
    labels: np.ndarray
    image: np.ndarray | None = None
    kept: bool = False


@dataclass(frozen=True)
class TaughtClass:
    """A class that was added to a model."""

    name: str
    examples: tuple[Example, ...]


def make_example(network: Network, labelled: Labelled, lesson: int) -> Example:
    """Features and labels of a labelled image; refuses one from which nothing can be learned."""
    if not (labelled.mask == 1).any():
        raise GfssError(f"the mask of {labelled.id} has no pixel of the class; label the object in it")
    labels = square_label(labelled.mask, network.size)
    stride = network.options.label_stride
    if not (labels[::stride, ::stride] == 1).any():
        raise GfssError(
            f"the object in {labelled.id} is too small to be seen at {network.size} pixels; crop the image around it"
        )
    if not (labels[::stride, ::stride] == BACKGROUND).any():
        raise GfssError(f"the mask of {labelled.id} shows only the class and nothing else; leave some background in it")
    square = square_image(labelled.image, network.size)
    digest = hashlib.sha256(repr(labelled.image.shape).encode() + np.ascontiguousarray(labelled.image).tobytes())
    return Example(labelled.id, digest.hexdigest(), lesson, network.levels(square), labels, square)


def learn_classes(
    network: Network, taught: Sequence[TaughtClass], seed: int, classifier: NovelClassifier | None = None
) -> Knowledge | None:
    """What there is to know of all taught classes together, learned as the evaluation harness does.

    Args:
        classifier: fitted on them before, if it is at hand.
    """
    if not taught:
        return None
    calibrator = network.calibrator
    names = calibrator.options.compared if calibrator is not None and calibrator.reads_similarity else ()
    if classifier is not None and not names:
        return Knowledge(classifier, None)
    support = build_support(network, taught)
    support.check()
    memory = build_support_memory(support.features, support.labels, support.novel_labels, names) if names else None
    return Knowledge(classifier or NovelFitter(network.options, seed, form="fast").fit(support), memory)


def build_support(network: Network, taught: Sequence[TaughtClass]) -> Support:
    """The support set of all taught classes."""
    base = len(network.card.classes)
    if base + len(taught) > MOST_CLASSES:
        raise GfssError(f"a model holds at most {MOST_CLASSES} classes; forget one before teaching another")
    owned = [(owner, example) for owner, one in enumerate(taught) for example in one.examples]
    return Support(
        features=support_features(network, [example for _, example in owned]),
        labels=torch.from_numpy(np.stack([_all_labels(example, taught, base) for _, example in owned])),
        novel=len(taught),
        base_rows=network.base_rows,
        owners=tuple(owner for owner, _ in owned),
        base_labels=tuple(range(base + 1)),
    )


def support_features(network: Network, examples: Sequence[Example]) -> Features:
    """Features of support images, from their kept encoder levels."""
    parts: list[Features] = []
    for start in range(0, len(examples), CHUNK):
        chunk = examples[start : start + CHUNK]
        levels = {name: torch.cat([example.levels[name] for example in chunk]) for name in chunk[0].levels}
        parts.append(network.features(levels))
    return concatenate(parts)


def before_lesson(taught: Sequence[TaughtClass], lesson: int) -> list[TaughtClass]:
    """The taught classes as they were before a lesson."""
    kept = [replace(one, examples=tuple(e for e in one.examples if e.lesson < lesson)) for one in taught]
    return [one for one in kept if one.examples]


def _all_labels(example: Example, taught: Sequence[TaughtClass], base: int) -> np.ndarray:
    """Labels of a support image under all taught classes: an image that supports two of them shows both."""
    labels = np.where(example.labels == VOID, VOID, BACKGROUND).astype(np.uint8)
    for label, one in enumerate(taught, start=base + 1):
        for other in one.examples:
            if other.sha256 == example.sha256 and other is not example:
                labels[other.labels == 1] = label
    own = next(label for label, one in enumerate(taught, start=base + 1) if any(e is example for e in one.examples))
    labels[example.labels == 1] = own
    return labels
