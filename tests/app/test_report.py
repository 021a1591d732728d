"""Sentences of the before/after report."""

from __future__ import annotations

from gfss.app.report import Loss


def test_a_loss_names_the_images_where_it_is() -> None:
    loss = Loss("dog", "the support images", 11.44, ("shot1", "shot2"))
    assert loss.sentence() == "'dog' loses 11.4 points of IoU on the support images, most in shot1, shot2"


def test_a_loss_without_lost_pixels_names_no_image() -> None:
    assert Loss("dog", "the val images", 3.0, ()).sentence() == "'dog' loses 3.0 points of IoU on the val images"
