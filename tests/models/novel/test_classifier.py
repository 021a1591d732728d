"""Novel classifier: both exact forms against torch.optim on real layers, bad supports, diverging fits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gfss.common.errors import GfssError
from gfss.models.base_model import Features
from gfss.models.novel import classifier as novel
from gfss.models.novel.classifier import (
    NovelClassifier,
    NovelOptions,
    class_weights,
    convolve,
    dual_is_cheaper,
    fit_novel,
    novel_maps,
    patch_gram,
    support_labels,
)

FORMS = ("plain", "dual")
OPTIONS = NovelOptions(hidden=6, momentum=0.9, weight_decay=1e-3)
CHANNELS = 8


def make_maps(episodes: int, supports: int, dtype: torch.dtype = torch.float64, size: int = 7) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    maps = torch.randn(episodes, supports, CHANNELS, size, size, generator=generator, dtype=torch.float64)
    return F.normalize(maps, dim=2).to(dtype)


def make_labels(episodes: int, supports: int, classes: int = 2, side: int = 25) -> Tensor:
    """A square of every class at a random place, the foot void."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.zeros(episodes, supports, side, side, dtype=torch.uint8)
    for image in labels.flatten(0, 1):
        for label in range(1, classes):
            top, left = torch.randint(side // 2, (2,), generator=generator).tolist()
            image[top : top + 6, left : left + 3 + label] = label
    labels[:, :, -3:] = 255
    return labels


def reference(maps: Tensor, labels: Tensor, classes: int, options: NovelOptions) -> nn.Sequential:
    """One episode: maps (supports, channels, h, w), labels (supports, height, width)."""
    first = nn.Conv2d(maps.shape[1], options.hidden, 3, padding=1)
    second = nn.Conv2d(options.hidden, classes, 1)
    start = fit_novel(maps[None], labels[None], classes, replace(options, steps=0))
    head = nn.Sequential(first, nn.ReLU(), second).to(maps.dtype)
    with torch.no_grad():
        first.weight.copy_(start.first[0])
        first.bias.copy_(start.first_bias[0])  # type: ignore[union-attr]
        second.weight.copy_(start.second[0][..., None, None])
        second.bias.copy_(start.second_bias[0])  # type: ignore[union-attr]
    counts = [int((labels == label).sum()) for label in range(classes)]
    weights = torch.tensor([counts[0] / count for count in counts], dtype=maps.dtype)
    optimiser = torch.optim.SGD(
        head.parameters(), lr=options.rate, momentum=options.momentum, weight_decay=options.weight_decay
    )
    for _ in range(options.steps):
        full = F.interpolate(head(maps), size=labels.shape[-2:], mode="bilinear", align_corners=True)
        loss = F.cross_entropy(full, labels.long(), weights, ignore_index=255)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return head


def parts(classifier: NovelClassifier, episode: int = 0) -> list[Tensor]:
    return [
        classifier.first[episode],
        classifier.first_bias[episode],
        classifier.second[episode],
        classifier.second_bias[episode],
    ]


def assert_near(ours: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    for mine, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=tolerance)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-9)])
@pytest.mark.parametrize(("supports", "classes"), [(1, 2), (2, 4)])
def test_fifty_steps_equal_torch_optim(
    form: str, dtype: torch.dtype, tolerance: float, supports: int, classes: int
) -> None:
    maps, labels = make_maps(1, supports, dtype), make_labels(1, supports, classes)
    fitted = fit_novel(maps, labels, classes, OPTIONS, form=form)
    with torch.random.fork_rng():
        head = reference(maps[0], labels[0], classes, OPTIONS)
    weights = list(head.state_dict().values())
    weights[2] = weights[2][..., 0, 0]
    assert_near(parts(fitted), weights, tolerance)
    queries = make_maps(3, 1, dtype, size=9)[:, 0]
    torch.testing.assert_close(fitted.logits(queries), head(queries).detach(), rtol=0, atol=tolerance)


