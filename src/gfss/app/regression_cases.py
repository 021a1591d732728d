"""Images to compare a model on: its own support images and a user's validation folder."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gfss.app.inputs import readable_name
from gfss.app.network import Network
from gfss.app.regression_check import Case
from gfss.app.support import Example, TaughtClass, pixels_hash
from gfss.common.errors import GfssError
from gfss.common.progress import track
from gfss.data.catalog import BACKGROUND, VOID
from gfss.data.datasets.folder import read_own
from gfss.data.images import mirrored_image, read_image, square_label
from gfss.data.inspection import as_labels
from gfss.data.labels import read_labels


@dataclass(frozen=True)
class Validation:
    """Labelled images that a model is checked on.

    Attributes:
        images: picture files.
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
            yield Case(readable_name(path), network.levels(square), truth, image=square)


def read_validation(folder: str | Path, names: Sequence[str], taught: str | None) -> Validation:
    """A validation folder in any label format: the val images where lists are there, else all.

    Args:
        names: what the model knows; at least one of its classes must be labelled.
        taught: the class that binary masks show.
    """
    source = Path(folder)
    if (source / "val.txt").exists():
        labels = as_labels(read_own(source, "val"))
    else:
        labels = read_labels(source, class_name=taught)
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
