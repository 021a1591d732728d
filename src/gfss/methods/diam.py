"""DIaM: the classifier is adapted to every query image, held by the supports and by what the base model said."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from gfss.data.catalog import VOID
from gfss.methods.base import Method, Support
from gfss.methods.probe import position_labels, position_samples
from gfss.methods.prototypes import novel_prototypes
from gfss.models.novel import support_labels
from gfss.models.pspnet import Features


@dataclass(frozen=True)
class DiamOptions:
    """Parameters of DIaM; the defaults are the published ones.

    Attributes:
        iterations: gradient steps per query image.
        rate: learning rate of plain gradient descent.
        support_weight: of the cross entropy on the supports.
        prior_weight: of the divergence of the class shares from the estimated ones.
        entropy_weight: of the query's entropy.
        distillation_weight: of the divergence from the base model.
        background_one_shot: weight of support positions without a novel class, with one support per class.
        background_more_shots: the same with several.
        prior_update: iteration at which the class shares are estimated again.
        batch: query images that are adapted at once; changes the speed only.
    """

    iterations: int = 100
    rate: float = 1.25e-3
    support_weight: float = 100.0
    prior_weight: float = 1.0
    entropy_weight: float = 1.0
    distillation_weight: float = 100.0
    background_one_shot: float = 0.01
    background_more_shots: float = 0.15
    prior_update: int = 10
    batch: int = 8


@dataclass(frozen=True)
class SupportPositions:
    """Support positions that are not void, all images together.

    Attributes:
        features: (channels, positions).
        targets: (positions,), 0 none of the novel classes, 1..n.
        weights: of the targets in the cross entropy, (1 + n,).
    """

    features: Tensor
    targets: Tensor
    weights: Tensor

    def loss(self, rows: Tensor, biases: Tensor) -> Tensor:
        """Weighted cross entropy, base classes folded into "none", averaged over positions: (images,)."""
        images, classes, _ = rows.shape
        logits = (rows.flatten(0, 1) @ self.features).view(images, classes, -1) + biases[..., None]
        known = classes - len(self.weights) + 1
        folded = torch.cat([logits[:, :known].logsumexp(dim=1, keepdim=True), logits[:, known:]], dim=1)
        targets = self.targets.expand(images, -1)
        return F.cross_entropy(folded, targets, self.weights, reduction="none").mean(dim=1)


@dataclass(frozen=True)
class Adapted:
    """Classifiers of a batch of images.

    Attributes:
        rows: (images, classes, channels).
        biases: (images, classes).
        losses: total loss before each step, (iterations, images).
    """

    rows: Tensor
    biases: Tensor
    losses: Tensor


class Diam(Method):
    """Distilled information maximisation.

    Hajimiri, Boudiaf, Ben Ayed, Dolz: A Strong Baseline for Generalized Few-Shot Semantic Segmentation (2023).
    Prototypes join the base classifier as rows; then, for every query image, all rows and biases descend on

        100 CE(support) + KL(class shares || estimated shares) + entropy(query) + 100 KL(query || base model)

    with base classes folded into background in the first term and novel ones in the last. Our base classifier has no
    biases, so they start at zero. Everything happens at map resolution, on the bottleneck features.
    """

    name = "diam"
    transductive = True

    def __init__(self, options: DiamOptions | None = None) -> None:
        self.options = options or DiamOptions()

    def learn(self, support: Support) -> None:
        prototypes = F.normalize(novel_prototypes(support), dim=1)
        self.start = torch.cat([support.base_rows, prototypes])
        labels = support_labels(position_labels(support), support.novel_labels).flatten().long()
        valid = labels != VOID
        one_shot = len(support.owners) == support.novel
        weights = torch.ones(support.novel + 1).to(self.start)
        weights[0] = self.options.background_one_shot if one_shot else self.options.background_more_shots
        features = position_samples(support.features.bottleneck)[valid].T.contiguous()
        self.support = SupportPositions(features, labels[valid], weights)

    def scores(self, query: Features) -> Tensor:
        batches = [query[i : i + self.options.batch] for i in range(0, len(query), self.options.batch)]
        return torch.cat([self._scores(batch) for batch in batches])

    def _scores(self, query: Features) -> Tensor:
        adapted = adapt(query, self.start, self.support, self.options)
        logits = adapted.rows @ query.bottleneck.flatten(2) + adapted.biases[..., None]
        return logits.view(len(query), -1, *query.size)


def adapt(query: Features, start: Tensor, support: SupportPositions, options: DiamOptions) -> Adapted:
    """Descend from the rows ``start`` (classes, channels), for each query image by itself."""
    with torch.inference_mode(False), torch.enable_grad():
        # clones, because tensors made in inference mode cannot take part in gradients
        features = query.bottleneck.detach().clone().flatten(2)
        snapshot = query.base.detach().clone().flatten(2).log_softmax(dim=1)
        support = SupportPositions(support.features.clone(), support.targets.clone(), support.weights.clone())
        rows = start.detach().clone().expand(len(query), -1, -1).contiguous().requires_grad_()
        biases = rows.new_zeros(rows.shape[:2]).requires_grad_()
        prior = features.new_empty(0)
        losses: list[Tensor] = []
        for iteration in range(options.iterations):
            logs = (rows @ features + biases[..., None]).log_softmax(dim=1)
            shares = logs.exp().mean(dim=2)
            if iteration in (0, options.prior_update):
                prior = shares.detach().log()
            loss = (
                options.support_weight * support.loss(rows, biases)
                + options.prior_weight * (shares * (shares.log() - prior)).sum(dim=1)
                + query_loss(logs, snapshot, options)
            )
            losses.append(loss.detach())
            steps = torch.autograd.grad(loss.sum(), (rows, biases))
            with torch.no_grad():
                rows.sub_(steps[0], alpha=options.rate)
                biases.sub_(steps[1], alpha=options.rate)
        return Adapted(rows.detach(), biases.detach(), torch.stack(losses))


def query_loss(logs: Tensor, snapshot: Tensor, options: DiamOptions) -> Tensor:
    """Entropy and distillation of query images, (images,).

    Args:
        logs: log-probabilities (images, background + base + novel, positions).
        snapshot: log-probabilities of the frozen base model (images, background + base, positions).
    """
    known = snapshot.shape[1]
    entropy = -(logs.exp() * logs).sum(dim=1).mean(dim=1)
    background = torch.cat([logs[:, :1], logs[:, known:]], dim=1).logsumexp(dim=1, keepdim=True)
    folded = torch.cat([background, logs[:, 1:known]], dim=1)
    divergence = (folded.exp() * (folded - snapshot)).sum(dim=1).mean(dim=1)
    return options.entropy_weight * entropy + options.distillation_weight * divergence