@pytest.mark.parametrize("supports", [1, 2])
def test_positions_that_no_labelled_pixel_hears_of_change_nothing(supports: int) -> None:
    """Images that are not square leave a void frame; the dual form leaves its positions out."""
    maps, labels = make_maps(2, supports), make_labels(2, supports)
    labels[:, :, 15:] = 255
    labels[0, :, :, :6] = 255
    dual, plain = (fit_novel(maps, labels, 2, OPTIONS, form=form) for form in ("dual", "plain"))
    for episode in range(2):
        assert_near(parts(dual, episode), parts(plain, episode), 1e-9)
    other = maps.clone()
    other[:, :, :, 6] = 0  # two rows below the last labelled pixel: not even in a patch of a position that is heard
    assert_near(parts(fit_novel(other, labels, 2, OPTIONS, form="dual")), parts(dual), 1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_fitting_learns_the_support(form: str) -> None:
    """The equality above would also hold for two fits that do nothing."""
    labels = make_labels(1, 1)
    maps = make_maps(1, 1)
    coarse = F.interpolate((labels == 1).double(), size=(7, 7), mode="area")
    maps[:, :, 0] += 3 * coarse
    options = replace(OPTIONS, rate=0.3)
    before, after = (fit_novel(maps, labels, 2, replace(options, steps=steps), form=form) for steps in (0, 50))

    def precision(classifier: NovelClassifier) -> float:
        predicted = F.interpolate(classifier.logits(maps[0]), size=(25, 25), mode="bilinear").argmax(dim=1)
        return float((predicted == labels[0])[labels[0] != 255].double().mean())

    assert precision(after) > 0.9
    assert precision(after) > precision(before)


@pytest.mark.parametrize("form", FORMS)
def test_a_batch_of_episodes_equals_single_ones(form: str) -> None:
    maps, labels = make_maps(3, 2), make_labels(3, 2)
    together = fit_novel(maps, labels, 2, OPTIONS, form=form)
    for episode in range(3):
        alone = fit_novel(maps[episode, None], labels[episode, None], 2, OPTIONS, form=form)
        assert_near(parts(together, episode), parts(alone), 1e-9)
        queries = make_maps(1, 2, size=9)[0]
        torch.testing.assert_close(together.logits(queries, episode), alone.logits(queries), rtol=0, atol=1e-9)


def test_fitting_is_a_pure_function_of_its_seed() -> None:
    maps, labels = make_maps(1, 1), make_labels(1, 1)
    state = torch.get_rng_state()
    first = fit_novel(maps, labels, 2, OPTIONS, seed=3)
    fit_novel(make_maps(2, 1, size=9), make_labels(2, 1), 2, OPTIONS, seed=4)
    assert all(
        torch.equal(a, b) for a, b in zip(parts(first), parts(fit_novel(maps, labels, 2, OPTIONS, 3)), strict=True)
    )
    assert not torch.equal(first.first, fit_novel(maps, labels, 2, OPTIONS, seed=4).first)
    assert torch.equal(torch.get_rng_state(), state)


def test_initial_weights_are_those_of_torch_convolutions() -> None:
    start = fit_novel(make_maps(1, 1), make_labels(1, 1), 2, NovelOptions(hidden=64, steps=0))
    for weights, inputs in ((start.first, 9 * CHANNELS), (start.first_bias, 9 * CHANNELS), (start.second, 64)):
        bound = inputs**-0.5
        assert weights.abs().max() <= bound
        assert float(weights.std()) == pytest.approx(bound / 3**0.5, rel=0.2)


@pytest.mark.parametrize("form", FORMS)
def test_fitting_works_in_inference_mode(form: str) -> None:
    expected = fit_novel(make_maps(1, 1), make_labels(1, 1), 2, OPTIONS, form=form)
    with torch.inference_mode():
        fitted = fit_novel(make_maps(1, 1), make_labels(1, 1), 2, OPTIONS, form=form)
    assert_near(parts(fitted), parts(expected), 1e-12)


@pytest.mark.parametrize(
    ("supports", "size", "channels", "hidden", "steps", "form"),
    [
        (1, 53, 512, 512, 50, "dual"),  # the paper
        (5, 53, 512, 512, 50, "plain"),  # too many positions
        (1, 27, 560, 64, 50, "dual"),
        (1, 53, 16, 64, 50, "plain"),  # few channels: patches are shorter than the maps are large
        (1, 53, 512, 512, 1, "plain"),  # the matrix of products does not pay for a single step
    ],
)
def test_the_form_with_fewer_operations_is_taken(
    supports: int, size: int, channels: int, hidden: int, steps: int, form: str
) -> None:
    maps = torch.empty(1, supports, channels, size, size, device="meta")
    assert dual_is_cheaper(maps, hidden, steps) == (form == "dual")


@pytest.mark.parametrize("shape", [(1, 5, 6, 7), (3, 4, 2, 1), (2, 3, 1, 1)])
def test_convolution_by_shifted_products(shape: tuple[int, int, int, int]) -> None:
    maps, weights = torch.randn(shape, dtype=torch.float64), torch.randn(6, shape[1], 3, 3, dtype=torch.float64)
    torch.testing.assert_close(convolve(maps, weights), torch.conv2d(maps, weights, padding=1), rtol=0, atol=1e-12)


def test_patch_products_are_those_of_unfolded_patches() -> None:
    maps = make_maps(2, 3)[..., :5]  # 7 x 5
    patches = F.unfold(maps.flatten(0, 1), 3, padding=1).transpose(1, 2)  # (images, positions, 9 channels)
    rows = patches.reshape(2, 3 * 35, -1)
    torch.testing.assert_close(patch_gram(maps), rows @ rows.transpose(1, 2), rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_a_diverging_episode_is_repeated_with_smaller_steps_and_alone(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    maps, labels = make_maps(3, 1, torch.float32), make_labels(3, 1)
    maps[1] *= 1000
    options = NovelOptions(hidden=4)
    together = fit_novel(maps, labels, 2, options, form=form)
    for episode, rate in ((0, options.rate), (1, options.rate / 2), (2, options.rate)):
        given = replace(options, rate=rate)
        alone = fit_novel(maps[episode, None], labels[episode, None], 2, given, form=form)
        for ours, expected in zip(parts(together, episode), parts(alone), strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-6)
    monkeypatch.setattr(novel, "HALVINGS", 0)
    fit_novel(maps[::2], labels[::2], 2, options, form=form)
    with pytest.raises(GfssError, match="diverges"):
        fit_novel(maps, labels, 2, options, form=form)


@pytest.mark.parametrize("form", FORMS)
def test_a_fit_that_cannot_be_saved_is_refused(form: str) -> None:
    with pytest.raises(GfssError, match=r"diverges even with tiny steps; check the support features$"):
        fit_novel(1e6 * make_maps(1, 1, torch.float32), make_labels(1, 1), 2, NovelOptions(hidden=4), form=form)


def test_weights_balance_the_classes() -> None:
    labels = torch.tensor([[[[0, 0, 0, 1], [0, 2, 2, 255]]], [[[0, 1, 1, 1], [1, 2, 0, 0]]]])
    assert class_weights(labels, 3).tolist() == [[1, 4, 2], [1, 0.75, 3]]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ({}, r"^a support mask is void everywhere; label the object in it$"),
        ({0: 0}, r"^a support mask has no pixel of the class to learn; label the object in it$"),
        ({0: 1}, r"^a support mask shows only the class and nothing else; label it so that some background is left$"),
    ],
)
def test_supports_that_teach_nothing_are_refused(spoil: dict[int, int], message: str) -> None:
    labels = make_labels(2, 1)
    labels[1] = 255
    for row, label in spoil.items():
        labels[1, :, row] = label
    with pytest.raises(GfssError, match=message):
        fit_novel(make_maps(2, 1), labels, 2, OPTIONS)


def test_one_missing_class_of_several_is_refused() -> None:
    with pytest.raises(GfssError, match="no pixel of the class to learn"):
        fit_novel(make_maps(1, 2), make_labels(1, 2, classes=3), 4, OPTIONS)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_features_that_are_no_numbers_are_refused(value: float) -> None:
    maps = make_maps(1, 1)
    maps[0, 0, 2, 3, 3] = value
    with pytest.raises(GfssError, match=r"^the support features hold NaN or infinite values; rebuild the feature bank"):
        fit_novel(maps, make_labels(1, 1), 2, OPTIONS)


def test_queries_of_other_features_are_refused() -> None:
    fitted = fit_novel(make_maps(1, 1), make_labels(1, 1), 2, replace(OPTIONS, steps=1))
    with pytest.raises(GfssError, match=r"^the novel classifier was fitted on 8 channels, these features have 5; use"):
        fitted.logits(torch.zeros(1, 5, 7, 7, dtype=torch.float64))


def test_support_labels_keep_void_and_forget_base_classes() -> None:
    labels = torch.tensor([[0, 3, 17, 16, 255, 1]], dtype=torch.uint8)
    assert support_labels(labels, [17, 16]).tolist() == [[0, 0, 1, 2, 255, 0]]
    assert labels.tolist() == [[0, 3, 17, 16, 255, 1]]


def test_each_map_is_normalised_by_itself() -> None:
    generator = torch.Generator().manual_seed(0)
    level, bottleneck = (torch.randn(2, count, 3, 4, generator=generator) for count in (5, 3))
    features = Features({"layer4": level}, (), bottleneck, bottleneck)
    options = NovelOptions(features=("bottleneck", "layer4"))
    expected = torch.cat([bottleneck / bottleneck.norm(dim=1)[:, None], level / level.norm(dim=1)[:, None]], dim=1)
    torch.testing.assert_close(novel_maps(features, options), expected)
    raw = novel_maps(features, replace(options, normalise=False))
    assert torch.equal(raw, torch.cat([bottleneck, level], dim=1))
