"""Episodes and tasks as tensors: a support set to learn from and queries to segment."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gfss.common.errors import GfssError
from gfss.models.base_model import Features


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
    """

    features: Features
    labels: Tensor
    novel: int
    base_rows: Tensor
    owners: tuple[int, ...]
    base_labels: tuple[int, ...]
    base_bias: Tensor | None = None

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
