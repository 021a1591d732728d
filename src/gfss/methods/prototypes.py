"""Methods that add a row to the base classifier, mostly a prototype of the support: NPF and imprinting."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from gfss.data.catalog import VOID
from gfss.features.episodes import Support
from gfss.methods.base import Method
from gfss.methods.pcn import normalised_parameter_fusion
from gfss.methods.probe import position_labels, position_samples
from gfss.models.base_model import Features
from gfss.models.novel.classifier import class_weights, support_labels
from gfss.models.ops.upsample import mask_shares

STEPS, RATE = 50, 0.1  # of the fitted rows; the paper's for its classifier of two layers


def novel_prototypes(support: Support) -> Tensor:
    """Masked-average prototypes of the novel classes in bottleneck space, (new, channels)."""
    support.check()
    rows: list[Tensor] = []
    for position, label in enumerate(support.novel_labels):
        own = [i for i, owner in enumerate(support.owners) if owner == position]
        shares = mask_shares(support.labels[own], label, support.features.size)
        rows.append(masked_average(support.features.bottleneck[own], shares))
    return torch.stack(rows)


def fitted_rows(support: Support) -> Tensor:
    """Novel rows of a 1x1 classifier without biases, fitted on the support positions: (new, channels)."""
    support.check()
    labels = support_labels(position_labels(support), support.novel_labels).flatten()
    known = labels != VOID
    samples, truth = position_samples(support.features.bottleneck)[known], labels[known].long()
    weights = class_weights(labels[None], support.novel + 1, samples.dtype)[0].to(samples.device)[truth]
    right = F.one_hot(truth, support.novel + 1).to(samples)
    start = torch.rand(support.novel + 1, samples.shape[1], generator=torch.Generator().manual_seed(0))
    rows = ((2 * start - 1) / samples.shape[1] ** 0.5).to(samples)
    for _ in range(STEPS):
        wrong = ((samples @ rows.T).softmax(dim=1) - right) * weights[:, None]
        rows -= RATE / weights.sum() * wrong.T @ samples
    return rows[1:]


class NormalisedParameterFusion(Method):
    """NPF: base rows and novel ones scaled to length one, one classifier.

    A baseline of Lu et al. (2022), https://arxiv.org/abs/2210.08290.

    The paper finds it biased to the base classes. With prototypes as novel rows it is biased to the novel ones on our
    features, with the rows of a fitted classifier, which the paper's words allow too, to the base classes.

    Args:
        fitted: fitted rows instead of prototypes.
    """

    name = "npf"

    def __init__(self, fitted: bool = False) -> None:
        self.fitted = fitted
        self.name = "npf-fitted" if fitted else "npf"  # type: ignore[misc]

    def learn(self, support: Support) -> None:
        self.base_rows = support.base_rows
        self.rows = fitted_rows(support) if self.fitted else novel_prototypes(support)

    def scores(self, query: Features) -> Tensor:
        return normalised_parameter_fusion(query.bottleneck, self.base_rows, self.rows)


class Imprint(Method):
    """Weight imprinting: the normalised prototype, at the average length of a base row, appended to the classifier.

    Qi, Brown, Lowe: Low-Shot Learning with Imprinted Weights (2018), https://arxiv.org/abs/1712.07136. There the base
    classifier is trained on features of length one, to which prototypes belong. Ours is not, and features after a
    ReLU have a large part in common, which is in every prototype and in no base row.

    Args:
        centred: take the mean feature of the support images off prototypes and, by a bias, off the query's features.
    """

    name = "imprint"

    def __init__(self, centred: bool = False) -> None:
        self.centred = centred
        self.name = "imprint-centred" if centred else "imprint"  # type: ignore[misc]

    def learn(self, support: Support) -> None:
        length = support.base_rows[1:].norm(dim=1).mean()
        prototypes = novel_prototypes(support)
        mean = torch.zeros_like(prototypes[0])
        if self.centred:
            known = position_labels(support).flatten() != VOID
            mean = position_samples(support.features.bottleneck)[known].mean(dim=0)
        self.rows = F.normalize(prototypes - mean, dim=1) * length
        self.biases = -self.rows @ mean

    def scores(self, query: Features) -> Tensor:
        return torch.cat([query.base, F.conv2d(query.bottleneck, self.rows[..., None, None], self.biases)], dim=1)


def masked_average(maps: Tensor, masks: Tensor) -> Tensor:
    """Prototype: average feature inside each support's mask, then over supports; (channels,).

    Args:
        maps: (supports, channels, h, w).
        masks: (supports, h, w) in [0, 1], the class's share of every position.
    """
    masks = masks.to(maps)
    sums = torch.einsum("schw,shw->sc", maps, masks)
    return (sums / masks.sum(dim=(1, 2)).clamp_min(1e-6)[:, None]).mean(dim=0)
