"""Compare a model before and after a lesson, pixel by pixel, on its support images and on validation images."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gfss.app.inputs import readable_name
from gfss.app.network import Guide, Network, Taught, square_labels, taught_classes, with_balance
from gfss.app.report import Change, ClassRow, CurvePoint, Move, Section
from gfss.app.support import Example, TaughtClass, pixels_hash
from gfss.common.errors import GfssError
from gfss.common.progress import track
from gfss.data.catalog import BACKGROUND, VOID
from gfss.data.datasets.folder import read_own
from gfss.data.images import fitted_size, mirrored_image, read_image, square_label
from gfss.data.inspection import as_labels
from gfss.data.labels import read_labels
from gfss.evaluation.metrics import accumulated_iou, image_counts

BALANCES = (-4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0)
SHOWN_IMAGES = 6  # images that are shown
NAMED = 3  # images that are named per class


@dataclass(frozen=True)
class State:
    """A model at one moment: class names in order of label (background first) and what was taught."""

    names: tuple[str, ...]
    taught: Taught | None


@dataclass(frozen=True)
class Case:
    """An image to compare on.

    Attributes:
        id: its name.
        levels: encoder levels of this one image.
        truth: (size, size) uint8 labels of the state after, 255 void.
        assumed: where set, pixels whose truth is unknown and taken to be what the model said before.
        denied: labels of classes that are known not to be at these pixels.
        image: the square image, where it is at hand.
        content: height and width of the image within the square, where they are known.
    """

    id: str
    levels: Mapping[str, Tensor]
    truth: np.ndarray
    assumed: np.ndarray | None = None
    denied: tuple[int, ...] = ()
    image: np.ndarray | None = None
    content: tuple[int, int] | None = None


@torch.inference_mode()
def compare(
    title: str, network: Network, before: State, after: State, cases: Iterable[Case], curve: bool = False
) -> Section:
    """Segment every case with both states and count.

    Args:
        curve: also move the balance between known and taught classes by several amounts.
    """
    classes, taught = len(after.names), taught_classes(after.taught)
    table = torch.tensor([after.names.index(name) for name in before.names], dtype=torch.uint8)
    known = torch.tensor([name in before.names for name in after.names])
    counts = torch.zeros(2, classes, 3, dtype=torch.int64)
    moved = torch.zeros(classes * classes, dtype=torch.int64)
    curves = torch.zeros(len(BALANCES), classes, 3, dtype=torch.int64)
    lost: dict[str, dict[str, int]] = {}
    worst: list[Change] = []
    images = 0
    for case in cases:
        images += 1
        scores = network.scores(case.levels, after.taught)[0]
        earlier = network.scores(case.levels, before.taught)[0]
        old = table[_labels(earlier, taught_classes(before.taught), case, network.size).long()]
        new = _labels(scores, taught, case, network.size)
        truth = torch.from_numpy(case.truth.copy())[None]
        area = torch.zeros_like(truth, dtype=torch.bool)
        if case.assumed is not None:
            area = torch.from_numpy(case.assumed)[None]
            truth = torch.where(area, _assumed(old, new, known, case.denied, area), truth)
        unknown = area & (truth == VOID)
        counts += torch.stack([_counts(labels, truth, unknown, case.denied, classes) for labels in (old, new)])
        valid = truth != VOID
        moved += torch.bincount(old[valid].long() * classes + new[valid].long(), minlength=classes * classes)
        change = _change(case, old, new, truth, before.names, after.names)
        for name, pixels in change.lost.items():
            lost.setdefault(name, {})[case.id] = pixels
        worst = sorted([*worst, change], key=lambda c: (-c.total, -c.wrong))[:SHOWN_IMAGES]
        if curve:
            for row, balance in enumerate(BALANCES):
                shifted = _labels(with_balance(scores, taught, balance), taught, case, network.size)
                curves[row] += _counts(shifted, truth, unknown, case.denied, classes)
    return Section(
        title,
        images,
        after.names,
        _rows(counts, before.names, after.names),
        _moves(moved.view(classes, classes), after.names),
        {name: tuple(sorted(found, key=lambda i: -found[i])[:NAMED]) for name, found in lost.items()},
        worst,
        _curve(curves, taught) if curve else [],
    )


def _labels(scores: Tensor, taught: int, case: Case, size: int) -> Tensor:
    """The class of every pixel of a case, (1, size, size), as segmenting gives it where the image is at hand."""
    guide = None if case.image is None else Guide(taught, case.image, case.image)
    return square_labels(scores, size, guide)[None]


def _assumed(old: Tensor, new: Tensor, known: Tensor, denied: Sequence[int], area: Tensor) -> Tensor:
    """What the model said before, where there is evidence for it; background where that is denied; else void.

    Between two known classes nobody can say who is right without a label, so such pixels are void, unless one of them
    is denied. Pixels that a known class lost to a new or denied one count only if in this image at least as many pixels
    of the class are the same before and after: else the class may never have been there.

    Args:
        area: the pixels without a label.
    """
    wrong, still = (torch.isin(labels, torch.tensor(denied, dtype=torch.uint8)) for labels in (old, new))
    fixed = wrong & (new == BACKGROUND)
    lost = (old != new) & ~wrong & (~known[new.long()] | still)
    counts = [torch.bincount(old[area & part].long(), minlength=len(known)) for part in (old == new, lost)]
    evident = counts[0] >= counts[1]
    settled = (old == new) | (lost & evident[old.long()]) | (wrong & (~known[new.long()] | still | fixed))
    return torch.where(settled, torch.where(wrong, BACKGROUND, old), VOID).to(torch.uint8)


def _counts(labels: Tensor, truth: Tensor, unknown: Tensor, denied: Sequence[int], classes: int) -> Tensor:
    """Pixels of every class, (classes, 3); a denied class is wrong also where the true one is unknown."""
    counts = image_counts(labels, truth, classes)[0]
    for label in denied:
        counts[label, 1] += (labels[unknown] == label).sum()
    return counts


def _change(case: Case, old: Tensor, new: Tensor, truth: Tensor, known: Sequence[str], names: Sequence[str]) -> Change:
    broken = truth[(old == truth) & (new != truth)]
    pixels = torch.bincount(broken.long(), minlength=len(names)).tolist()
    lost = {name: count for name, count in zip(names, pixels, strict=True) if count and name in known}
    labelled = int((truth != VOID).sum())
    wrong = float(((new != truth) & (truth != VOID)).sum()) / max(1, labelled)
    maps = (old[0].numpy(), new[0].numpy(), case.image, truth[0].numpy())
    return Change(case.id, lost, *maps, wrong, case.content)


def _rows(counts: Tensor, known: Sequence[str], names: Sequence[str]) -> list[ClassRow]:
    before, after = (
        [None if value != value else 100 * value for value in accumulated_iou(one).tolist()] for one in counts
    )
    pixels = counts[1, :, 2].tolist()
    return [ClassRow(n, n in known, p, b, a) for n, p, b, a in zip(names, pixels, before, after, strict=True)]


def _moves(moved: Tensor, names: Sequence[str]) -> list[Move]:
    total = max(1, int(moved.sum()))
    pairs: list[tuple[int, int]] = [(i, j) for i, j in moved.nonzero().tolist() if i != j]
    pairs.sort(key=lambda pair: -int(moved[pair[0], pair[1]]))
    return [Move(names[i], names[j], int(moved[i, j]), int(moved[i, j]) / total) for i, j in pairs]


def _curve(curves: Tensor, taught: int) -> list[CurvePoint]:
    """Means over the classes that occur, background left out; the last ``taught`` classes are moved by the balance."""
    number = torch.arange(curves.shape[1])
    points: list[CurvePoint] = []
    for balance, counts in zip(BALANCES, curves, strict=True):
        iou = 100 * accumulated_iou(counts)
        present = (counts[:, 2] > 0) & (number > 0)
        new = number >= len(number) - taught
        points.append(CurvePoint(balance, _mean(iou[present & ~new]), _mean(iou[present & new])))
    return points


def _mean(values: Tensor) -> float | None:
    return float(values.mean()) if len(values) else None


@dataclass(frozen=True)
class Validation:
    """Labelled images that a model is checked on.

    Attributes:
        images: image files.
        masks: mask i as (height, width) uint8 in labels of the data.
        classes: class names of the data; label i + 1 is ``classes[i]``.
    """

    images: tuple[Path, ...]
    masks: Callable[[int], np.ndarray]
    classes: tuple[str, ...]

    def cases(
        self, network: Network, names: Sequence[str], supports: Collection[str] = (), repeated: list[str] | None = None
    ) -> Iterator[Case]:
        """Every image with its truth in a model's labels; classes that the model does not know are void.

        Args:
            names: the model's classes in order of label, background first.
            supports: hashes of the images that the model was taught from.
            repeated: takes the names of images that are among these.
        """
        table = np.full(256, VOID, dtype=np.uint8)
        table[BACKGROUND] = BACKGROUND
        for value, name in enumerate(self.classes, start=1):
            table[value] = names.index(name) if name in names else VOID
        for i, path in track(enumerate(self.images), "validating", total=len(self.images)):
            image = read_image(path)
            if repeated is not None and pixels_hash(image) in supports:
                repeated.append(readable_name(path))
            square = mirrored_image(image, network.size)
            truth = table[square_label(self.masks(i), network.size)]
            content = fitted_size(image.shape[0], image.shape[1], network.size)
            yield Case(readable_name(path), network.levels(square), truth, image=square, content=content)


def read_validation(
    folder: str | Path, names: Sequence[str], taught: str | None, *, label: str | None = None, void: int | None = None
) -> Validation:
    """A validation folder in any label format: the val images where lists are there, else all.

    Args:
        names: what the model knows; at least one of its classes must be labelled.
        taught: the class that binary masks show.
        label: what the labels call this class, or its mask value.
        void: the mask value that is void, where it is not 255.
    """
    source = Path(folder)
    if (source / "val.txt").exists():
        labels = as_labels(read_own(source, "val", name=taught, label=label, void=void))
    else:
        labels = read_labels(source, class_name=label or taught, void=void).renamed(label, taught)
        if "val" in labels.splits:
            labels = labels.part("val")
    validation = Validation(labels.images, labels.mask, labels.classes)
    if not set(validation.classes) & set(names):
        raise GfssError(
            f"{folder} labels {', '.join(validation.classes[:5])}, none of which the model knows; "
            "use the class names that 'gfss classes' prints"
        )
    return validation


def support_cases(taught: Sequence[TaughtClass], names: Sequence[str]) -> Iterator[Case]:
    """Every support image once: labelled pixels are true, the others are assumed to be what the model said before.

    What an image was labelled for is known not to be at these others. Known classes that the label file shows are true
    as well.
    """
    groups: dict[str, list[tuple[int, Example]]] = {}
    for one in taught:
        for example in one.examples:
            groups.setdefault(example.sha256, []).append((names.index(one.name), example))
    for group in groups.values():
        first = group[0][1]
        truth = np.where(first.labels == VOID, VOID, BACKGROUND).astype(np.uint8)
        for _, example in group:
            if example.others is not None:
                for value, name in enumerate(example.names, start=1):
                    if name in names:
                        truth[(example.others == value) & (truth == BACKGROUND)] = names.index(name)
        for label, example in group:
            truth[example.labels == 1] = label
        denied = tuple(label for label, _ in group)
        yield Case(first.id, first.levels, truth, truth == BACKGROUND, denied, first.image)
