"""Which unlabelled images to label next: those the model is unsure of, and that show something new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from gfss.app.network import Network, Taught
from gfss.common.errors import GfssError
from gfss.common.progress import note, track
from gfss.data.images import fitted_size, mirrored_image, read_image
from gfss.models.base_model import Features

HARDEST = 0.1  # share of an image's positions that its doubt is taken over


@dataclass(frozen=True)
class Suggestion:
    """An image that would be worth a label.

    Attributes:
        path: the image.
        value: doubt times novelty; larger is better.
        doubt: mean entropy of the tenth of the image that the model is least sure of, in [0, 1].
        novelty: distance in [0, 1] from the support images and from the images suggested before it.
    """

    path: Path
    value: float
    doubt: float
    novelty: float


@torch.inference_mode()
def suggest(
    network: Network, taught: Taught | None, supports: Sequence[Features], images: Sequence[Path]
) -> list[Suggestion]:
    """Rank images, the most useful first.

    The first has the largest doubt times novelty; each next one is also compared with those already chosen, so that
    near-copies of one picture do not stand together at the top. Pictures that cannot be read are left out and named.
    """
    known = [descriptor(features.bottleneck[0]) for features in supports]
    looked: list[tuple[Path, float, Tensor]] = []
    for path in track(images, "looking", total=len(images)):
        try:
            looked.append((path, *_look(network, taught, path)))
        except GfssError as error:
            note(f"skipped: {error}")
    if not looked:
        raise GfssError(f"none of the {len(images)} images can be read; give other images")
    descriptors = torch.stack([descriptor for *_, descriptor in looked])
    doubt = torch.tensor([value for _, value, _ in looked])
    novelty = torch.ones(len(looked))
    for support in known:
        novelty = torch.minimum(novelty, distance(descriptors, support))
    ranked: list[Suggestion] = []
    left = set(range(len(looked)))
    while left:
        best = max(sorted(left), key=lambda i: float(doubt[i] * novelty[i]))
        value = float(doubt[best] * novelty[best])
        ranked.append(Suggestion(looked[best][0], value, float(doubt[best]), float(novelty[best])))
        left.remove(best)
        novelty = torch.minimum(novelty, distance(descriptors, descriptors[best]))
    return ranked


def descriptor(bottleneck: Tensor) -> Tensor:
    """An image in one vector of length one: mean of its bottleneck features (channels, h, w)."""
    return F.normalize(bottleneck.mean(dim=(1, 2)), dim=0)


def distance(descriptors: Tensor, other: Tensor) -> Tensor:
    """1 - cosine, in [0, 1] because bottleneck features are not negative."""
    return (1 - descriptors @ other).clamp(0, 1)


def doubt(scores: Tensor) -> float:
    """Mean entropy of the least sure positions of logits (classes, h, w), 1 for complete ignorance."""
    logs = scores.log_softmax(dim=0)
    entropy = -(logs.exp() * logs).sum(dim=0).flatten() / np.log(len(scores))
    return float(entropy.topk(max(1, int(HARDEST * len(entropy)))).values.mean())


def _look(network: Network, taught: Taught | None, path: Path) -> tuple[float, Tensor]:
    """Doubt and descriptor of a picture; its doubt without the frame around pictures that are not square."""
    image = read_image(path)
    levels = network.levels(mirrored_image(image, network.size))
    features, scores = network.features(levels), network.scores(levels, taught)[0]
    fitted = fitted_size(image.shape[0], image.shape[1], network.size)
    rows, columns = (-(-fit * length // network.size) for fit, length in zip(fitted, scores.shape[1:], strict=True))
    return doubt(scores[:, :rows, :columns]), descriptor(features.bottleneck[0])
