"""What calibrators promise: where they start, classes in any order and number, maps of any size, names of weights."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models.calibrators.cases import (
    ATTENTION,
    DEFAULT,
    SIZE,
    make_calibrator,
    make_features,
    make_scores,
    make_similarity,
    reorder,
)
from torch import Tensor, nn

from gfss.common.errors import GfssError
from gfss.models.base_model import Features
from gfss.models.calibrators.calibrator import AS_PRINTED, PRESETS, Calibrator, CalibratorOptions
from gfss.models.calibrators.cross_covariance import cosine_basis
from gfss.models.calibrators.pcn_support import SimilarityMaps, log_odds_scores
from gfss.models.ops.upsample import upsample


@pytest.mark.parametrize(
    "options", [PRESETS["pixel"], replace(AS_PRINTED, zero_head=True), replace(AS_PRINTED, zero_head=True, scale=3.0)]
)
def test_an_untrained_calibrator_with_a_zero_head_gives_the_fused_scores(options: CalibratorOptions) -> None:
    fused, features = make_scores(dtype=torch.float32), make_features(dtype=torch.float32)
    ours = Calibrator(replace(options, dimension=12), SIZE)(fused, features, 1)
    assert torch.equal(ours, fused if options.scale is None else options.scale * fused)
    assert torch.equal(ours.argmax(dim=1), fused.argmax(dim=1))


@pytest.mark.parametrize("options", [DEFAULT, ATTENTION], ids=["default", "with attention"])
@pytest.mark.parametrize("novel", [1, 3])
def test_an_untrained_exchange_starts_at_the_log_odds_rule(options: CalibratorOptions, novel: int) -> None:
    options = replace(options, dimension=12, scale=2.5)
    fused, similarity = make_scores(novel=novel, dtype=torch.float32), make_similarity(novel=novel, dtype=torch.float32)
    ours = Calibrator(options, SIZE)(fused, make_features(dtype=torch.float32), novel, similarity)
    start = log_odds_scores(similarity.score_fusion, novel)
    torch.testing.assert_close(ours, 2.5 * fused + start, rtol=0, atol=1e-6)


def test_the_default_scale_is_one() -> None:
    calibrator = Calibrator(replace(DEFAULT, dimension=12), SIZE)
    assert calibrator.scale is not None
    assert calibrator.scale.item() == 1
    fused, similarity = make_scores(dtype=torch.float32), make_similarity(dtype=torch.float32)
    ours = calibrator(fused, make_features(dtype=torch.float32), 1, similarity)
    start = log_odds_scores(similarity.score_fusion, 1)
    torch.testing.assert_close(ours, fused + start, rtol=0, atol=1e-6)


@pytest.mark.parametrize("options", [DEFAULT, ATTENTION], ids=["default", "with attention"])
@pytest.mark.parametrize("novel", [1, 3])
def test_zero_heads_give_exactly_the_scaled_scores(options: CalibratorOptions, novel: int) -> None:
    calibrator = make_calibrator(options, torch.float32)
    assert calibrator.class_interaction is not None
    assert calibrator.scale is not None
    for part in (calibrator.attention, calibrator.class_interaction):
        for weight in part.head.parameters() if part is not None else ():
            nn.init.zeros_(weight)
    fused, similarity = make_scores(novel=novel, dtype=torch.float32), make_similarity(novel=novel, dtype=torch.float32)
    ours = calibrator(fused, make_features(dtype=torch.float32), novel, similarity)
    assert torch.equal(ours, calibrator.scale * fused)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(sorted(PRESETS)), st.permutations(range(1, 5)), st.permutations(range(3)))
def test_permuting_classes_permutes_the_output(name: str, base: list[int], novel: list[int]) -> None:
    """Base classes by themselves, novel ones together with their similarity."""
    calibrator, fused, features = make_calibrator(PRESETS[name]), make_scores(base=4, novel=3), make_features()
    similarity = make_similarity(4, 3)
    order = [0, *base, *(5 + k for k in novel)]
    expected = calibrator(fused, features, 3, similarity)[:, order]
    ours = calibrator(fused[:, order], features, 3, reorder(similarity, order))
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", PRESETS)
def test_the_number_of_classes_is_free(name: str) -> None:
    calibrator, features = make_calibrator(PRESETS[name]), make_features()
    for base, novel in ((1, 1), (3, 2), (9, 4)):
        fused = make_scores(base, novel)
        result = calibrator(fused, features, novel, make_similarity(base, novel))
        assert result.shape == fused.shape
        assert result.isfinite().all()


def test_without_exchange_a_class_does_not_depend_on_the_others() -> None:
    calibrator, fused, features = make_calibrator(AS_PRINTED), make_scores(base=5), make_features()
    few = calibrator(fused[:, :3], features, 1)
    torch.testing.assert_close(calibrator(fused, features, 1)[:, :3], few, rtol=0, atol=1e-10)


@pytest.mark.parametrize("options", [DEFAULT, ATTENTION], ids=["default", "with attention"])
def test_images_of_a_batch_do_not_touch_each_other(options: CalibratorOptions) -> None:
    calibrator, fused, features, similarity = (
        make_calibrator(options),
        make_scores(),
        make_features(),
        make_similarity(),
    )
    alone = calibrator(fused[1:], features[1:], 1, SimilarityMaps(*(part[1:] for part in similarity)))
    torch.testing.assert_close(calibrator(fused, features, 1, similarity)[1:], alone, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "name", ["pcn-support", "pcn-support-attention", "pcn", "pcn-as-printed", "self-attention", "pixel"]
)
@pytest.mark.parametrize("size", [(9, 11), (6, 6), (14, 5)])
def test_maps_of_another_size_are_taken(name: str, size: tuple[int, int]) -> None:
    calibrator = make_calibrator(PRESETS[name])
    fused = make_scores(size=size)
    result = calibrator(fused, make_features(size), 1, make_similarity(size=size))
    assert result.shape == fused.shape
    assert result.isfinite().all()


@pytest.mark.parametrize("normalise", [False, True])
def test_larger_maps_of_the_same_image_are_calibrated_alike(normalise: bool) -> None:
    trained, larger = (12, 12), (24, 24)
    options = replace(
        ATTENTION, normalise=normalise, dimension=6, class_interaction=False, scale=None, features=("layer4",)
    )
    calibrator = Calibrator(options, trained).double()
    assert calibrator.attention is not None
    calibrator.attention.head.weight.data = calibrator.attention.query.data.T.clone()
    scores, features = make_scores(size=(3, 3)), make_features((3, 3))

    def offset(size: tuple[int, int]) -> Tensor:
        fused = upsample(scores, size)
        level = upsample(features.levels["layer4"], size)
        return calibrator(fused, Features({"layer4": level}, (), level, level), 1) - fused

    expected = upsample(offset(trained), larger)
    error = (offset(larger) - expected).norm() / expected.norm()
    assert error < 0.15


def test_attention_dropout_acts_in_training_alone() -> None:
    options = replace(ATTENTION, dropout=0.5)
    calibrator, given = make_calibrator(options), (make_scores(), make_features(), 1, make_similarity())
    certain = calibrator(*given)
    torch.testing.assert_close(certain, make_calibrator(ATTENTION)(*given), rtol=0, atol=1e-12)
    assert not torch.allclose(calibrator.train()(*given), certain)


def test_weight_names_that_checkpoints_hold() -> None:
    attention = {f"attention.{name}" for name in ("query", "key", "value", "head.weight", "head.bias")}
    layers = ("novel_layers.0", "novel_layers.2", "novel_embedding")
    class_interaction = {f"class_interaction.{layer}.{part}" for layer in layers for part in ("weight", "bias")}
    class_interaction |= {"class_interaction.class_layer.weight", "class_interaction.head.weight", "scale"}
    pixel = {f"pixel.{layer}.{part}" for layer in ("first", "second") for part in ("weight", "bias")}
    assert Calibrator(DEFAULT, SIZE).state_dict().keys() == class_interaction
    assert Calibrator(ATTENTION, SIZE).state_dict().keys() == attention | class_interaction | {"attention.temperature"}
    assert Calibrator(AS_PRINTED, SIZE).state_dict().keys() == attention
    assert Calibrator(PRESETS["pixel"], SIZE).state_dict().keys() == pixel | {"scale"}


def test_what_calibrators_look_at() -> None:
    reading = {
        name: (calibrator.reads_features, calibrator.reads_similarity)
        for name, calibrator in ((name, make_calibrator(options)) for name, options in PRESETS.items())
    }
    assert {name for name, (features, _) in reading.items() if features} == {
        "pcn-support-attention",
        "pcn-as-printed",
        "pcn",
    }
    assert {name for name, (_, similarity) in reading.items() if similarity} == {
        "pcn-support",
        "pcn-support-same-model",
        "pcn-support-attention",
    }
    for name, (features, similarity) in reading.items():
        result = make_calibrator(PRESETS[name])(
            make_scores(), make_features() if features else None, 1, make_similarity() if similarity else None
        )
        assert result.isfinite().all()


def test_only_compared_maps_count_for_the_size_of_the_similarity() -> None:
    options = replace(ATTENTION, features=("layer4", "pooled"), compared=("bottleneck",))
    result = make_calibrator(options)(make_scores(novel=2), make_features(), 2, make_similarity(novel=2, maps=1))
    assert result.isfinite().all()


def test_missing_evidence_is_said_in_one_sentence() -> None:
    with pytest.raises(
        GfssError, match=r"^this calibrator needs the similarity maps of support and query; pass them, or use"
    ):
        make_calibrator(DEFAULT)(make_scores(), make_features(), 1)


def test_cosine_patterns_are_orthonormal_and_smooth_first() -> None:
    basis = cosine_basis(SIZE, 20).double()
    torch.testing.assert_close(basis @ basis.T, torch.eye(20, dtype=torch.float64), rtol=0, atol=1e-6)
    maps = basis.view(20, *SIZE)
    roughness = maps.diff(dim=1).square().sum(dim=(1, 2)) + maps.diff(dim=2).square().sum(dim=(1, 2))
    assert roughness[0] < 1e-12  # the first pattern is constant
    assert roughness[:5].max() < roughness[-5:].min()


def test_more_patterns_than_positions_are_zero() -> None:
    basis = cosine_basis((2, 3), 8)
    assert basis.shape == (8, 6)
    assert (basis[6:] == 0).all()
    assert (basis[:6].norm(dim=1) - 1).abs().max() < 1e-6


def test_wrong_options_and_sizes_are_refused() -> None:
    with pytest.raises(GfssError, match=r"^d = 12 cannot be split into 5 heads$"):
        Calibrator(replace(ATTENTION, dimension=12, heads=5), SIZE)
    with pytest.raises(GfssError, match=r"unknown calibrator 'pixels'; did you mean 'pixel'\?.*cross-covariance"):
        Calibrator(replace(DEFAULT, kind="pixels"), SIZE)  # type: ignore[arg-type]
    with pytest.raises(GfssError, match=r"^a linear calibrator works on 7 x 8 maps only, these are 9 x 9"):
        make_calibrator(PRESETS["linear"])(make_scores(size=(9, 9)), make_features((9, 9)), 1)
    with pytest.raises(GfssError, match="unknown feature 'layer5'"):
        make_calibrator(replace(ATTENTION, features=("layer5",)))(make_scores(), make_features(), 1)
