"""The one interface of all systems: learn from a support set, then score query images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from gfss.errors import GfssError
from gfss.models.pspnet import Features


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
    """

    features: Features
    labels: Tensor
    novel: int
    base_rows: Tensor
    owners: tuple[int, ...]
    base_labels: tuple[int, ...]

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


class Method(ABC):
    """A complete system of generalized few-shot segmentation.

    Subclasses set the class attributes, say in :meth:`learn` what they keep of a support set and in :meth:`scores`
    how they score a query. Those that are trained on episodes also define :meth:`loss` and :attr:`module`.
    """

    name: ClassVar[str]
    transductive: ClassVar[bool] = False
    """Whether :meth:`scores` adapts to the query images it is given."""

    probabilities: ClassVar[bool] = False
    """Whether the scores are probabilities already, as a calibrator wants them."""

    module: nn.Module | None = None
    """Parameters that episodes train; None for methods without training."""

    trained: bool = True
    """Whether the method is ready; methods with a module start untrained."""

    @property
    def settings(self) -> dict[str, Any]:
        """Options that change the scores, for records and for what is trained on the scores; none if not said."""
        return {}

    @abstractmethod
    def learn(self, support: Support) -> None:
        """Take in the support set of a task; replaces what was learned before."""

    @abstractmethod
    def scores(self, query: Features) -> Tensor:
        """Scores of query images (queries, background + base + novel, h, w); the largest wins."""

    def loss(self, episode: Episode) -> tuple[Tensor, Tensor]:
        """Training loss of an episode as (sum over pixels, number of pixels)."""
        raise GfssError(f"method '{self.name}' has nothing to train")

    def require_trained(self) -> None:
        """Refuse to be used before training."""
        if self.module is not None and not self.trained:
            raise GfssError(f"method '{self.name}' is not trained yet; train it first or give its checkpoint")
