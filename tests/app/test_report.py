"""Sentences of the before/after report."""

from __future__ import annotations

import numpy as np

from gfss.app.report import Change, Loss, _example


def test_a_loss_names_the_images_where_it_is() -> None:
    loss = Loss("dog", "the support images", 11.44, ("shot1", "shot2"))
    assert loss.sentence() == "'dog' loses 11.4 points of IoU on the support images, most in shot1, shot2"


def test_a_loss_without_lost_pixels_names_no_image() -> None:
    assert Loss("dog", "the val images", 3.0, ()).sentence() == "'dog' loses 3.0 points of IoU on the val images"


def test_examples_show_the_labels_without_padding_and_name_the_colours() -> None:
    truth = np.full((8, 8), 255, dtype=np.uint8)
    truth[:5, :6] = 0  # the rest of the square is padding
    truth[1, 1] = 2
    after = np.full((8, 8), 1, dtype=np.uint8)
    shown = _example(
        Change("a.jpg", {"dog": 1}, truth, after, np.zeros((8, 8, 3), np.uint8), truth), ("background", "cat", "dog")
    )
    assert [word for word, _ in shown["views"]] == ["image", "before", "labels", "after"]  # truth beside prediction
    assert [view.shape for _, view in shown["views"]] == [(5, 6, 3)] * 4
    assert [name for name, _ in shown["legend"]] == ["cat", "dog"]
    assert len({colour for _, colour in shown["legend"]}) == 2


def test_an_image_whose_lower_half_has_no_known_class_is_shown_whole() -> None:
    truth = np.full((8, 8), 255, dtype=np.uint8)
    truth[:3, :6] = 1
    image = np.zeros((8, 8, 3), np.uint8)
    change = Change("a.jpg", {}, truth, np.where(truth == 1, 1, 0), image, truth, 0.25, content=(7, 6))
    shown = _example(change, ("background", "cat"))
    assert {view.shape for _, view in shown["views"]} == {(7, 6, 3)}
    assert shown["caption"] == "a.jpg: nothing lost; 25.0% of the labelled pixels are wrong after"
    assert shown["legend"][-1] == ("not judged", "#ffffff")
