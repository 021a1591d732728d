"""Metrics against a reference in plain Python loops, which shares nothing with the code under test."""

from __future__ import annotations

import itertools
import pickle
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gfss.evaluation.metrics import METRICS, Accumulated, PerImage, image_counts

VOID = 255
BASE = ("b1", "b2", "b3")
NOVEL = ("n1", "n2")
NAMES = ("background", *BASE, *NOVEL)


@dataclass
class Tried:
    """A task with its maps as nested lists; labels 0..3 are background and base, then the task's novel classes."""

    novel: tuple[str, ...]
    predicted: list[list[list[int]]]
    truth: list[list[list[int]]]

    @property
    def names(self) -> tuple[str, ...]:
        return ("background", *BASE, *self.novel)

    def counts(self) -> Tensor:
        return image_counts(torch.tensor(self.predicted), torch.tensor(self.truth), len(self.names))


@st.composite
def tried_tasks(draw: st.DrawFn, paired: bool) -> list[Tried]:
    tasks = []
    for _ in range(draw(st.integers(1, 4))):
        novel = (draw(st.sampled_from(NOVEL)),) if paired else NOVEL
        labels = len(BASE) + len(novel)
        present = draw(st.lists(st.sampled_from([*range(labels + 1), VOID]), min_size=1, max_size=3))
        shape = (draw(st.integers(1, 3)), 2, 3)
        predicted = draw(_maps(st.integers(0, labels), shape))
        tasks.append(Tried(novel, predicted, draw(_maps(st.sampled_from(present), shape))))
    return tasks


def _maps(values: st.SearchStrategy[int], shape: tuple[int, int, int]) -> st.SearchStrategy[list[list[list[int]]]]:
    rows = st.lists(values, min_size=shape[2], max_size=shape[2])
    images = st.lists(rows, min_size=shape[1], max_size=shape[1])
    return st.lists(images, min_size=shape[0], max_size=shape[0])


def pixels(predicted: list[list[int]], truth: list[list[int]]) -> list[tuple[int, int]]:
    pairs = zip(itertools.chain(*predicted), itertools.chain(*truth), strict=True)
    return [(p, t) for p, t in pairs if t != VOID]


def reference_per_image(tasks: list[Tried]) -> dict[str, float | None]:
    """Intersection over union inside each image, mean per task, mean over tasks."""
    sums = dict.fromkeys(NAMES, 0.0)
    for task in tasks:
        for label, name in enumerate(task.names):
            ious = []
            for predicted, truth in zip(task.predicted, task.truth, strict=True):
                pairs = pixels(predicted, truth)
                if not any(t == label for _, t in pairs):
                    continue
                intersection = sum(p == label and t == label for p, t in pairs)
                union = sum(p == label or t == label for p, t in pairs)
                ious.append(intersection / (union + 1e-10))
            sums[name] += sum(ious) / len(ious) if ious else 0.0
    values: dict[str, float | None] = {}
    for name in NAMES:
        own = sum(name in task.names for task in tasks)
        values[name] = 100 * sums[name] / own if own else None
    return values


def reference_accumulated(tasks: list[Tried]) -> dict[str, float | None]:
    """Intersection and union over all pixels of all tasks."""
    values: dict[str, float | None] = {}
    for name in NAMES:
        intersection = union = 0
        for task in tasks:
            if name not in task.names:
                continue
            label = task.names.index(name)
            for predicted, truth in zip(task.predicted, task.truth, strict=True):
                for p, t in pixels(predicted, truth):
                    intersection += p == label and t == label
                    union += p == label or t == label
        values[name] = 100 * intersection / union if union else None
    return values


REFERENCES = {"per-image": reference_per_image, "accumulated": reference_accumulated}


def mean(values: list[float | None]) -> float | None:
    given_values = [value for value in values if value is not None]
    return sum(given_values) / len(given_values) if given_values else None


