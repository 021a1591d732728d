"""Folds, episodes (training, fake novel classes) and tasks (test, true novel classes).

Episodes and tasks are pure functions of (seed, index): any process can draw any of them in any order, every method
sees the same ones, and a resumed run equals an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gfss.common.errors import GfssError, unknown
from gfss.data.catalog import BACKGROUND, FOLDS, VOID
from gfss.data.datasets.base import MIN_AREA, Dataset

LEAST_REST = 0.01  # share of a support image that must be something else than its class

EPISODE_STREAM, TASK_STREAM, JOINT_STREAM = 1, 2, 3  # keep the three kinds of draws apart


@dataclass(frozen=True)
class Task:
    """Indices into a data set: what to learn from and what to segment.

    Attributes:
        novel: novel (or fake novel) class ids.
        supports: K image indices for each novel class.
        queries: images to segment.
    """

    novel: tuple[int, ...]
    supports: tuple[tuple[int, ...], ...]
    queries: tuple[int, ...]


def episode(
    dataset: Dataset,
    base: Sequence[int],
    seed: int,
    i: int,
    shots: int = 1,
    ways: int = 1,
    queries: int = 1,
    fakes: Sequence[int] | None = None,
    avoid: Sequence[int] | np.ndarray = (),
) -> Task:
    """Training episode ``i``: ``ways`` fake novel classes out of the base classes.

    Per fake novel class K supports and ``queries`` queries with it, and as many queries of remaining
    base classes (paper, section III-E). Queries come as pairs (fake novel image, base image).

    Args:
        fakes: classes that may play the novel class; all base classes if left out.
        avoid: images that are not used.
    """
    rng, fake, rest, supports = _fake_supports(dataset, base, (seed, i), shots, ways, fakes, avoid)
    drawn: list[int] = []
    used = np.concatenate([avoid, *supports])
    for class_id in fake:
        own = _draw(dataset, int(class_id), queries, rng, avoid=used, query=True)
        for image in own:
            other = _draw(dataset, int(rng.choice(rest)), 1, rng, avoid=used, query=True)[0]
            drawn += [image, other]
    return Task(tuple(int(c) for c in fake), tuple(supports), tuple(drawn))


def joint_episode(
    dataset: Dataset,
    base: Sequence[int],
    seed: int,
    i: int,
    shots: int = 1,
    ways: int = 2,
    queries: int = 2,
    fakes: Sequence[int] | None = None,
    avoid: Sequence[int] | np.ndarray = (),
) -> Task:
    """Training episode ``i`` with several fake novel classes at once, its queries any images, whatever they show.

    Arguments as in :func:`episode`, but for ``queries``, which are counted one by one.
    """
    rng, fake, _, supports = _fake_supports(dataset, base, (seed, i), shots, ways, fakes, avoid)
    pool = np.setdiff1d(np.arange(len(dataset)), np.concatenate([avoid, *supports]))
    if not len(pool):
        raise GfssError(f"{dataset.name}: no image is left to segment in an episode; add labelled images")
    drawn = rng.choice(pool, size=queries, replace=len(pool) < queries)
    return Task(tuple(int(c) for c in fake), tuple(supports), tuple(int(image) for image in drawn))


def task(
    dataset: Dataset, fold: Fold, seed: int, i: int, shots: int = 1, avoid: Sequence[int] | np.ndarray = ()
) -> Task:
    """Test task ``i`` of the paired protocol: one novel class and one (novel, base j) pair per base class.

    The novel class cycles with ``i``, so all get equal tasks. Supports are never among the queries.

    Args:
        avoid: images that are not used.
    """
    rng = np.random.default_rng((TASK_STREAM, seed, i))
    class_id = fold.novel[i % len(fold.novel)]
    supports = _draw(dataset, class_id, shots, rng, avoid=avoid, beside=(BACKGROUND, *fold.base))
    used = [*avoid, *supports]
    own = _draw(dataset, class_id, len(fold.base), rng, avoid=used, query=True)
    others = [_draw(dataset, j, 1, rng, avoid=used, query=True)[0] for j in fold.base]
    queries = (image for pair in zip(own, others, strict=True) for image in pair)
    return Task((class_id,), (tuple(supports),), tuple(queries))


def joint_task(
    dataset: Dataset,
    fold: Fold,
    seed: int,
    i: int,
    shots: int = 1,
    supports: Dataset | None = None,
    area: int = MIN_AREA,
) -> Task:
    """Draw ``i`` of the joint protocol: all novel classes at once, every image a query.

    Supports come from ``dataset`` itself (then they are no queries) or from another split, and contain
    exactly one novel class.

    Args:
        area: least area of the class in a support, at the reference size.
    """
    rng = np.random.default_rng((JOINT_STREAM, seed, i))
    source = supports or dataset
    crowded = np.flatnonzero(source.areas[:, list(fold.novel)].astype(bool).sum(axis=1) != 1)
    beside = (BACKGROUND, *fold.base)
    unfit = {c: np.union1d(crowded, source.small_in(c, area)) for c in fold.novel}
    chosen = [tuple(_draw(source, c, shots, rng, avoid=unfit[c], beside=beside)) for c in fold.novel]
    taken = set() if supports else {image for group in chosen for image in group}
    return Task(fold.novel, tuple(chosen), tuple(i for i in range(len(dataset)) if i not in taken))


def _fake_supports(
    dataset: Dataset,
    base: Sequence[int],
    number: tuple[int, int],
    shots: int,
    ways: int,
    fakes: Sequence[int] | None,
    avoid: Sequence[int] | np.ndarray,
) -> tuple[np.random.Generator, np.ndarray, np.ndarray, list[tuple[int, ...]]]:
    """How every episode begins: its random numbers, fake novel classes, remaining base classes and supports."""
    if not 0 < ways < len(base) or (fakes and ways > len(fakes)):
        raise GfssError(
            f"{ways} of {len(fakes or base)} classes cannot play the novel classes of an episode; at least one base "
            "class must remain, so ask for fewer ways"
        )
    rng = np.random.default_rng((EPISODE_STREAM, *number))
    fake = rng.choice(np.asarray(fakes or base), size=ways, replace=False)
    rest = np.setdiff1d(base, fake)
    supports: list[tuple[int, ...]] = []
    for class_id in fake:
        used = np.concatenate([avoid, *supports])
        chosen = _draw(dataset, int(class_id), shots, rng, avoid=used, beside=(BACKGROUND, *rest))
        supports.append(tuple(chosen))
    return rng, fake, rest, supports


def _draw(
    dataset: Dataset,
    class_id: int,
    count: int,
    rng: np.random.Generator,
    avoid: Sequence[int] | np.ndarray = (),
    query: bool = False,
    beside: Sequence[int] = (),
) -> list[int]:
    """Distinct images of a class outside ``avoid``; only queries may repeat where a class has too few.

    With ``beside``, only images where these mask values cover some part: a classifier cannot be fitted on a support
    that shows nothing but its class.
    """
    usable = dataset.members[:, class_id].copy()
    usable[np.asarray(avoid, dtype=np.int64)] = False
    if len(beside):
        usable &= dataset.areas[:, list(beside)].sum(axis=1) >= LEAST_REST * dataset.areas.sum(axis=1)
    pool = np.flatnonzero(usable)
    repeat = query and 0 < len(pool) < count
    if len(pool) < count and not repeat:
        name = dataset.classes[class_id - 1]
        role = "left to segment" if query else "to learn from"
        fewer = "use fewer shots or " if (len(avoid) if query else count) > 1 else ""
        raise GfssError(
            f"{dataset.name}: class '{name}' has {len(pool)} usable image(s) {role}, {count} asked for; "
            f"{fewer}add labelled images"
        )
    return [int(i) for i in rng.choice(pool, size=count, replace=repeat)]


def shots_in_words(shots: int) -> str:
    """As people write it: 1 shot, 5 shots."""
    return f"{shots} shot{'' if shots == 1 else 's'}"


@dataclass(frozen=True)
class Fold:
    """Which class ids are known (base) and which are new (novel).

    Labels inside a fold are 0 background, 1..N base in order of id, then the novel classes asked for.
    """

    base: tuple[int, ...]
    novel: tuple[int, ...]

    def label_table(self, novel: Sequence[int] = (), hidden: int = VOID) -> np.ndarray:
        """Table of 256 entries from mask value to label.

        Args:
            novel: novel class ids that are present in this task; they get labels N+1, N+2, ...
            hidden: label of novel classes that are not present (255: neither right nor wrong).
        """
        table = np.full(256, VOID, dtype=np.uint8)
        table[BACKGROUND] = BACKGROUND
        table[list(self.novel)] = hidden
        for label, class_id in enumerate(self.base, start=1):
            table[class_id] = label
        for label, class_id in enumerate(novel, start=len(self.base) + 1):
            table[class_id] = label
        return table


def make_fold(classes: int, fold: int, folds: int = FOLDS, interleaved: bool = False) -> Fold:
    """Fold ``fold`` of a data set with ``classes`` classes.

    Contiguous (PASCAL-5^i): novel = a block of ids. Interleaved (the usual COCO-20^i): every
    ``folds``-th id starting at ``fold + 1``.

    >>> make_fold(20, 0).novel
    (1, 2, 3, 4, 5)
    >>> make_fold(80, 1, interleaved=True).novel[:3]
    (2, 6, 10)
    """
    if not 0 <= fold < folds:
        raise GfssError(f"fold {fold} is out of range: this data set has folds 0 to {folds - 1}")
    if classes < folds:
        raise GfssError(f"{classes} classes cannot be split into {folds} folds; at least {folds} are needed")
    ids = np.arange(1, classes + 1)
    novel = ids[fold::folds] if interleaved else np.array_split(ids, folds)[fold]
    base = np.setdiff1d(ids, novel)
    return Fold(tuple(int(i) for i in base), tuple(int(i) for i in novel))


def open_fold(data: str, classes: int, fold: int, contiguous: bool = False) -> Fold:
    """Fold ``fold`` under the convention of a data set.

    Args:
        data: name or path as for ``open_dataset``.
        classes: how many classes the data set has.
        fold: 0 to 3.
        contiguous: for COCO, blocks of ids instead of every fourth id.
    """
    return make_fold(classes, fold, interleaved=data == "coco" and not contiguous)


def fold_of_names(classes: Sequence[str], novel: Sequence[str]) -> Fold:
    """A fold whose novel classes are given by name (own data)."""
    for name in novel:
        if name not in classes:
            raise unknown("class", name, classes)
    ids = tuple(classes.index(name) + 1 for name in novel)
    if len(set(ids)) == len(classes):
        raise GfssError(f"all {len(classes)} classes are novel; leave at least one that the model knows")
    return Fold(tuple(i for i in range(1, len(classes) + 1) if i not in ids), ids)
