"""Teaching: what is sampled, what is fitted, what is said about it, and what of it is kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.app import make

import gfss
from gfss.app.inputs import Labelled
from gfss.app.segmenter import Segmenter
from gfss.app.support import Example, TaughtClass, augmented_copies, grid_labels, make_example, sample_positions
from gfss.app.teaching import THRESHOLDS, Estimate, expected_iou, fit_row, judge
from gfss.common.errors import GfssError
from gfss.data.images import fitted_size, square_label

SHOTS = [make.labelled(seed) for seed in range(1, 4)]
OTHER = make.picture(7), np.pad(np.ones((20, 30), dtype=np.uint8), ((14, 14), (17, 17)))
QUERIES = [make.labelled(5)[0], make.labelled(6, 200, 90)[0]]


@pytest.fixture(params=[False, True], ids=["plain", "refined"])
def model(request: pytest.FixtureRequest) -> Segmenter:
    return make.model(refined=request.param)


@pytest.fixture(scope="module")
def examples() -> list[Example]:
    network = make.network()
    return [make_example(network, Labelled(f"shot {i}", *shot), 1) for i, shot in enumerate(SHOTS)]


def segmented(model: Segmenter) -> list[np.ndarray]:
    """Probabilities and masks of some images."""
    results = [model.segment(image) for image in QUERIES]
    return [part for result in results for part in (result.scores, result.mask)]


def same(first: list[np.ndarray], second: list[np.ndarray]) -> bool:
    return all(np.array_equal(left, right) for left, right in zip(first, second, strict=True))


def plain_disc(seed: int) -> np.ndarray:
    """A picture with a disc in the box's colour, but without its stripes."""
    image = make.picture(seed)
    rows, columns = np.ogrid[:48, :64]
    image[(rows - 24) ** 2 + (columns - 12 - seed % 30) ** 2 < 150] = (250, 40, 230)
    return image


def coordinates(size: int = 17) -> dict[str, torch.Tensor]:
    """A level from whose vectors row and column can be read, whatever their length."""
    rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    return {"a": torch.stack([rows, columns, torch.ones(size, size)])[None].half()}


def test_sampling_is_the_same_every_time() -> None:
    levels, labels = coordinates(), square_label(SHOTS[0][1], make.SIZE)
    first, again, other = (sample_positions(levels, labels, (5, 9), seed) for seed in ("a", "a", "b"))
    assert torch.equal(first.features, again.features)
    assert not torch.equal(first.features, other.features)
    assert first.labels.tolist() == [1] * 5 + [0] * 9


def test_positions_have_their_own_label_and_never_lie_beyond_the_image() -> None:
    for shape in ((48, 64), (64, 20)):
        mask = make.labelled(3, *shape)[1]
        labels = square_label(mask, make.SIZE)
        levels = coordinates()
        samples = sample_positions(levels, labels, (1000, 1000), "a")
        places = (samples.features[:, :2] / samples.features[:, 2:]).round().long()
        on_grid = grid_labels(levels, labels)
        assert on_grid[places[:, 0], places[:, 1]].tolist() == samples.labels.tolist()
        height, width = fitted_size(*shape, make.SIZE)
        assert int(places[:, 0].max()) * 4 < height
        assert int(places[:, 1].max()) * 4 < width
        assert len(places) == (on_grid <= 1).sum()


def test_what_is_beyond_the_image_is_void_in_all_copies() -> None:
    image, mask = make.labelled(1, 30, 64)
    shown = Labelled("a", image, np.ones_like(mask))
    for square, labels in augmented_copies(shown, make.SIZE, "seed"):
        assert square.shape == (make.SIZE, make.SIZE, 3)
        rows, columns = (np.flatnonzero((labels == 1).any(axis=axis)) for axis in (1, 0))
        inside = np.zeros_like(labels, dtype=bool)
        inside[: rows.max() + 1, : columns.max() + 1] = True
        assert (labels[inside] == 1).all()
        assert (labels[~inside] == 255).all()
        assert inside.mean() < 0.6


def test_a_flipped_copy_has_a_flipped_mask() -> None:
    image, mask = SHOTS[0]
    flipped, labels = next(augmented_copies(Labelled("a", image, mask), make.SIZE, "seed"))
    expected = make_example(make.network(), Labelled("b", image[:, ::-1].copy(), mask[:, ::-1].copy()), 1)
    assert expected.image is not None
    assert (flipped == expected.image).all()
    assert (labels == expected.labels).all()


