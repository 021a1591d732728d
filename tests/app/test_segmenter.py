"""Teach, segment, forget, save: what a practitioner sees."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.app import make

import gfss
from gfss.app.model_folder import LOCK
from gfss.app.regression_check import support_cases
from gfss.app.segmenter import Segmenter
from gfss.common.errors import GfssError

SHOTS = [make.labelled(1), make.labelled(2)]
OTHER = make.picture(7), np.pad(np.ones((20, 30), dtype=np.uint8), ((14, 14), (17, 17)))
QUERY, TRUTH = make.labelled(5)
SAVED = ("card.md", "model-*.safetensors", "model.json")


@pytest.fixture
def model() -> Segmenter:
    return make.model()


@pytest.fixture(scope="module")
def taught() -> Segmenter:
    model = make.model()
    model.teach("box", [SHOTS[0][0], SHOTS[1][0]], [SHOTS[0][1], SHOTS[1][1]])
    return model


def same(one: Segmenter, other: Segmenter, image: np.ndarray = QUERY) -> bool:
    """Whether two models give the same probabilities, bit for bit."""
    return one.classes == other.classes and (one.segment(image).scores == other.segment(image).scores).all()


def test_a_taught_class_is_found_where_it_is(taught: Segmenter) -> None:
    result = taught.segment(QUERY)
    assert result.classes == ("background", *make.BASE, "box")
    assert result.mask.shape == QUERY.shape[:2]
    found = result.mask == result.classes.index("box")
    assert found[TRUTH == 1].mean() > 2 * found[TRUTH == 0].mean()
    assert set(result.found) <= set(result.classes[1:])
    assert result.scores.shape == (5, *QUERY.shape[:2])
    assert (result.scores.argmax(axis=0) == result.mask).mean() > 0.999


def test_a_larger_balance_finds_more(taught: Segmenter) -> None:
    shares = [taught.segment(QUERY, balance=value).found.get("box", 0.0) for value in (-50.0, -1.0, 0.0, 1.0, 50.0)]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)


def test_paths_arrays_and_pictures_are_the_same(taught: Segmenter, tmp_path: Path) -> None:
    Image.fromarray(QUERY).save(tmp_path / "q.png")
    masks = [taught.segment(source).mask for source in (QUERY, Image.fromarray(QUERY), tmp_path / "q.png")]
    assert all((mask == masks[0]).all() for mask in masks)


def test_forgetting_restores_the_earlier_behaviour_bit_for_bit(model: Segmenter) -> None:
    plain = model.segment(QUERY).scores
    model.teach("box", *SHOTS[0])
    first = model.segment(QUERY).scores
    model.teach("blob", *OTHER)
    both = model.segment(QUERY).scores
    model.forget("blob")
    assert (model.segment(QUERY).scores == first).all()
    model.teach("blob", *OTHER)
    assert (model.segment(QUERY).scores == both).all()
    model.forget("blob")
    model.forget("box")
    assert (model.segment(QUERY).scores == plain).all()


def test_forgetting_an_earlier_class_is_never_having_taught_it(model: Segmenter) -> None:
    model.teach("box", *SHOTS[0])
    model.teach("blob", *OTHER)
    model.forget("box")
    other = make.model()
    other.teach("blob", *OTHER)
    assert same(model, other)


def test_teaching_again_adds_support(model: Segmenter, taught: Segmenter) -> None:
    model.teach("box", *SHOTS[0])
    model.teach("box", *SHOTS[1], add=True)
    assert same(model, taught)
    assert [example.lesson for example in model.taught[0].examples] == [1, 2]
    report = model.report()
    assert "box" in [row.name for row in report.sections[0].rows if row.known]


def test_an_image_of_two_classes_shows_both(model: Segmenter) -> None:
    """Each mask shows one class only; the report knows that both are there."""
    image, mask = SHOTS[0]
    other = np.zeros_like(mask)
    other[:10, :10] = 1
    model.teach("box", image, mask)
    model.teach("corner", image, np.where(mask == 1, 0, other))
    (case,) = support_cases(model.taught, model.classes)
    assert {4, 5} <= set(np.unique(case.truth).tolist())
    assert (case.truth == 4).sum() == (model.taught[0].examples[0].labels == 1).sum()


def test_a_failed_lesson_changes_nothing(taught: Segmenter) -> None:
    before = taught.segment(QUERY).scores
    with pytest.raises(GfssError):
        taught.teach("blob", OTHER[0], np.ones_like(OTHER[1]))
    assert taught.classes[-1] == "box"
    assert (taught.segment(QUERY).scores == before).all()


@pytest.mark.parametrize(
    ("name", "mask", "options", "sentence"),
    [
        ("thing", np.zeros_like(OTHER[1]), {}, "no mask shows 'thing'; label the object in at least one image"),
        ("thing", np.ones_like(OTHER[1]), {}, "shows only the class and nothing else"),
        ("thing", OTHER[1][:-1], {}, "they must have the same size"),
        ("thing", OTHER[1], {"add": True}, "'thing' was not taught yet"),
        ("box", OTHER[1], {}, "'box' is already a class"),
        ("dog", OTHER[1], {}, "'dog' is already a base class"),
        ("background", OTHER[1], {}, "'background' is already a base class"),
        ("", OTHER[1], {}, "invalid class name"),
    ],
)
def test_wrong_lessons_get_one_sentence(
    taught: Segmenter, name: str, mask: np.ndarray, options: dict, sentence: str
) -> None:
    with pytest.raises(GfssError, match=sentence):
        taught.teach(name, OTHER[0], mask, **options)


def test_the_same_image_twice_and_a_speck_are_refused(taught: Segmenter) -> None:
    with pytest.raises(GfssError, match="already taught from image 1; give every image once"):
        taught.teach("box", *SHOTS[0], add=True)
    image, mask = OTHER
    with pytest.raises(GfssError, match="image 1 and image 2 are the same image; leave one of them out"):
        taught.teach("thing", [image, image.copy()], [mask, mask])
    large = make.picture(3, 480, 640)
    speck = np.zeros((480, 640), dtype=np.uint8)
    speck[3, 3] = 1
    with pytest.raises(GfssError, match="too small to be seen at 65 pixels"):
        taught.teach("speck", large, speck)


def test_unknown_and_base_classes_cannot_be_forgotten(taught: Segmenter) -> None:
    with pytest.raises(GfssError, match=r"unknown class 'bx'; did you mean 'box'\?"):
        taught.forget("bx")
    with pytest.raises(GfssError, match="'dog' is a base class"):
        taught.forget("dog")


def test_renaming_keeps_everything_else(taught: Segmenter, tmp_path: Path) -> None:
    taught.save(tmp_path / "m")
    model = gfss.load(tmp_path / "m")
    model.rename("box", "crate")
    assert model.classes[-1] == "crate"
    assert (model.segment(QUERY).scores == taught.segment(QUERY).scores).all()
    with pytest.raises(GfssError, match="already a base class"):
        model.rename("crate", "cat")


def test_a_saved_model_is_the_same_model(tmp_path: Path) -> None:
    model = make.model()
    model.teach("box", *SHOTS[0])
    model.save(tmp_path / "m")
    again = gfss.load(tmp_path / "m")
    assert same(model, again)
    again.teach("blob", *OTHER)
    model.teach("blob", *OTHER)
    assert same(model, again)
    names = sorted(path.name for path in (tmp_path / "m").iterdir() if path.name != LOCK)
    assert all(fnmatch(name, pattern) for name, pattern in zip(names, SAVED, strict=True))


def test_images_are_kept_only_if_wanted(taught: Segmenter, tmp_path: Path) -> None:
    taught.save(tmp_path / "without")
    taught.save(tmp_path / "with", keep_images=True)
    assert gfss.load(tmp_path / "without").taught[0].examples[0].image is None
    kept = gfss.load(tmp_path / "with").taught[0].examples[0].image
    assert kept is not None
    assert (kept == taught.taught[0].examples[0].image).all()
    sizes = [next((tmp_path / name).glob("model-*")).stat().st_size for name in ("without", "with")]
    assert sizes[0] < sizes[1]


def test_the_card_tells_what_was_taught(taught: Segmenter, tmp_path: Path) -> None:
    taught.report()
    taught.save(tmp_path / "m")
    card = (tmp_path / "m" / "card.md").read_text()
    digest = taught.taught[0].examples[0].sha256[:16]
    for text in (
        "cat, dog, tree",
        "### box",
        "image 1",
        digest,
        "Estimated IoU",
        "balance 0",
        "torch",
        "| box | 0.0 |",
    ):
        assert text in card


def test_large_images_are_tiled_when_asked(taught: Segmenter) -> None:
    large = np.tile(QUERY, (4, 3, 1))
    tiled, whole = taught.segment(large, tile=True), taught.segment(large)
    assert tiled.mask.shape == whole.mask.shape == large.shape[:2]
    assert (tiled.mask != whole.mask).any()
    assert (tiled.scores.argmax(axis=0) == tiled.mask).all()
    small = taught.segment(QUERY, tile=True)
    assert (small.mask == taught.segment(QUERY).mask).all()


def test_results_are_saved_as_index_png(taught: Segmenter, tmp_path: Path) -> None:
    result = taught.segment(QUERY)
    written = result.save(tmp_path / "out" / "yard.jpg", overlay=True, scores=True)
    assert [path.name for path in written] == ["yard.jpg.png", "yard.jpg_overlay.jpg", "yard.jpg_scores.npz"]
    with Image.open(written[0]) as file:
        assert file.mode == "P"
        assert (np.asarray(file) == result.mask).all()
    with np.load(written[2]) as file:
        assert tuple(file["classes"]) == result.classes
        assert np.abs(file["scores"] - result.scores).max() < 1e-3


def test_models_are_found_by_name_or_path(tmp_path: Path) -> None:
    with pytest.raises(GfssError, match="unknown model 'no-such-model'"):
        gfss.load("no-such-model")
    with pytest.raises(GfssError, match="is not a model; expected a folder written by gfss teach or gfss run"):
        gfss.load(tmp_path)
