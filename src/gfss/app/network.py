"""What runs in every model: encoder, pyramid head, novel classifier and calibrator in one row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from gfss.common.errors import GfssError
from gfss.data.transforms import to_tensor
from gfss.methods.pcn import pcn_scores
from gfss.models.base_model import BaseCard, BaseModel
from gfss.models.calibrators.calibrator import Calibrator
from gfss.models.calibrators.support_similarity import SupportMemory
from gfss.models.fusion import normalised_score_fusion
from gfss.models.novel.classifier import NovelClassifier, NovelOptions, novel_maps
from gfss.models.ops.fused_encoder import Run, fast_form
from gfss.models.pspnet import Features

CHUNK = 16  # images that go through the head at once
HALF_LIMIT = 65504  # largest value of fp16
MOST_BIAS = 100  # beyond, one side has won long ago
SHARPNESS = 10.0  # of normalised score fusion's scores where there is no calibrator


@dataclass(frozen=True)
class Knowledge:
    """What was taught: the novel classifier, and what the calibrator remembers of the support images."""

    classifier: NovelClassifier
    memory: SupportMemory | None

    @property
    def classes(self) -> int:
        """Number of taught classes."""
        return self.classifier.second.shape[1] - 1


class Network(nn.Module):
    """From square images to class scores; what was taught comes in as :class:`Knowledge`.

    Features are rounded to fp16 where the evaluation harness keeps them in fp16, so that both give the same figures.

    Args:
        base: the base model.
        calibrator: None leaves normalised score fusion as it is.
        options: how novel classifiers are fitted.
    """

    def __init__(self, base: BaseModel, calibrator: Calibrator | None, options: NovelOptions) -> None:
        super().__init__()
        self.base = base
        self.calibrator = calibrator
        self.options = options
        self.requires_grad_(False).eval()

    @property
    def card(self) -> BaseCard:
        """What the base model is."""
        return self.base.card

    @property
    def size(self) -> int:
        """Side of the square input."""
        return self.base.card.size

    @property
    def base_rows(self) -> Tensor:
        """Rows of the base classifier, (base + 1, channels)."""
        return self.base.head.classifier.weight.detach()[:, :, 0, 0]

    @cached_property
    def _fast(self) -> Run:
        return fast_form(self.base.encoder, self.size)

    @torch.inference_mode()
    def levels(self, square: np.ndarray) -> dict[str, Tensor]:
        """Encoder levels that the head reads, of a square image (size, size, 3): name -> (1, channels, h, w) fp16."""
        maps = self._fast(to_tensor(square[None]).contiguous(memory_format=torch.channels_last))
        return {name: maps[name].clamp(-HALF_LIMIT, HALF_LIMIT).half().contiguous() for name in self.base.head.channels}

    @torch.inference_mode()
    def features(self, levels: Mapping[str, Tensor]) -> Features:
        """Everything the head says of encoder levels."""
        computed = self.base.head({name: level.float() for name, level in levels.items()})
        return computed.map(lambda tensor: tensor.half().float())

    def scores(self, features: Features, knowledge: Knowledge | None) -> Tensor:
        """Logits (batch, background + base + taught, h, w): the largest wins, the softmax are probabilities."""
        if knowledge is None:
            return features.base
        novel = knowledge.classifier.logits(novel_maps(features, self.options))
        if self.calibrator is None:
            return normalised_score_fusion(features.base, novel) * SHARPNESS
        return pcn_scores(features, novel, self.calibrator, knowledge.memory)

    @torch.inference_mode()
    def score_map(self, square: np.ndarray, knowledge: Knowledge | None, bias: float = 0.0) -> Tensor:
        """Logits (classes, h, w) of a square image, taught classes moved by ``bias``."""
        scores = self.scores(self.features(self.levels(square)), knowledge)[0]
        return with_bias(scores, taught_classes(knowledge), bias)


def refuse_bias(bias: float) -> None:
    """Raise if a bias is not a number to add to scores."""
    if not abs(bias) <= MOST_BIAS:
        raise GfssError(f"the novel bias is {bias}; expected a number from -{MOST_BIAS} to {MOST_BIAS}, 0 for none")


def taught_classes(knowledge: Knowledge | None) -> int:
    """How many classes were taught."""
    return 0 if knowledge is None else knowledge.classes


def with_bias(scores: Tensor, taught: int, bias: float) -> Tensor:
    """Scores (classes, h, w) with ``bias`` added to those of the last ``taught`` classes."""
    if not bias or not taught:
        return scores
    known = scores.shape[0] - taught
    return torch.cat([scores[:known], scores[known:] + bias])
