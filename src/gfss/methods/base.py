"""The one interface of all systems: learn from a support set, then score query images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from torch import Tensor, nn

from gfss.common.errors import GfssError
from gfss.features.support import Episode, Support
from gfss.models.pspnet import Features


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
