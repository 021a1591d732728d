"""Fitting taught classes, choosing their threshold, and an honest estimate of how well they were learned.

Every class has a row of its own (:mod:`gfss.models.novel.logistic`), fitted on its support images and their augmented
copies, against the rest of these images, images without the class, and what other taught classes show. Its threshold
and the estimate come from leaving its images out in turn; with one image, its copies. So does the question whether the
mask refiner helps or stays out of the way. All three depend on the class's own images alone, so that forgetting another
class leaves them as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gfss.app.network import COLOURS, Network, Taught, encoder_maps
from gfss.app.support import Example, Samples, TaughtClass, grid_labels
from gfss.models.calibrators.mask_refiner import ClassMemory, MaskRefiner, class_memory
from gfss.models.novel.logistic import LogisticHead, LogisticOptions, fit_logistic
from gfss.models.ops.upsample import class_map

OTHERS = 200  # positions of each image of another taught class that count as the rest, at most
STRENGTHS = (0.003, 0.03, 0.2)  # of the regularisation that are compared where there are several images
PARTS = 5  # that several images are left out in, at most
QUICK = 30  # iterations of fits that leave images out
THRESHOLDS = torch.linspace(-4, 6, 41)  # of the log-odds that are compared
AT_ZERO = int(THRESHOLDS.abs().argmin())
PRIOR_SHARE = 0.5  # of the log-odds of the rest in the supports that the threshold tends to, with many images
ORDINARY_SHARE = 0.1  # of the weight of the rest that positions of ordinary images have
LIKE_CLASS = 0.1  # share of a class's own positions that may be less like it than those
RIGHT = 0.8  # share of a known class's pixels that the base model names
UNSEEN_SHARE = 0.3  # of a further image of a taught class that may be taken for a known class
DOUBT = 20.0  # points of IoU, divided by the images, that a threshold must gain to lie 1 away from that
ONE_IMAGE = (88.0, 0.68, -0.85, 12.2)  # of expected_iou; fitted to the tuning sets of docs/experiments/017
LEARNED_WELL, LEARNED_ROUGHLY = 55.0, 44.0  # estimated IoU; docs/experiments/017 says how often that is right


@dataclass(frozen=True)
class Estimate:
    """How well a class was learned.

    Attributes:
        iou: expected IoU in percent on images like the supports.
        images: how many images it rests on.
        hardest: the image that was found worst when it was left out.
    """

    iou: float
    images: int
    hardest: str

    @property
    def words(self) -> str:
        """The estimate for people."""
        basis = "leaving each image out in turn" if self.images > 1 else "altered copies of its one image"
        figure = f"estimated IoU {self.iou:.0f}, by {basis}"
        if self.iou >= LEARNED_WELL:
            return f"learned well ({figure})"
        if self.iou >= LEARNED_ROUGHLY:
            return f"learned roughly ({figure}); more images will help, above all ones like {self.hardest}"
        return f"not learned ({figure}): add images like {self.hardest}, and images without the class"


@dataclass(frozen=True)
class ClassFit:
    """The fitted state of one class.

    Attributes:
        weight: its row, (channels,).
        bias: of the row.
        fitted_iou: IoU of the row on the positions it was fitted on, in [0, 1].
        seen_as: share of the class's pixels in its support images that the base model takes for each known class,
            background first.
        verdict: what leaving images out has shown.
    """

    weight: Tensor
    bias: Tensor
    fitted_iou: float
    seen_as: tuple[float, ...]
    verdict: Verdict


@dataclass(frozen=True)
class Verdict:
    """What leaving images out in turn has shown.

    Attributes:
        threshold: of the log-odds.
        refined: whether the mask refiner helps.
        estimate: how well the class was learned.
        strength: of the row's regularisation.
    """

    threshold: float
    refined: bool
    estimate: Estimate
    strength: float = LogisticOptions.l2


def fit_classes(
    taught: Sequence[TaughtClass],
    network: Network,
    before: Mapping[str, tuple[TaughtClass, ClassFit]] | None = None,
) -> list[ClassFit]:
    """Fit all taught classes.

    Args:
        before: earlier classes and their fits, by name; a class with the same images keeps its verdict.
    """
    fits: list[ClassFit] = []
    for one in taught:
        others = [example for other in taught if other is not one for example in other.shots]
        known = (before or {}).get(one.name)
        same = known is not None and _images(known[0]) == _images(one)
        verdict = known[1].verdict if known is not None and same else judge(one, network.refiner)
        weight, bias, fitted_iou = fit_row(one.examples, network.refiner, others, LogisticOptions(l2=verdict.strength))
        fits.append(ClassFit(weight, bias, fitted_iou, base_labels(one.shots, network), verdict))
    return fits


@torch.inference_mode()
def base_labels(shots: Sequence[Example], network: Network) -> tuple[float, ...]:
    """Share of a class's pixels in its support images that the base model takes for each known class."""
    seen = torch.zeros(len(network.card.classes) + 1)
    for example in shots:
        known = class_map(network.features(example.levels).base, (network.size, network.size))[0]
        seen += torch.bincount(known[torch.from_numpy(example.labels == 1)].long(), minlength=len(seen))
    return tuple((seen / seen.sum().clamp_min(1)).tolist())


