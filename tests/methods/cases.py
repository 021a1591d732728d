"""Small random episodes for the tests of methods; classes leave a trace in the features, so they can be learned.

Maps are as the base model makes them: levels ``layer3`` (8 channels) and ``layer4`` (12), pyramid branches of 4
channels, a bottleneck of 16 after a ReLU, base scores = bottleneck times the base rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from gfss.data.catalog import VOID
from gfss.features.episodes import Episode, Query, Support
from gfss.methods import Context
from gfss.methods.pcn import NovelFitter
from gfss.models.base_model import BINS, BaseCard, BaseModel, Features, PyramidHead
from gfss.models.encoders.base import TinyEncoder
from gfss.models.novel.classifier import NovelOptions

BASE = 5
SIZE = (9, 9)
LEVELS = {"layer3": 8, "layer4": 12}
PYRAMID = 4
WIDTH = 16
STRIDE = 4  # image pixels per position of the maps


def make_episode(
    shots: int = 1,
    novel: int = 1,
    *,
    queries: int = 2,
    base: int = BASE,
    size: tuple[int, int] = SIZE,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Episode:
    """A support set of ``shots`` images for each of ``novel`` classes, and query images that show novel classes too."""
    owners = [position for position in range(novel) for _ in range(shots)]
    shown = [*owners, *(i % novel for i in range(queries))]
    labels = make_labels([base + 1 + owner for owner in shown], base, size, seed)
    features = make_features(labels, base, size, seed, dtype)
    count = len(owners)
    rows = make_rows(base, seed).to(dtype)
    support = Support(features[:count], labels[:count], novel, rows, tuple(owners), tuple(range(base + 1)))
    return Episode(support, Query(features[count:], labels[count:]))


def make_labels(main: Sequence[int], base: int = BASE, size: tuple[int, int] = SIZE, seed: int = 0) -> Tensor:
    """Label maps (images, height, width): two base rectangles, one of class ``main[i]``, and a void foot."""
    generator = torch.Generator().manual_seed(seed)
    height, width = _image_size(size)
    labels = torch.zeros(len(main), height, width, dtype=torch.uint8)
    for image, label in enumerate(main):
        others = (torch.randperm(base, generator=generator)[:2] + 1).tolist()
        for value in (*others, label):
            top = int(torch.randint(height // 2, (), generator=generator))
            left = int(torch.randint(width // 2, (), generator=generator))
            labels[image, top : top + height // 2, left : left + width // 2] = value
    labels[:, -2:] = VOID
    return labels


def make_features(
    labels: Tensor,
    base: int = BASE,
    size: tuple[int, int] = SIZE,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    strength: float = 5.0,
) -> Features:
    """Features of images with these labels: noise plus ``strength`` times a direction of the class."""
    generator = torch.Generator().manual_seed(seed + 1)
    at_positions = map_labels(labels, size)

    def maps(channels: int, directions: Tensor) -> Tensor:
        noise = torch.randn(len(labels), channels, *size, generator=generator)
        return noise + strength * directions[at_positions].permute(0, 3, 1, 2)

    levels = {
        name: maps(channels, _directions(channels, place)) for place, (name, channels) in enumerate(LEVELS.items())
    }
    bottleneck = maps(WIDTH, _directions(WIDTH, len(LEVELS))).relu()
    pooled = tuple(
        F.adaptive_avg_pool2d(maps(PYRAMID, _directions(PYRAMID, len(LEVELS) + 1 + bins)), bins).relu() for bins in BINS
    )
    scores = F.conv2d(bottleneck, make_rows(base, seed)[..., None, None])
    return Features(levels, pooled, bottleneck, scores).map(lambda tensor: tensor.to(dtype))


def make_rows(base: int = BASE, seed: int = 0) -> Tensor:
    """Rows of the base classifier (base + 1, channels): the directions of its classes, a little disturbed."""
    generator = torch.Generator().manual_seed(seed + 2)
    noise = torch.randn(base + 1, WIDTH, generator=generator)
    return _directions(WIDTH, len(LEVELS))[: base + 1] + 0.2 * noise


def make_context(size: tuple[int, int] = SIZE, base: int = BASE, seed: int = 0) -> Context:
    """What methods are built from, with the channels of these episodes; the same weights for the same seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        head = PyramidHead(LEVELS, base + 1, pyramid=PYRAMID, width=WIDTH)
        encoder = TinyEncoder()
    head.classifier.weight.data = make_rows(base, seed)[..., None, None]
    names = tuple(f"class {i + 1}" for i in range(base))
    card = BaseCard("tiny", STRIDE, "0" * 16, False, _image_size(size)[0], names, ("new",), "cases", 0)
    fitter = NovelFitter(NovelOptions(hidden=8, steps=20))
    return Context(BaseModel(encoder, head, card).eval(), size, fitter)


def permute_base(episode: Episode, order: Sequence[int]) -> Episode:
    """The same episode with its base classes in another order: new base class i is old class ``order[i]`` (from 1)."""
    outputs = [0, *order]
    table = torch.arange(256, dtype=torch.uint8)
    for new, old in enumerate(order, start=1):
        table[old] = new

    def scores(features: Features) -> Features:
        return replace(features, base=features.base[:, outputs])

    support = replace(
        episode.support,
        features=scores(episode.support.features),
        labels=table[episode.support.labels.long()],
        base_rows=episode.support.base_rows[outputs],
        base_labels=tuple(episode.support.base_labels[i] for i in outputs),
    )
    return Episode(support, Query(scores(episode.query.features), table[episode.query.labels.long()]))


def map_labels(labels: Tensor, size: tuple[int, int]) -> Tensor:
    """Labels at the positions of the maps, (images, h, w)."""
    rows = torch.linspace(0, labels.shape[1] - 1, size[0]).round().long()
    columns = torch.linspace(0, labels.shape[2] - 1, size[1]).round().long()
    return labels[:, rows][:, :, columns].long()


def _image_size(size: tuple[int, int]) -> tuple[int, int]:
    return (size[0] - 1) * STRIDE + 1, (size[1] - 1) * STRIDE + 1


def _directions(channels: int, place: int) -> Tensor:
    """Direction of every label in a map, (256, channels); the same in all episodes, as if one encoder made them."""
    generator = torch.Generator().manual_seed(1000 + place)
    return F.normalize(torch.randn(256, channels, generator=generator), dim=1)
