from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from gfss.common.errors import GfssError
from gfss.data.datasets.base import REFERENCE_SIDE, Dataset
from gfss.data.episodes import Fold, Task, episode, joint_episode, joint_task, make_fold, task

CLASSES = ("a", "b", "c", "d", "e", "f", "g", "h")
FOLD = make_fold(8, 0)  # novel 1 and 2
COUNT = 48
numbers = st.integers(0, 10_000)

ELSEWHERE = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from gfss.data.datasets.base import Dataset
from gfss.data.episodes import episode, joint_episode, joint_task, make_fold, task

folder = Path(sys.argv[1])
names = tuple(path.stem for path in sorted(folder.glob("*.png")))
files = tuple(folder / f"{name}.png" for name in names)
dataset, fold = Dataset("drawn", tuple("abcdefgh"), names, files, files), make_fold(8, 0)
drawn = [episode(dataset, fold.base, 3, 17, 2, 2, 3), task(dataset, fold, 3, 17, 2)]
drawn += [joint_task(dataset, fold, 3, 17, 2), joint_episode(dataset, fold.base, 3, 17, 2, 3, 4)]
print(json.dumps([asdict(item) for item in drawn]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Masks with one or two classes; every third shows a novel class, some show both."""
    folder = tmp_path_factory.mktemp("masks")
    for i in range(COUNT):
        mask = np.zeros((16, 16), dtype=np.uint8)
        mask[:6] = i % 8 + 1
        mask[10:] = (i // 8 + i) % 8 + 1
        Image.fromarray(mask).save(folder / f"{i:03d}.png")
    return folder


@pytest.fixture(scope="module")
def dataset(folder: Path) -> Dataset:
    files = tuple(sorted(folder.glob("*.png")))
    return Dataset("drawn", CLASSES, tuple(path.stem for path in files), files, files)


def first(dataset: Dataset, count: int) -> Dataset:
    return replace(dataset, ids=dataset.ids[:count], images=dataset.images[:count], masks=dataset.masks[:count])


def shows(dataset: Dataset, image: int, class_id: int) -> bool:
    return class_id in dataset.mask(image)


@settings(max_examples=25, deadline=None)
@given(numbers, numbers, st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
def test_an_episode_is_what_it_should_be(
    dataset: Dataset, seed: int, i: int, shots: int, ways: int, queries: int
) -> None:
    drawn = episode(dataset, FOLD.base, seed, i, shots, ways, queries)
    assert len(set(drawn.novel)) == ways
    assert set(drawn.novel) <= set(FOLD.base)
    supports = [image for group in drawn.supports for image in group]
    assert len(supports) == len(set(supports)) == ways * shots
    assert not set(supports) & set(drawn.queries)
    for class_id, group in zip(drawn.novel, drawn.supports, strict=True):
        assert all(shows(dataset, image, class_id) for image in group)
    assert len(drawn.queries) == 2 * ways * queries
    rest = set(FOLD.base) - set(drawn.novel)
    for place, (own, other) in enumerate(zip(drawn.queries[::2], drawn.queries[1::2], strict=True)):
        assert shows(dataset, own, drawn.novel[place // queries])
        assert any(shows(dataset, other, class_id) for class_id in rest)


@settings(max_examples=25, deadline=None)
@given(numbers, numbers, st.integers(1, 3), st.integers(1, 5), st.integers(1, 8))
def test_a_joint_episode_is_what_it_should_be(
    dataset: Dataset, seed: int, i: int, shots: int, ways: int, queries: int
) -> None:
    drawn = joint_episode(dataset, FOLD.base, seed, i, shots, ways, queries)
    assert len(set(drawn.novel)) == ways
    assert set(drawn.novel) <= set(FOLD.base)
    supports = [image for group in drawn.supports for image in group]
    assert len(supports) == len(set(supports)) == ways * shots
    for class_id, group in zip(drawn.novel, drawn.supports, strict=True):
        assert all(shows(dataset, image, class_id) for image in group)
    assert len(set(drawn.queries)) == len(drawn.queries) == queries
    assert not set(supports) & set(drawn.queries)
    assert all(isinstance(number, int) for number in (*drawn.novel, *supports, *drawn.queries))


def test_queries_of_joint_episodes_are_any_images(dataset: Dataset) -> None:
    """Whatever they show: also none of the fake novel classes, or nothing but true novel ones."""
    drawn = [joint_episode(dataset, FOLD.base, 0, i, queries=6) for i in range(60)]
    assert {image for one in drawn for image in one.queries} == set(range(COUNT))
    shown = [any(shows(dataset, image, c) for c in one.novel) for one in drawn for image in one.queries]
    assert 0.2 < np.mean(shown) < 0.8
    assert {c for one in drawn for c in one.novel} == set(FOLD.base)


@settings(max_examples=25, deadline=None)
@given(numbers, st.integers(1, 3), st.sets(st.integers(0, COUNT - 1), max_size=COUNT // 3))
def test_joint_episodes_keep_to_fakes_and_avoid_images(dataset: Dataset, i: int, ways: int, avoid: set[int]) -> None:
    drawn = [joint_episode(dataset, FOLD.base, 0, i, 1, ways, 9, (4, 5, 8), kind) for kind in forms(avoid)]
    assert drawn[0] == drawn[1]
    assert set(drawn[0].novel) <= {4, 5, 8}
    used = {*drawn[0].queries, *(image for group in drawn[0].supports for image in group)}
    assert not used & avoid
    assert len(drawn[0].queries) == 9


def test_fakes_of_joint_episodes_may_be_classes_that_are_no_base_classes(dataset: Dataset) -> None:
    drawn = {joint_episode(dataset, (3, 4, 5), 0, i, fakes=(6, 7, 8)).novel for i in range(40)}
    assert drawn == {(a, b) for a in (6, 7, 8) for b in (6, 7, 8) if a != b}


def test_queries_of_joint_episodes_repeat_where_images_are_too_few(dataset: Dataset) -> None:
    kept = {0, 8, 4, 7, 12, 15, 40}
    avoid = sorted(set(range(COUNT)) - kept)
    drawn = joint_episode(dataset, FOLD.base, 0, 0, 1, 2, 30, (5, 8), avoid)
    supports = {image for group in drawn.supports for image in group}
    assert len(drawn.queries) == 30
    assert set(drawn.queries) == kept - supports


def test_no_image_left_to_segment_is_said_in_one_sentence(dataset: Dataset) -> None:
    avoid = sorted(set(range(COUNT)) - {4, 7})  # one image of each class
    with pytest.raises(GfssError, match=r"^drawn: no image is left to segment in an episode; add labelled images$"):
        joint_episode(dataset, FOLD.base, 0, 0, 1, 2, 2, (5, 8), avoid)


@settings(max_examples=25, deadline=None)
@given(numbers, numbers, st.integers(1, 4))
def test_a_task_has_a_pair_for_every_base_class(dataset: Dataset, seed: int, i: int, shots: int) -> None:
    drawn = task(dataset, FOLD, seed, i, shots)
    (class_id,), (supports,) = drawn.novel, drawn.supports
    assert class_id == FOLD.novel[i % 2]
    assert len(set(supports)) == shots
    assert not set(supports) & set(drawn.queries)
    assert all(shows(dataset, image, class_id) for image in (*supports, *drawn.queries[::2]))
    assert len(drawn.queries) == 2 * len(FOLD.base)
    for base, image in zip(FOLD.base, drawn.queries[1::2], strict=True):
        assert shows(dataset, image, base)


@settings(max_examples=25, deadline=None)
@given(numbers, numbers, st.integers(1, 4))
def test_a_joint_task_teaches_all_novel_classes_and_asks_for_all_other_images(
    dataset: Dataset, seed: int, i: int, shots: int
) -> None:
    drawn = joint_task(dataset, FOLD, seed, i, shots)
    assert drawn.novel == FOLD.novel
    supports = [image for group in drawn.supports for image in group]
    for class_id, group in zip(FOLD.novel, drawn.supports, strict=True):
        assert len(set(group)) == shots
        for image in group:
            assert [c for c in FOLD.novel if shows(dataset, image, c)] == [class_id]
    assert sorted([*supports, *drawn.queries]) == list(range(COUNT))


def test_joint_supports_from_another_split_leave_every_image_a_query(dataset: Dataset) -> None:
    drawn = joint_task(dataset, FOLD, 0, 0, 1, supports=first(dataset, 24))
    assert drawn.queries == tuple(range(COUNT))
    assert all(image < 24 for group in drawn.supports for image in group)


def test_joint_supports_can_be_asked_to_show_more_of_their_class(dataset: Dataset) -> None:
    pixel = (REFERENCE_SIDE / 16) ** 2  # a pixel of these masks, at the reference size
    usual = joint_task(dataset, FOLD, 0, 0, 1)
    assert joint_task(dataset, FOLD, 0, 0, 1, area=int(6 * 16 * pixel)) == usual  # one or two stripes of six rows
    with pytest.raises(GfssError, match="to learn from"):
        joint_task(dataset, FOLD, 0, 0, 1, area=int(13 * 16 * pixel))


def test_all_novel_classes_get_equal_tasks(dataset: Dataset) -> None:
    assert Counter(task(dataset, FOLD, 0, i).novel[0] for i in range(100)) == {1: 50, 2: 50}


def test_draws_do_not_depend_on_order(dataset: Dataset) -> None:
    def draw(i: int) -> list[Task]:
        single = [episode(dataset, FOLD.base, 0, i), task(dataset, FOLD, 0, i)]
        return [*single, joint_task(dataset, FOLD, 0, i), joint_episode(dataset, FOLD.base, 0, i)]

    forward = [draw(i) for i in range(10)]
    np.random.seed(1)  # global state must not matter
    assert [draw(i) for i in reversed(range(10))][::-1] == forward
    for kind in zip(*forward, strict=True):
        assert len(set(kind)) > 5  # and they differ


def test_draws_are_the_same_in_another_process(dataset: Dataset, folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", ELSEWHERE, str(folder)], capture_output=True, text=True, check=True)
    here = [
        episode(dataset, FOLD.base, 3, 17, 2, 2, 3),
        task(dataset, FOLD, 3, 17, 2),
        joint_task(dataset, FOLD, 3, 17, 2),
        joint_episode(dataset, FOLD.base, 3, 17, 2, 3, 4),
    ]
    assert json.loads(done.stdout) == json.loads(json.dumps([asdict(item) for item in here]))


def test_seeds_differ(dataset: Dataset) -> None:
    assert len({joint_episode(dataset, FOLD.base, seed, 0) for seed in range(10)}) > 5
    assert len({task(dataset, FOLD, seed, 0, 3) for seed in range(10)}) > 5


def test_only_named_classes_are_fake_novel(dataset: Dataset) -> None:
    assert {episode(dataset, FOLD.base, 0, i, fakes=(4, 8)).novel for i in range(20)} == {(4,), (8,)}


@settings(max_examples=25, deadline=None)
@given(numbers, st.integers(1, 2), st.integers(1, 2), st.sets(st.integers(0, COUNT - 1), max_size=COUNT // 3))
def test_avoided_images_are_never_drawn(dataset: Dataset, i: int, ways: int, queries: int, avoid: set[int]) -> None:
    drawn = [episode(dataset, FOLD.base, 0, i, 1, ways, queries, avoid=kind) for kind in forms(avoid)]
    assert drawn[0] == drawn[1]
    used = {*drawn[0].queries, *(image for group in drawn[0].supports for image in group)}
    assert not used & avoid
    assert len(drawn[0].queries) == 2 * ways * queries
    for class_id, group in zip(drawn[0].novel, drawn[0].supports, strict=True):
        assert all(shows(dataset, image, class_id) for image in group)
        assert not set(group) & set(drawn[0].queries)


@settings(max_examples=25, deadline=None)
@given(numbers, st.sets(st.integers(0, COUNT - 1), max_size=COUNT // 3))
def test_tasks_avoid_images_too(dataset: Dataset, i: int, avoid: set[int]) -> None:
    drawn = [task(dataset, FOLD, 0, i, avoid=kind) for kind in forms(avoid)]
    assert drawn[0] == drawn[1]
    assert not {*drawn[0].queries, *drawn[0].supports[0]} & avoid
    assert not set(drawn[0].supports[0]) & set(drawn[0].queries)
    assert task(dataset, FOLD, 0, i, avoid=()) == task(dataset, FOLD, 0, i)


def forms(images: set[int]) -> tuple[list[int], np.ndarray]:
    """The same images as a list and as an array."""
    return sorted(images), np.array(sorted(images), dtype=np.int64)


def test_avoiding_nothing_changes_nothing(dataset: Dataset) -> None:
    for i in range(10):
        drawn = [episode(dataset, FOLD.base, 3, i, 2, avoid=avoid) for avoid in ((), [], np.zeros(0, dtype=np.int64))]
        assert drawn == [episode(dataset, FOLD.base, 3, i, 2)] * 3


def test_a_class_of_avoided_images_alone_is_named(dataset: Dataset) -> None:
    avoid = dataset.images_of(4)
    with pytest.raises(GfssError, match=r"class 'd' has 0 usable image\(s\) to learn from, 1 asked for; add labelled"):
        episode(dataset, FOLD.base, 0, 0, fakes=(4,), avoid=avoid)


def test_queries_repeat_where_a_class_has_too_few_images(dataset: Dataset) -> None:
    few = first(dataset, 16)  # class 1 is on three of these
    own = task(few, FOLD, 0, 0, shots=2).queries[::2]
    assert len(own) == 6
    assert len(set(own)) < 6


def test_more_shots_than_images_are_refused_in_one_sentence(dataset: Dataset) -> None:
    has = len(dataset.images_of(1))
    message = rf"drawn: class 'a' has {has} usable image\(s\) to learn from, {has + 1} asked for; use fewer shots"
    with pytest.raises(GfssError, match=message):
        task(dataset, FOLD, 0, 0, has + 1)
    with pytest.raises(GfssError, match=r"class 'a' has 0 usable image\(s\) left to segment, 6 asked for"):
        task(dataset, FOLD, 0, 0, has)
    with pytest.raises(GfssError, match=r"class 'a' has \d+ usable image\(s\) to learn from, 40 asked for"):
        joint_task(dataset, FOLD, 0, 0, 40)
    for kind in (episode, joint_episode):
        with pytest.raises(GfssError, match=r"usable image\(s\) to learn from, 40 asked for"):
            kind(dataset, FOLD.base, 0, 0, shots=40)


@pytest.mark.parametrize(("ways", "fakes"), [(6, None), (9, None), (0, None), (3, (4, 8))])
def test_impossible_ways_are_refused(dataset: Dataset, ways: int, fakes: tuple[int, ...] | None) -> None:
    number = 2 if fakes else 6
    message = (
        rf"^{ways} of {number} classes cannot play the novel classes of an episode; "
        "at least one base class must remain, so ask for fewer ways$"
    )
    for kind in (episode, joint_episode):
        with pytest.raises(GfssError, match=message):
            kind(dataset, FOLD.base, 0, 0, ways=ways, fakes=fakes)


def test_own_folds_work_alike(dataset: Dataset) -> None:
    fold = Fold(base=(1, 5), novel=(7,))
    drawn = task(dataset, fold, 0, 0)
    assert drawn.novel == (7,)
    assert len(drawn.queries) == 4


def test_an_image_of_nothing_but_its_class_is_no_support(tmp_path: Path) -> None:
    """Nothing but the class and a novel class, which counts for nothing: no classifier can be fitted on it."""
    files = []
    for i in range(12):
        mask = np.full((16, 16), 3, dtype=np.uint8)
        if i % 2:
            mask[:8] = 0
        else:
            mask[:8] = 1  # a true novel class
        files.append(tmp_path / f"{i:02d}.png")
        Image.fromarray(mask).save(files[-1])
    for i in range(12, 16):
        mask = np.zeros((16, 16), dtype=np.uint8)
        mask[:8] = 4
        files.append(tmp_path / f"{i:02d}.png")
        Image.fromarray(mask).save(files[-1])
    dataset = Dataset("drawn", CLASSES, tuple(path.stem for path in files), tuple(files), tuple(files))
    for i in range(30):
        ((support,),) = episode(dataset, (3, 4), 0, i, fakes=(3,)).supports
        assert support % 2