def known_limits(seen_as: Sequence[float], images: int) -> Tensor:
    """The most that the base model's opinion counts against a taught class, in log-odds, for each known class.

    Where the base model names a known class, either it is right, as it is :data:`RIGHT` of the time where that class
    is, or it takes the taught class for it, as often as it does so in the support images. The logarithm of the ratio
    bounds what its opinion is worth. With few images, a class that it never mixes up with the taught one may still be
    one of these. The background, 0, stands for everything without a name and says nothing.
    """
    share = (images * torch.tensor(seen_as) + UNSEEN_SHARE) / (images + 1)
    limits = torch.log(RIGHT / share).clamp_min(0)
    limits[0] = 0
    return limits


def taught_state(taught: Sequence[TaughtClass], fits: Sequence[ClassFit], network: Network) -> Taught | None:
    """The fits of all taught classes as one head, with what the refiner remembers."""
    if not taught:
        return None
    refiner = network.refiner
    limits = torch.stack([known_limits(fit.seen_as, len(one.shots)) for one, fit in zip(taught, fits, strict=True)])
    head = LogisticHead(torch.stack([fit.weight for fit in fits]), torch.stack([fit.bias for fit in fits]))
    balance = [one.balance - fit.verdict.threshold for one, fit in zip(taught, fits, strict=True)]
    memories = [
        memory_of(one.shots, refiner, fit.fitted_iou) if refiner is not None and fit.verdict.refined else None
        for one, fit in zip(taught, fits, strict=True)
    ]
    return Taught(head, torch.tensor(balance, dtype=torch.float32), limits, tuple(memories))


def memory_of(shots: Sequence[Example], refiner: MaskRefiner, fitted_iou: float) -> ClassMemory:
    """What the refiner remembers of images that show a class."""
    supports = [(encoder_maps(example.levels), torch.from_numpy(example.labels.copy())) for example in shots]
    return class_memory(supports, refiner.compared, fitted_iou)


def fit_row(
    examples: Sequence[Example],
    refiner: MaskRefiner | None,
    others: Sequence[Example] = (),
    options: LogisticOptions | None = None,
) -> tuple[Tensor, Tensor, float]:
    """Row, bias and fitted IoU of a class from its examples.

    Args:
        others: support images of other taught classes; what they show of these is the rest.
    """
    parts = [samples for example in examples for samples in (example.samples, *example.copies)]
    shown = {example.sha256 for example in examples}
    for example in others:
        if example.sha256 not in shown:
            theirs = example.samples.features[example.samples.labels == 1][:OTHERS]
            parts.append(Samples(theirs, torch.zeros(len(theirs), dtype=torch.uint8)))
    return fit_samples(parts, refiner, options)


