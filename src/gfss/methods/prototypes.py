"""Methods that add a support prototype as a row of the base classifier: NPF and imprinting."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from gfss.methods.base import Method, Support
from gfss.models.fusion import mask_shares, masked_average, normalised_parameter_fusion
from gfss.models.pspnet import Features


def novel_prototypes(support: Support) -> Tensor:
    """Masked-average prototypes of the novel classes in bottleneck space, (new, channels)."""
    support.check()
    rows: list[Tensor] = []
    for position, label in enumerate(support.novel_labels):
        own = [i for i, owner in enumerate(support.owners) if owner == position]
        shares = mask_shares(support.labels[own], label, support.features.size)
        rows.append(masked_average(support.features.bottleneck[own], shares))
    return torch.stack(rows)


class NormalisedParameterFusion(Method):
    """NPF: base rows and prototypes scaled to length one, one classifier.

    The paper finds it biased to the base classes; on our frozen features it is biased to the novel ones.
    """

    name = "npf"

    def learn(self, support: Support) -> None:
        self.base_rows = support.base_rows
        self.prototypes = novel_prototypes(support)

    def scores(self, query: Features) -> Tensor:
        return normalised_parameter_fusion(query.bottleneck, self.base_rows, self.prototypes)


class Imprint(Method):
    """Weight imprinting: the normalised prototype, at the average length of a base row, appended to the classifier.

    Qi, Brown, Lowe: Low-Shot Learning with Imprinted Weights (2018).
    """

    name = "imprint"

    def learn(self, support: Support) -> None:
        length = support.base_rows[1:].norm(dim=1).mean()
        self.rows = F.normalize(novel_prototypes(support), dim=1) * length

    def scores(self, query: Features) -> Tensor:
        return torch.cat([query.base, F.conv2d(query.bottleneck, self.rows[..., None, None])], dim=1)