def test_images_without_the_class_are_learned_from() -> None:
    """Discs of the box's colour are taken for boxes until one is shown that is none."""
    alone, told, empty = make.model(), make.model(), make.model()
    alone.teach("box", *SHOTS[0])
    told.teach("box", *SHOTS[0], without=[plain_disc(40), plain_disc(41)])
    images, nothing = [SHOTS[0][0], plain_disc(40), plain_disc(41)], np.zeros((48, 64), dtype=np.uint8)
    empty.teach("box", images, [SHOTS[0][1], nothing, nothing])
    assert same(segmented(told), segmented(empty))  # an empty mask says the same
    shares = [
        np.mean([model.segment(plain_disc(seed)).found.get("box", 0.0) for seed in range(50, 54)])
        for model in (alone, told)
    ]
    assert shares[0] > 0.02
    assert shares[1] < shares[0] / 2
    found = told.segment(QUERIES[0]).mask == 4
    assert found[make.labelled(5)[1] == 1].mean() > 0.5
    assert [example.shows for example in told.taught[0].examples] == [True, False, False]


def test_without_takes_folders_paths_and_single_images(tmp_path: Path) -> None:
    from PIL import Image

    for seed in (40, 41):
        Image.fromarray(plain_disc(seed)).save(tmp_path / f"{seed}.png")
    for without, number in ((tmp_path, 2), ([tmp_path / "40.png"], 1), (plain_disc(42), 1), ((), 0)):
        model = make.model()
        model.teach("box", *SHOTS[0], without=without)
        assert len(model.taught[0].examples) == 1 + number
    with pytest.raises(GfssError, match="image 1 and image 1 of those without the class are the same image; leave one"):
        make.model().teach("box", *SHOTS[0], without=SHOTS[0][0])


def test_an_image_without_the_class_can_be_added_later() -> None:
    model, whole = make.model(), make.model()
    model.teach("box", *SHOTS[0])
    model.teach("box", plain_disc(40), np.zeros((48, 64), dtype=np.uint8), add=True)
    whole.teach("box", *SHOTS[0], without=plain_disc(40))
    assert same(segmented(model), segmented(whole))
    assert [example.lesson for example in model.taught[0].examples] == [1, 2]


def test_a_class_that_is_easily_seen_is_learned_well(model: Segmenter) -> None:
    """Black and white is about the easiest there is."""
    images, masks = [], []
    for seed in range(3):
        mask = make.labelled(seed)[1]
        images.append(np.where(mask[..., None] == 1, 255, 0).astype(np.uint8).repeat(3, axis=2))
        masks.append(mask)
    estimate = model.teach("white", images, masks)
    assert estimate.iou > 80
    assert estimate.images == 3
    assert estimate.words.startswith("learned well (estimated IoU ")
    assert model.estimate("white") == estimate


def test_random_labels_are_not_learned(model: Segmenter) -> None:
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (64, 64, 3), dtype=np.uint8) for _ in range(3)]
    masks = [np.kron(rng.random((8, 8)) < 0.1, np.ones((8, 8))).astype(np.uint8) for _ in images]
    estimate = model.teach("nothing", images, masks)
    assert estimate.iou < 25
    assert estimate.words.startswith("not learned (estimated IoU ")
    assert estimate.hardest in {"image 1", "image 2", "image 3"}
    assert f"add images like {estimate.hardest}, and images without the class" in estimate.words


@pytest.mark.parametrize(
    ("iou", "images", "words"),
    [
        (55.0, 2, "learned well (estimated IoU 55, by leaving each image out in turn)"),
        (54.0, 2, "learned roughly (estimated IoU 54, by leaving each image out in turn); more images will help"),
        (43.0, 1, "not learned (estimated IoU 43, by altered copies of its one image): add images like a.jpg"),
    ],
)
def test_the_words_of_an_estimate(iou: float, images: int, words: str) -> None:
    assert Estimate(iou, images, "a.jpg").words.startswith(words)


def test_one_image_that_is_learned_by_heart_or_small_promises_less() -> None:
    usual = expected_iou(80, 90, 0.1)
    assert 0 < usual < 100
    assert expected_iou(90, 90, 0.1) > usual > expected_iou(80, 100, 0.1)
    assert expected_iou(80, 90, 0.3) > usual > expected_iou(80, 90, 0.01)
    assert (expected_iou(0, 100, 0.0), expected_iou(100, 0, 1.0)) == (0, 100)


def test_the_image_that_is_unlike_the_others_is_named(examples: list[Example]) -> None:
    odd = make_example(make.network(), Labelled("odd", *OTHER), 1)
    verdict = judge(TaughtClass("box", (*examples, odd)), None)
    assert verdict.estimate.hardest == "odd"
    assert verdict.estimate.images == 4
    assert verdict.estimate.iou < judge(TaughtClass("box", tuple(examples)), None).estimate.iou
    assert verdict.threshold in THRESHOLDS.tolist()


