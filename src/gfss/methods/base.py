"""The one interface of all systems: learn from a support set, then score query images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Self

from torch import Tensor, nn

from gfss.common.errors import GfssError
from gfss.features.episodes import Episode, Support
from gfss.models.base_model import Features

if TYPE_CHECKING:
    from gfss.methods import Context


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

    reads_images: bool = False
    """Whether the method wants to see images: :attr:`images` then are those of the next call."""

    images: Tensor | None = None
    """Images that the next :meth:`learn` or :meth:`scores` is about, (images, 3, height, width) in [0, 1]."""

    reads_void: bool = False
    """Whether the method wants to know which pixels of its queries are void; :attr:`void` then says so."""

    void: Tensor | None = None
    """Pixels of the next queries that are void in their labels, (queries, height, width); unknown if None."""

    fake_classes: int = 1
    """Fake novel classes that a training episode should have at once, or as many as there can be."""

    module: nn.Module | None = None
    """Parameters that episodes train; None for methods without training."""

    trained: bool = True
    """Whether the method is ready; methods with a module start untrained."""

    @classmethod
    def build(cls, context: Context) -> Self:
        """One of this kind; a method that needs the base model or the encoder's levels overrides it."""
        return cls()

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

    def show(self, images: Tensor) -> None:
        """Hand over the images of the next call; asked only of methods that read images."""
        self.images = images

    def require_trained(self) -> None:
        """Refuse to be used before training."""
        if self.module is not None and not self.trained:
            raise GfssError(f"method '{self.name}' is not trained yet; train it first or give its checkpoint")