def fit_samples(
    parts: Sequence[Samples], refiner: MaskRefiner | None, options: LogisticOptions | None = None
) -> tuple[Tensor, Tensor, float]:
    """Row, bias and fitted IoU from positions; the class and the rest weigh the same.

    A part of the rest are positions of ordinary images that do not look like the class: what is only ever seen in one
    kind of images would otherwise be found everywhere in images of another kind.
    """
    features = torch.cat([part.features for part in parts]).float()
    positive = torch.cat([part.labels for part in parts]) == 1
    weights = torch.where(positive, 0.5 / positive.sum().clamp_min(1), 0.5 / (~positive).sum().clamp_min(1))
    if refiner is None:
        weight, bias = fit_logistic(features, positive, weights, options)
    else:
        ordinary = unlike_class(refiner.ordinary, features[positive])
        shares = torch.where(positive, weights, (1 - ORDINARY_SHARE * bool(len(ordinary))) * weights)
        weight, bias = fit_logistic(
            torch.cat([features, ordinary]),
            torch.cat([positive, positive.new_zeros(len(ordinary))]),
            torch.cat([shares, weights.new_full((len(ordinary),), 0.5 * ORDINARY_SHARE / max(1, len(ordinary)))]),
            options,
            (refiner.mean, refiner.spread),
        )
    found = features @ weight + bias > 0
    return weight, bias, float((found & positive).sum() / (found | positive).sum().clamp_min(1))


def unlike_class(ordinary: Tensor, shown: Tensor) -> Tensor:
    """Positions of ordinary images that are less like a class than nearly all of its own positions are.

    Args:
        ordinary: unit feature vectors of all levels, (positions, channels).
        shown: the same of the class.
    """
    middle = shown.mean(dim=0)
    least = (shown @ middle).quantile(LIKE_CLASS)
    return ordinary[ordinary @ middle < least]


def judge(one: TaughtClass, refiner: MaskRefiner | None) -> Verdict:
    """Threshold, use of the refiner and estimate, from images (of one image: copies) left out of the fit."""
    shots = one.shots
    prior = _prior_threshold(shots)
    if len(shots) == 1:
        estimate = Estimate(_one_image_iou(one, shots[0], refiner), 1, shots[0].id)
        return Verdict(0.0 if refiner is not None else prior, refiner is not None, estimate)
    groups = [shots[i::PARTS] for i in range(min(PARTS, len(shots)))]
    plain = {strength: _left_out(one, groups, refiner, strength) for strength in STRENGTHS}
    choices = {strength: _best_threshold(_plain_counts(fits), prior) for strength, fits in plain.items()}
    strength = max(STRENGTHS, key=lambda value: choices[value][0])
    best, refined = choices[strength], False
    if refiner is not None:
        other = _best_threshold(_refined_counts(plain[strength], refiner), 0.0)
        best, refined = (other, True) if other[0] > best[0] else (best, False)
    _, threshold, iou, hardest = best
    ordered = [example for group in groups for example in group]
    return Verdict(threshold, refined, Estimate(iou, len(shots), ordered[hardest].id), strength)


def _best_threshold(counts: Tensor, prior: float) -> tuple[float, float, float, int]:
    """Mean IoU less the doubt in thresholds far from the prior, the threshold, the IoU there and the worst image.

    Args:
        counts: (images, thresholds, 2), intersection and union.
    """
    together = 100 * counts[..., 0].sum(dim=0) / counts[..., 1].sum(dim=0).clamp_min(1)
    each = 100 * counts[..., 0] / counts[..., 1].clamp_min(1)
    gain = (together + each.mean(dim=0)) / 2 - DOUBT / len(counts) * (THRESHOLDS - prior).square()
    best = int(gain.argmax())
    return float(gain[best]), float(THRESHOLDS[best]), float(together[best]), int(each[:, best].argmin())


def _prior_threshold(shots: Sequence[Example]) -> float:
    """Where the threshold tends to: 0 with one image, more with several where the class is rare in them.

    The row is fitted with as much weight on the class as on the rest, so its log-odds are too high by those of the
    rest. With few images that makes up for what they do not show of the class.
    """
    share = float(np.clip(np.mean([example.share for example in shots]), 1e-3, 1 - 1e-3))
    return PRIOR_SHARE * (1 - 1 / len(shots)) * float(np.log((1 - share) / share))


def _one_image_iou(one: TaughtClass, example: Example, refiner: MaskRefiner | None) -> float:
    """Expected IoU on other images of a class with one image."""
    counts = torch.stack(_copies_left_out(one, example, refiner)).sum(dim=0)
    on_copies = 100 * (counts[:, 0] / counts[:, 1].clamp_min(1e-9)).max()
    weight, bias, fitted_iou = fit_row(one.examples, refiner)
    trial = [Trial(example, one.examples, LogisticHead(weight[None], bias[None]), fitted_iou)]
    both, either = (_plain_counts(trial) if refiner is None else _refined_counts(trial, refiner))[0, AT_ZERO]
    return expected_iou(float(on_copies), float(100 * both / either.clamp_min(1)), example.share)


