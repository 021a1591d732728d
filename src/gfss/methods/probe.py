"""Linear classifiers on frozen features: logistic regression, and the linear probe built on it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from gfss.common.errors import GfssError
from gfss.data.catalog import VOID
from gfss.features.episodes import Support
from gfss.methods.base import Method
from gfss.methods.pcn import normalised_score_fusion
from gfss.models.base_model import Features
from gfss.models.novel.classifier import NovelOptions, class_weights, novel_maps, support_labels
from gfss.models.ops.upsample import mask_shares


@dataclass(frozen=True)
class ProbeOptions:
    """How a logistic regression is fitted; the first value is scikit-learn's default.

    Attributes:
        inverse_penalty: C, weight of the data against half the squared length of the rows (biases are free).
        iterations: most iterations of L-BFGS.
        tolerance: it stops once no derivative of the mean loss is larger.
    """

    inverse_penalty: float = 1.0
    iterations: int = 300
    tolerance: float = 1e-6


@dataclass(frozen=True)
class LinearClassifier:
    """A 1x1 classifier: rows (classes, channels) and biases (classes,)."""

    rows: Tensor
    biases: Tensor

    def logits(self, maps: Tensor) -> Tensor:
        """Scores (batch, classes, h, w) of maps (batch, channels, h, w)."""
        return F.conv2d(maps, self.rows[..., None, None], self.biases)


def fit_probe(
    samples: Tensor, labels: Tensor, classes: int, options: ProbeOptions, weights: Tensor | None = None
) -> LinearClassifier:
    """Logistic regression: the one minimum of 1/2 |rows|^2 + C * sum of weighted cross entropies.

    As in scikit-learn, two classes share one row (class 0 scores zero), more classes have a row each.
    Deterministic: the problem is convex and the start is zero.

    Args:
        samples: (samples, channels).
        labels: (samples,), 0..classes-1.
        classes: number of classes.
        weights: weight of each class, one if left out.
    """
    if not torch.isfinite(samples).all():
        raise GfssError("the support features hold NaN or infinite values; rebuild the feature bank or check the image")
    with torch.inference_mode(False), torch.no_grad():
        inputs = F.pad(samples.double(), (0, 1), value=1.0)  # the last column is the bias
        truth = F.one_hot(labels.long(), classes).to(inputs)
        balance = truth.sum(dim=1) if weights is None else (truth * weights.to(inputs)).sum(dim=1)
        free = slice(1, None) if classes == 2 else slice(None)  # class 0 of two stays at zero
        table = inputs.new_zeros(truth[:, free].shape[1], inputs.shape[1])
        penalised = torch.ones_like(table)
        penalised[:, -1] = 0
        scale = 1 / (options.inverse_penalty * len(inputs))  # makes the loss a mean, whatever the number of samples

        def closure() -> Tensor:
            scores = inputs @ table.T
            logs = (F.pad(scores, (1, 0)) if classes == 2 else scores).log_softmax(dim=1)
            slopes = (logs.exp() - truth)[:, free] * balance[:, None]
            shrunk = table * penalised
            table.grad = slopes.T @ inputs / len(inputs) + scale * shrunk
            return -((truth * logs).sum(dim=1) * balance).mean() + scale / 2 * (shrunk * table).sum()

        optimiser = torch.optim.LBFGS(
            [table],
            max_iter=options.iterations,
            max_eval=2 * options.iterations,
            tolerance_grad=options.tolerance,
            tolerance_change=0.0,
            history_size=20,
            line_search_fn="strong_wolfe",
        )
        optimiser.step(closure)  # type: ignore[arg-type]  # a tensor, as LBFGS wants it
        full = (F.pad(table, (0, 0, 1, 0)) if classes == 2 else table).to(samples.dtype)
        return LinearClassifier(full[:, :-1], full[:, -1])


def position_labels(support: Support) -> Tensor:
    """Labels at the positions of the maps, (supports, h, w): position i is pixel i * stride.

    An object so small that it lies between the positions is given the one where its share is largest.
    """
    labels = at_positions(support.labels, support.features.size).clone()
    for image, owner in enumerate(support.owners):
        label = support.base + 1 + owner
        if not (labels[image] == label).any():
            shares = mask_shares(support.labels[image : image + 1], label, support.features.size)
            labels[image].view(-1)[shares.argmax()] = label
    return labels


def at_positions(pixels: Tensor, size: tuple[int, int]) -> Tensor:
    """What the pixels (images, height, width) hold at the positions of maps of a size, (images, h, w)."""
    rows = torch.linspace(0, pixels.shape[1] - 1, size[0]).round().long()
    columns = torch.linspace(0, pixels.shape[2] - 1, size[1]).round().long()
    return pixels[:, rows][:, :, columns]


def position_samples(maps: Tensor) -> Tensor:
    """Maps (images, channels, h, w) as samples (images * h * w, channels)."""
    return maps.movedim(1, -1).flatten(0, 2)


class LinearProbe(Method):
    """One linear layer on the normalised features, fitted on the support positions to its optimum.

    Classes weigh alike (weight of a class: "none" positions / own positions), as for the novel classifier. Its scores
    join the base ones by NSF, not by score fusion: the probe's logits are as large as its penalty lets them be, so
    only its probabilities can be compared with the base classifier's.

    Args:
        maps: which features are read and whether they are normalised.
    """

    name = "linear-probe"
    probabilities = True

    def __init__(self, maps: NovelOptions | None = None, options: ProbeOptions | None = None) -> None:
        self.maps = maps or NovelOptions()
        self.options = options or ProbeOptions()

    def learn(self, support: Support) -> None:
        support.check()
        labels = support_labels(position_labels(support), support.novel_labels).flatten()
        weights = class_weights(labels[None], support.novel + 1)[0]
        known = labels != VOID
        samples = position_samples(novel_maps(support.features, self.maps))[known]
        self.classifier = fit_probe(samples, labels[known], support.novel + 1, self.options, weights)

    def scores(self, query: Features) -> Tensor:
        return normalised_score_fusion(query.base, self.classifier.logits(novel_maps(query, self.maps)))