def test_the_estimate_of_an_image_rests_on_others(examples: list[Example]) -> None:
    """Wrong labels of an image cannot make its own estimate good, though the row would fit them."""
    wrong = [replace(e, labels=np.where(e.labels <= 1, 1 - e.labels, e.labels)) for e in examples[:1]]
    verdict = judge(TaughtClass("box", (*examples[1:], *wrong)), None)
    assert verdict.estimate.hardest == "shot 0"


@settings(max_examples=8, deadline=None)
@given(st.permutations(range(3)))
def test_the_order_of_support_images_changes_nothing_but_rounding(examples: list[Example], order: list[int]) -> None:
    mixed = [examples[i] for i in order]
    weight, bias, _ = fit_row(examples, None)
    other, offset, _ = fit_row(mixed, None)
    features = examples[0].samples.features.float()
    expected = features @ weight + bias
    assert torch.allclose(features @ other + offset, expected, atol=0.02 * float(expected.abs().max()))
    first, second = (judge(TaughtClass("box", tuple(some)), None) for some in (examples, mixed))
    assert second.threshold == pytest.approx(first.threshold, abs=0.26)  # neighbours of equal merit
    assert second.estimate.iou == pytest.approx(first.estimate.iou, abs=1)


def test_support_images_are_fitted() -> None:
    model = make.model()
    model.teach("box", [image for image, _ in SHOTS], [mask for _, mask in SHOTS])
    for image, mask in SHOTS:
        found = model.segment(image).mask == 4
        assert (found & (mask == 1)).sum() / (found | (mask == 1)).sum() > 0.7


def test_forgetting_restores_every_bit(model: Segmenter) -> None:
    plain = segmented(model)
    model.teach("box", [SHOTS[0][0], SHOTS[1][0]], [SHOTS[0][1], SHOTS[1][1]])
    first, fits = segmented(model), model.fits
    model.teach("blob", *OTHER)
    assert not same(segmented(model)[:1], first[:1])
    model.forget("blob")
    assert same(segmented(model), first)
    assert model.fits[0].verdict == fits[0].verdict
    model.teach("blob", *OTHER)
    model.forget("box")
    only = make.model(refined=model.network.refiner is not None)
    only.teach("blob", *OTHER)
    assert same(segmented(model), segmented(only))
    model.forget("blob")
    assert model.state is None
    assert same(segmented(model), plain)


def test_a_saved_model_is_the_same_model(model: Segmenter, tmp_path: Path) -> None:
    estimate = model.teach("box", [SHOTS[0][0], SHOTS[1][0]], [SHOTS[0][1], SHOTS[1][1]], without=plain_disc(40))
    model.teach("blob", *OTHER)
    model.set_balance("blob", -0.75)
    model.save(tmp_path / "m")
    again = gfss.load(tmp_path / "m")
    assert same(segmented(again), segmented(model))
    assert again.estimate("box") == estimate
    assert (again.balance("box"), again.balance("blob")) == (0.0, -0.75)
    for one in (model, again):
        one.forget("blob")
        one.teach("box", *SHOTS[2], add=True)
    assert same(segmented(again), segmented(model))


def test_renaming_keeps_the_fit(model: Segmenter) -> None:
    model.teach("box", *SHOTS[0])
    before, fits, state = segmented(model), model.fits, model.state
    model.rename("box", "crate")
    assert model.fits is fits
    assert model.state is state
    assert same(segmented(model), before)
    assert model.estimate("crate") == fits[0].verdict.estimate


def test_the_balance_of_one_class_moves_that_class_alone(model: Segmenter) -> None:
    model.teach("box", *SHOTS[0])
    model.teach("blob", *OTHER)
    before = model.segment(QUERIES[0])
    model.set_balance("blob", 50.0)
    assert (model.segment(QUERIES[0]).mask == 5).all()
    model.set_balance("blob", -50.0)
    after = model.segment(QUERIES[0])
    assert not (after.mask == 5).any()
    assert (after.mask[before.mask != 5] == before.mask[before.mask != 5]).all()
    model.set_balance("blob", 0.0)
    assert (model.segment(QUERIES[0]).scores == before.scores).all()


@pytest.mark.parametrize(("name", "value"), [("box", float("nan")), ("box", 101.0), ("dog", 1.0), ("bx", 1.0)])
def test_a_balance_that_cannot_be_is_refused(name: str, value: float) -> None:
    model = make.model()
    model.teach("box", *SHOTS[0])
    with pytest.raises(GfssError):
        model.set_balance(name, value)
    assert model.balance("box") == 0


def test_a_failed_lesson_leaves_the_fit(model: Segmenter) -> None:
    model.teach("box", *SHOTS[0])
    state = model.state
    with pytest.raises(GfssError):
        model.teach("blob", OTHER[0], np.ones_like(OTHER[1]))
    with pytest.raises(GfssError, match="no mask shows 'blob'"):
        model.teach("blob", OTHER[0], np.zeros_like(OTHER[1]))
    assert model.state is state