def check_against_reference(metric_name: str, tasks: list[Tried]) -> None:
    metric = METRICS[metric_name](BASE, NOVEL)
    for task in tasks:
        metric.update(task.counts(), task.novel)
    values = REFERENCES[metric_name](tasks)
    for with_background in (False, True):
        figures = metric.summary(with_background)
        known = ("background", *BASE) if with_background else BASE
        base, novel = mean([values[name] for name in known]), mean([values[name] for name in NOVEL])
        assert figures.background == pytest.approx(values["background"], abs=1e-6)
        assert figures.classes == pytest.approx({name: values[name] for name in (*BASE, *NOVEL)}, abs=1e-6)
        assert figures.base == pytest.approx(base, abs=1e-6)
        assert figures.novel == pytest.approx(novel, abs=1e-6)
        if base is None or novel is None:
            assert (figures.miou, figures.mean, figures.harmonic) == (None, None, None)
            continue
        total = len(known) + len(NOVEL)
        assert figures.miou == pytest.approx((len(known) * base + len(NOVEL) * novel) / total, abs=1e-6)
        assert figures.mean == pytest.approx((base + novel) / 2, abs=1e-6)
        assert figures.harmonic == pytest.approx(2 * base * novel / (base + novel) if base + novel else 0, abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(tried_tasks(paired=True))
def test_per_image_equals_the_reference_on_paired_tasks(tasks: list[Tried]) -> None:
    check_against_reference("per-image", tasks)


@settings(max_examples=40, deadline=None)
@given(tried_tasks(paired=False))
def test_per_image_equals_the_reference_on_joint_tasks(tasks: list[Tried]) -> None:
    check_against_reference("per-image", tasks)


@settings(max_examples=60, deadline=None)
@given(tried_tasks(paired=True))
def test_accumulated_equals_the_reference_on_paired_tasks(tasks: list[Tried]) -> None:
    check_against_reference("accumulated", tasks)


@settings(max_examples=40, deadline=None)
@given(tried_tasks(paired=False))
def test_accumulated_equals_the_reference_on_joint_tasks(tasks: list[Tried]) -> None:
    check_against_reference("accumulated", tasks)


@settings(max_examples=30, deadline=None)
@given(st.data(), tried_tasks(paired=True))
def test_figures_do_not_depend_on_order_or_on_the_split_over_processes(data: st.DataObject, tasks: list[Tried]) -> None:
    shuffled = data.draw(st.permutations(tasks))
    cut = data.draw(st.integers(0, len(tasks)))
    for kind in METRICS.values():
        whole, left, right = kind(BASE, NOVEL), kind(BASE, NOVEL), kind(BASE, NOVEL)
        for task in tasks:
            whole.update(task.counts(), task.novel)
        for i, task in enumerate(shuffled):
            (left if i < cut else right).update(task.counts(), task.novel)
        assert (left + pickle.loads(pickle.dumps(right))).summary() == whole.summary()


@pytest.mark.parametrize("kind", METRICS.values(), ids=METRICS)
def test_perfect_maps_score_exactly_100_and_background_maps_exactly_0(kind: type[PerImage] | type[Accumulated]) -> None:
    truth = torch.arange(5, dtype=torch.uint8).repeat(7, 1, 3)
    perfect, empty = kind(BASE, NOVEL), kind(BASE, NOVEL)
    for name in NOVEL:
        perfect.update(image_counts(truth, truth, 5), [name])
        empty.update(image_counts(torch.zeros_like(truth), truth, 5), [name])
    best, worst = perfect.summary(), empty.summary()
    assert {best.base, best.novel, best.miou, best.mean, best.harmonic, best.background} == {100.0}
    assert {worst.base, worst.novel, worst.miou, worst.mean, worst.harmonic} == {0.0}


def test_false_positives_in_images_without_the_class_cost_only_the_accumulated_metric() -> None:
    truth = torch.tensor([[[4, 4]], [[1, 1]]])
    predicted = torch.full_like(truth, 4)
    per_image, accumulated = PerImage(BASE, NOVEL), Accumulated(BASE, NOVEL)
    for metric in (per_image, accumulated):
        metric.update(image_counts(predicted, truth, 5), ["n2"])
    assert per_image.summary().classes["n2"] == 100
    assert accumulated.summary().classes["n2"] == 50
    assert per_image.summary().classes["n1"] is None


def test_a_base_class_counts_as_0_in_a_task_without_it() -> None:
    metric = PerImage(BASE, NOVEL)
    truth = torch.tensor([[[1, 4]]])
    metric.update(image_counts(truth, truth, 5), ["n1"])
    truth = torch.tensor([[[2, 4]]])
    metric.update(image_counts(truth, truth, 5), ["n1"])
    assert metric.summary().classes == {"b1": 50, "b2": 50, "b3": 0, "n1": 100, "n2": None}


def test_nothing_seen_gives_no_figures() -> None:
    for kind in METRICS.values():
        figures = kind(BASE, NOVEL).summary()
        assert (figures.base, figures.novel, figures.harmonic, figures.background) == (None, None, None, None)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
@pytest.mark.parametrize("classes", [2, 17, 200, 255])
def test_counts_of_every_type_and_number_of_classes(dtype: torch.dtype, classes: int) -> None:
    generator = torch.Generator().manual_seed(classes)
    truth = torch.randint(0, classes, (2, 9, 11), generator=generator)
    predicted = torch.randint(0, classes, truth.shape, generator=generator)
    truth[:, 2] = VOID
    counts = image_counts(predicted.to(dtype), truth.to(dtype), classes)
    valid = truth != VOID
    for label in (0, 1, classes - 1):
        own, true = (predicted == label) & valid, truth == label
        expected = torch.stack((own & true, own, true)).sum(dim=(2, 3)).T
        assert torch.equal(counts[:, label], expected)
    assert counts[..., 1].sum() == counts[..., 2].sum() == valid.sum()


def test_counts_of_void_and_of_no_images() -> None:
    void = torch.full((2, 3, 3), VOID)
    assert image_counts(torch.ones_like(void), void, 4).tolist() == torch.zeros(2, 4, 3).tolist()
    assert image_counts(void[:0], void[:0], 4).shape == (0, 4, 3)


@pytest.mark.parametrize(
    ("predicted", "truth"),
    [([[[0, 5]]], [[[0, 0]]]), ([[[0, 0]]], [[[0, 5]]]), ([[[0, 0]]], [[[0]]]), ([[0]], [[0]])],
    ids=["predicted label", "true label", "other size", "one image"],
)
def test_wrong_maps_are_refused(predicted: list, truth: list) -> None:
    with pytest.raises(ValueError, match="must"):
        image_counts(torch.tensor(predicted), torch.tensor(truth), 5)


def test_wrong_updates_and_sums_are_refused() -> None:
    counts = torch.zeros(1, 5, 3, dtype=torch.int64)
    with pytest.raises(ValueError, match="must be"):
        PerImage(BASE, NOVEL).update(counts)
    with pytest.raises(ValueError, match="same"):
        _ = PerImage(BASE, NOVEL) + PerImage(BASE, ("n1",))