def expected_iou(on_copies: float, on_itself: float, share: float) -> float:
    """IoU in percent to expect on other images of a class that one image was taught of.

    Linear in how well altered copies are segmented that were left out of the fit, how well the image itself is, and
    the logarithm of the class's share of it. An image that is fitted much better than its copies was learned by heart,
    and small objects are found less well than large ones.
    """
    constant, copies, itself, size = ONE_IMAGE
    expected = constant + copies * on_copies + itself * on_itself + size * float(np.log(share + 1e-4))
    return float(np.clip(expected, 0, 100))


@dataclass(frozen=True)
class Trial:
    """An image and a row that is tried on it.

    Attributes:
        example: the image.
        rest: what the row was fitted on; without the image where it was left out.
        head: the row.
        fitted_iou: IoU of the row on the positions it was fitted on.
    """

    example: Example
    rest: Sequence[Example]
    head: LogisticHead
    fitted_iou: float


def _left_out(
    one: TaughtClass, groups: Sequence[Sequence[Example]], refiner: MaskRefiner | None, strength: float
) -> list[Trial]:
    """Rows fitted without each group of images in turn."""
    found: list[Trial] = []
    for group in groups:
        rest = [other for other in one.examples if all(other is not example for example in group)]
        weight, bias, fitted_iou = fit_row(rest, refiner, options=LogisticOptions(strength, QUICK))
        found += [Trial(example, rest, LogisticHead(weight[None], bias[None]), fitted_iou) for example in group]
    return found


@torch.inference_mode()
def _plain_counts(fits: Sequence[Trial]) -> Tensor:
    """Intersection and union at every threshold on the images of trials, (images, thresholds, 2)."""
    return torch.stack(
        [_image_counts(fit.head.logits(encoder_maps(fit.example.levels))[0, 0], fit.example) for fit in fits]
    )


@torch.inference_mode()
def _refined_counts(fits: Sequence[Trial], refiner: MaskRefiner) -> Tensor:
    """The same after the mask refiner."""
    counts: list[Tensor] = []
    memories: dict[int, ClassMemory] = {}  # one for all images of a group, which are left out together
    for fit in fits:
        if id(fit.rest) not in memories:
            memories[id(fit.rest)] = memory_of([other for other in fit.rest if other.shows], refiner, fit.fitted_iou)
        memory = memories[id(fit.rest)]
        maps, colours = encoder_maps(fit.example.levels), fit.example.levels[COLOURS].float()
        counts.append(_image_counts(refiner.refine(fit.head, 0, memory, maps, colours)[0, 0], fit.example))
    return torch.stack(counts)


def _image_counts(odds: Tensor, example: Example) -> Tensor:
    labels = torch.from_numpy(grid_labels(example.levels, example.labels))
    valid = labels <= 1
    return _counts(odds[valid], labels[valid] == 1, torch.ones(int(valid.sum())))


def _copies_left_out(one: TaughtClass, example: Example, refiner: MaskRefiner | None) -> list[Tensor]:
    """The same for copies of one image, each left out in turn; their positions stand for the whole copy."""
    curves: list[Tensor] = []
    rest = [other for other in one.examples if other is not example]
    extra = [samples for other in rest for samples in (other.samples, *other.copies)]
    for number, copy in enumerate(example.copies):
        positive = copy.labels == 1
        if not positive.any() or positive.all():
            continue
        parts = [example.samples, *(c for i, c in enumerate(example.copies) if i != number), *extra]
        weight, bias, _ = fit_samples(parts, refiner, LogisticOptions(iterations=QUICK))
        weights = torch.where(positive, example.share / positive.sum(), (1 - example.share) / (~positive).sum())
        curves.append(_counts(copy.features.float() @ weight + bias, positive, weights))
    return curves or [torch.zeros(len(THRESHOLDS), 2)]


def _counts(odds: Tensor, truth: Tensor, weights: Tensor) -> Tensor:
    """Weight of intersection and union at every threshold, (thresholds, 2)."""
    found = odds[None] > THRESHOLDS[:, None]
    return torch.stack([(found & truth).float() @ weights, (found | truth).float() @ weights], dim=1)


def _images(one: TaughtClass) -> list[tuple[str, int]]:
    return [(example.sha256, example.lesson) for example in one.examples]
