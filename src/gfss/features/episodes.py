"""Episodes and tasks as tensors: a support set to learn from and queries to segment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from gfss.common.errors import GfssError
from gfss.data.datasets.base import Dataset
from gfss.data.episodes import Fold, Task, episode, joint_episode
from gfss.data.images import square_image, to_tensor
from gfss.features.bank import CACHE_SHARE, Bank, CachedFeatures, CachedImage, cached_images, free_memory
from gfss.models.base_model import BaseModel, Features, concatenate

BLOCK = 20  # consecutive episodes of one source
CHUNK = 16  # images that go through the pyramid head at once


@dataclass(frozen=True)
class Support:
    """What a method learns from.

    Labels are 0 background, 1..N base, N+1..N+n novel, 255 void. In a training episode the fake novel class has
    been taken out of the base classes (scores and rows), so the same code serves training and test.

    Attributes:
        features: of all support images.
        labels: (supports, height, width) uint8.
        novel: number n of novel classes.
        base_rows: rows of the base classifier, (base + 1, channels), background first.
        owners: novel class (0..n-1) that each support image was drawn for.
        base_labels: output of the full base classifier that each base row is, background (0) first; for methods
            that learn something for every base class.
        base_bias: biases of the base classifier, (base + 1,), where it has any.
        fake_rows: rows of the base classifier for fake novel classes, (novel, channels); None for true ones.
    """

    features: Features
    labels: Tensor
    novel: int
    base_rows: Tensor
    owners: tuple[int, ...]
    base_labels: tuple[int, ...]
    base_bias: Tensor | None = None
    fake_rows: Tensor | None = None

    @property
    def all_rows(self) -> Tensor:
        """Rows of the base classifier for all classes of a training episode, its fake novel ones last."""
        if self.fake_rows is None:
            raise GfssError("the base classifier has no rows of true novel classes; only training episodes have")
        return torch.cat([self.base_rows, self.fake_rows])

    @property
    def base(self) -> int:
        """Number of base classes."""
        return self.base_rows.shape[0] - 1

    @property
    def novel_labels(self) -> range:
        """Labels of the novel classes."""
        return range(self.base + 1, self.base + 1 + self.novel)

    def check(self) -> None:
        """Refuse a support set that cannot be learned from."""
        for position, owner in enumerate(self.owners):
            if not (self.labels[position] == self.base + 1 + owner).any():
                raise GfssError(
                    f"support image {position + 1} has no pixel of the class it should show; label the object in it"
                )
        if set(self.owners) != set(range(self.novel)):
            raise GfssError(f"{self.novel} novel classes are to be learned but some have no support image")


@dataclass(frozen=True)
class Query:
    """Images to segment, with the truth where it is known: labels as in :class:`Support`."""

    features: Features
    labels: Tensor


@dataclass(frozen=True)
class Episode:
    """A support set and queries, ready for a method."""

    support: Support
    query: Query


@dataclass
class FeatureStore:
    """Features of a split under a base model: encoder levels from the bank, the head's part cached in memory.

    Attributes:
        cache: cache the head's outputs of every image (fp16) once computed, as many as memory allows; for sets that are
            read many times.
    """

    model: BaseModel
    bank: Bank
    cache: bool = False
    _cached: dict[int, CachedImage] = field(default_factory=dict)
    _most: int | None = None  # images that fit

    @torch.no_grad()
    def features(self, images: Sequence[int]) -> Features:
        """Features of some images."""
        if not self.cache:
            parts = [images[i : i + CHUNK] for i in range(0, len(images), CHUNK)]
            return concatenate([self._head(part) for part in parts])
        return CachedFeatures([self._cached.get(i) or self._add(i) for i in images])

    def labels(self, images: Sequence[int], table: np.ndarray, stride: int = 1) -> Tensor:
        """Label maps as :meth:`gfss.features.bank.Bank.labels` gives them, where the features are."""
        return self.bank.labels(images, table, stride).to(self.device)

    @property
    def size(self) -> int:
        """Side of the square images and labels."""
        return self.bank.size

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.model.encoder.device

    def _add(self, i: int) -> CachedImage:
        """One image as it is cached; by itself, since sums round in another way in a batch of another size."""
        (image,) = cached_images(self._head([i]))
        if self._most is None:
            self._most = int(CACHE_SHARE * free_memory() / image.bytes)
        if len(self._cached) < self._most:
            self._cached[i] = image
        return image

    def _head(self, images: Sequence[int]) -> Features:
        return self.model.head(self.bank.features(images, self.device))

    def rows(self) -> Tensor:
        """Rows of the base classifier, (base + 1, channels)."""
        return self.model.head.classifier.weight.detach()[:, :, 0, 0]

    def biases(self) -> Tensor | None:
        """Biases of the base classifier, (base + 1,), where it has any."""
        bias = self.model.head.classifier.bias
        return None if bias is None else bias.detach()


@dataclass
class EpisodeSampler:
    """Training episodes with fake novel classes, and test tasks with true ones.

    Attributes:
        fakes: base classes that may play the novel class in episodes; all if left out.
        avoid: images that training episodes do not use.
    """

    store: FeatureStore
    dataset: Dataset
    fold: Fold
    fakes: tuple[int, ...] | None = None
    avoid: Sequence[int] | np.ndarray = ()

    def for_episode(self, i: int) -> EpisodeSampler:
        """Where training episode ``i`` comes from."""
        return self

    def episode(self, seed: int, i: int, shots: int = 1, ways: int = 1, queries: int = 1, stride: int = 4) -> Episode:
        """Training episode ``i``; its fake novel classes are taken out of the base classes."""
        drawn = self.draw(seed, i, shots, ways, queries)
        return self.materialise(drawn, self.episode_fold(drawn), stride)

    def draw(self, seed: int, i: int, shots: int = 1, ways: int = 1, queries: int = 1) -> Task:
        """Which images make up training episode ``i``."""
        return episode(self.dataset, self.fold.base, seed, i, shots, ways, queries, self.fakes, self.avoid)

    def draw_several(self, seed: int, i: int, shots: int, ways: int, queries: int) -> Task:
        """Which images make up training episode ``i`` with several classes at once."""
        try:
            return joint_episode(self.dataset, self.fold.base, seed, i, shots, ways, queries, self.fakes, self.avoid)
        except GfssError as error:
            raise GfssError(f"{error}; or train without episodes of several classes (several: 0)") from None

    @property
    def most_ways(self) -> int:
        """How many fake novel classes an episode can have."""
        return min(len(self.fakes or self.fold.base), len(self.fold.base) - 1)

    def episode_fold(self, drawn: Task) -> Fold:
        """The fold inside an episode: fake novel classes are no base classes."""
        return Fold(tuple(c for c in self.fold.base if c not in drawn.novel), self.fold.novel + drawn.novel)

    def materialise(self, drawn: Task, fold: Fold, stride: int = 1) -> Episode:
        """Features and labels of a drawn task; ``fold`` says what is base in it."""
        support = self.support(drawn, fold)
        query = Query(
            self.query_features(drawn.queries, fold),
            self.store.labels(drawn.queries, fold.label_table(drawn.novel), stride),
        )
        return Episode(support, query)

    def query_features(self, images: Sequence[int], fold: Fold) -> Features:
        """Features of images with the base scores of ``fold``'s base classes only."""
        return self._without(self.store.features(images), fold)

    def support(self, drawn: Task, fold: Fold) -> Support:
        """The support set of a drawn task, labels at full size."""
        images = [image for group in drawn.supports for image in group]
        return Support(
            features=self._without(self.store.features(images), fold),
            labels=self.store.labels(images, fold.label_table(drawn.novel)),
            novel=len(drawn.novel),
            base_rows=self._rows(fold),
            owners=tuple(owner for owner, group in enumerate(drawn.supports) for _ in group),
            base_labels=tuple(self._outputs(fold)),
            base_bias=None if (bias := self.store.biases()) is None else bias[self._outputs(fold)],
            fake_rows=self._fake_rows(drawn),
        )

    def images(self, images: Sequence[int]) -> Tensor:
        """Pixels as the encoder takes them, (images, 3, size, size) in [0, 1]; for methods that read images."""
        pixels = np.stack([square_image(self.dataset.image(i), self.store.size) for i in images])
        return to_tensor(pixels).to(self.store.device)

    def _outputs(self, fold: Fold) -> list[int]:
        """Outputs of the base classifier that stay: background and the classes that are base in ``fold``."""
        return [0, *(self.fold.base.index(c) + 1 for c in fold.base)]

    def _rows(self, fold: Fold) -> Tensor:
        return self.store.rows()[self._outputs(fold)]

    def _fake_rows(self, drawn: Task) -> Tensor | None:
        if not set(drawn.novel) <= set(self.fold.base):
            return None
        return self.store.rows()[[self.fold.base.index(c) + 1 for c in drawn.novel]]

    def _without(self, features: Features, fold: Fold) -> Features:
        outputs = self._outputs(fold)
        if len(outputs) == features.base.shape[1]:
            return features
        return Features(features.levels, features.pooled, features.bottleneck, features.base[:, outputs])


@dataclass
class HeldOutSamplers:
    """Training episodes whose fake novel classes the base model has never seen, as at test.

    A base model that was trained on a class still shows it in its features when the class is taken out of its
    classifier, and it is surer of images that it was trained on than of new ones; a calibrator trained on such episodes
    learns to expect both, and true novel classes in new images disappoint it. So base classes and images are split into
    parts, one base model is trained without each part of both, and that part makes up the episodes on this model. A
    calibrator treats channels as a set, so it carries over to the full base model.

    Attributes:
        sources: one per group, with the group as ``fakes``.
    """

    sources: tuple[EpisodeSampler, ...]

    def for_episode(self, i: int) -> EpisodeSampler:
        """Where training episode ``i`` comes from: blocks of episodes take turns."""
        return self.sources[i // BLOCK % len(self.sources)]

    @property
    def most_ways(self) -> int:
        """How many fake novel classes every episode can have."""
        return min(source.most_ways for source in self.sources)
