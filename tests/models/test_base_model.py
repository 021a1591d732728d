"""Pyramid head: the fast path, the features by name, and the paper's architecture in numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gfss.common.errors import GfssError
from gfss.models.base_model import BINS, Features, PyramidHead, concatenate
from gfss.models.encoders.resnet import ResNet

LEVELS = {"layer3": 6, "layer4": 8}


def random_levels(size: tuple[int, int] = (7, 9), seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: 3 * torch.randn(2, count, *size, generator=generator) + 1 for name, count in LEVELS.items()}


def make_head(separable: bool, **options: int) -> PyramidHead:
    """A head in evaluation mode with random batch-norm statistics, so that none of its parts is an identity."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        head = PyramidHead(LEVELS, classes=5, pyramid=4, width=10, separable=separable, **options)
        for module in head.modules():
            if isinstance(module, nn.BatchNorm2d):
                for tensor in (module.weight.data, module.bias.data, module.running_mean, module.running_var):
                    assert tensor is not None
                    tensor.uniform_(0.5, 1.5)
    head.standardise(random_levels(seed=1))
    return head.eval()


def reference(head: PyramidHead, levels: dict[str, Tensor]) -> tuple[list[Tensor], Tensor, Tensor]:
    """PSPNet as usually written: pool, convolve, upsample, concatenate; (upsampled branches, bottleneck, logits)."""
    x = torch.cat([levels["layer3"], levels["layer4"]], dim=1)
    x = (x - head.feature_mean) / head.feature_std
    branches: list[Tensor] = []
    for bins, branch in zip((1, 2, 3, 6), head.branches, strict=True):
        small = branch(F.adaptive_avg_pool2d(x, bins))
        branches.append(F.interpolate(small, size=x.shape[-2:], mode="bilinear", align_corners=True))
    bottleneck = head.bottleneck(head.mix(torch.cat([x, *branches], dim=1)))
    return branches, bottleneck, head.classifier(bottleneck)


@pytest.mark.parametrize("separable", [True, False])
@torch.no_grad()
def test_head_equals_the_plain_concatenation(separable: bool) -> None:
    head, levels = make_head(separable), random_levels()
    features = head(levels)
    branches, bottleneck, base = reference(head, levels)
    torch.testing.assert_close(features.named(["pooled"]), torch.cat(branches, dim=1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(features.bottleneck, bottleneck, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(features.base, base, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("separable", [True, False])
def test_head_has_the_gradients_of_the_plain_concatenation(separable: bool) -> None:
    head, levels = make_head(separable), random_levels()
    weights = list(head.parameters())
    ours = torch.autograd.grad(head(levels).base.square().sum(), weights)
    expected = torch.autograd.grad(reference(head, levels)[2].square().sum(), weights)
    for mine, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-3)


@torch.no_grad()
def test_standardised_levels_have_mean_zero_and_spread_one() -> None:
    head = make_head(separable=True)
    for level in head(random_levels(seed=1)).levels.values():
        torch.testing.assert_close(level.mean(dim=(0, 2, 3)), torch.zeros(level.shape[1]), rtol=0, atol=1e-5)
        torch.testing.assert_close(level.std(dim=(0, 2, 3)), torch.ones(level.shape[1]), rtol=0, atol=1e-4)


def test_a_constant_channel_does_not_become_infinite() -> None:
    head, levels = make_head(separable=True), random_levels()
    levels["layer3"][:, 0] = 4
    head.standardise(levels)
    assert head(levels).base.isfinite().all()


def test_dropout_acts_in_training_alone_and_on_the_base_logits_alone() -> None:
    head, levels = make_head(separable=True), random_levels()
    head.dropout.p = 0.9
    head.dropout.train()
    dropped, kept = head(levels), head.eval()(levels)
    assert torch.equal(dropped.bottleneck, kept.bottleneck)
    assert not torch.equal(dropped.base, kept.base)


def test_the_paper_architecture_in_numbers() -> None:
    with torch.device("meta"):
        encoder = ResNet(50, output_stride=8)
        head = PyramidHead({"layer4": encoder.channels["layer4"]}, classes=16).eval()
        features = head(encoder(torch.empty(1, 3, 417, 417)))
    assert head.mix.weight.shape == (512, 4096, 3, 3)
    assert features.size == (53, 53)
    assert features.named(["layer4", "pooled"]).shape == (1, 4096, 53, 53)
    assert features.bottleneck.shape == (1, 512, 53, 53)
    assert features.base.shape == (1, 16, 53, 53)
    assert [tuple(branch.shape[1:]) for branch in features.pooled] == [(512, n, n) for n in (1, 2, 3, 6)]
    assert head.classifier.bias is None
    branches = 4 * (2048 * 512 + 2 * 512)
    bottleneck = 4096 * 512 * 9 + 2 * 512
    assert sum(weight.numel() for weight in head.parameters()) == branches + bottleneck + 512 * 16


@pytest.mark.slow
def test_one_step_of_the_paper_model_on_a_cpu() -> None:
    encoder = ResNet(50, output_stride=8)
    head = PyramidHead({"layer4": 2048}, classes=16)
    images = torch.rand(2, 3, 417, 417, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(16, (2, 53, 53), generator=torch.Generator().manual_seed(1))
    weights = [*encoder.parameters(), *head.parameters()]
    optimiser = torch.optim.SGD(weights, lr=2.5e-3, momentum=0.9, nesterov=True, weight_decay=1e-4)
    before = head.classifier.weight.detach().clone()
    loss = F.cross_entropy(head(encoder(images)).base, labels)
    loss.backward()
    optimiser.step()
    assert loss.isfinite()
    assert all(weight.isfinite().all() for weight in weights)
    assert not torch.equal(head.classifier.weight, before)


@torch.no_grad()
def test_named_features_come_in_the_order_asked_for() -> None:
    features = make_head(separable=True)(random_levels())
    expected = torch.cat([features.bottleneck, features.levels["layer3"]], dim=1)
    assert torch.equal(features.named(["bottleneck", "layer3"]), expected)
    assert features.named(["pooled"]).shape == (2, 4 * len(BINS), 7, 9)


def same(one: Features, other: Features) -> bool:
    pairs = [(one.levels[name], other.levels[name]) for name in one.levels]
    pairs += list(zip(one.pooled, other.pooled, strict=True))
    pairs += [(one.bottleneck, other.bottleneck), (one.base, other.base)]
    return all(torch.equal(a, b) for a, b in pairs)


@torch.no_grad()
def test_batches_are_cut_and_joined() -> None:
    features = make_head(separable=True)(random_levels())
    assert len(features) == 2
    assert same(concatenate([features[:1], features[[1]]]), features)
    assert not same(features[[1, 0]], features)


def test_wrong_features_are_refused() -> None:
    head = make_head(separable=True)
    levels = random_levels()
    with pytest.raises(GfssError, match=r"these features have 20 channels, the pyramid head was made for 14"):
        head({**levels, "layer3": levels["layer3"].repeat(1, 2, 1, 1)})
    with pytest.raises(GfssError, match=r"unknown feature level 'layer4'"):
        head({"layer3": levels["layer3"]})
    with pytest.raises(GfssError, match=r"unknown feature 'botleneck'; did you mean 'bottleneck'"):
        head(levels).named(["botleneck"])


DECODER = {"level": "layer2", "channels": 3, "inner": 7}


def decoder_levels(seed: int = 0) -> dict[str, Tensor]:
    fine = torch.randn(2, 3, 13, 17, generator=torch.Generator().manual_seed(seed + 10))
    return {"layer2": 2 * fine - 1, **random_levels(seed=seed)}


def make_decoder_head() -> PyramidHead:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        head = PyramidHead(LEVELS, classes=5, pyramid=4, width=10, separable=True, decoder=DECODER, bias=True)
        assert head.decoder is not None
        nn.init.normal_(head.decoder.correct[-1].weight)
    head.standardise(decoder_levels(seed=1))
    return head.eval()


@torch.no_grad()
def test_a_decoder_gives_maps_of_the_finer_level() -> None:
    head, levels = make_decoder_head(), decoder_levels()
    features = head(levels)
    assert features.size == (13, 17)
    assert {name: tuple(level.shape[1:]) for name, level in features.levels.items()} == {
        "layer2": (3, 13, 17),
        "layer3": (6, 13, 17),
        "layer4": (8, 13, 17),
    }
    torch.testing.assert_close(head.logits(levels), features.base)
    assert head.needs == {"layer3": 6, "layer4": 8, "layer2": 3}


@torch.no_grad()
def test_a_decoder_adds_a_separable_convolution_of_both_maps() -> None:
    head, levels = make_decoder_head(), decoder_levels()
    decoder = head.decoder
    assert decoder is not None
    _, bottleneck, _ = reference(_without_decoder(head), levels)
    fine = (levels["layer2"] - decoder.level_mean) / decoder.level_std
    coarse = F.interpolate(bottleneck, size=(13, 17), mode="bilinear", align_corners=True)
    weight = torch.cat([decoder.coarse.weight, decoder.fine.weight], dim=1)
    x = F.relu(decoder.norm(F.conv2d(torch.cat([coarse, fine], dim=1), weight)))
    corrected = F.relu(coarse + decoder.correct(x))
    expected = F.conv2d(corrected, head.classifier.weight, head.classifier.bias)
    torch.testing.assert_close(head(levels).base, expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_fresh_decoder_only_upsamples() -> None:
    head, levels = make_decoder_head(), decoder_levels()
    assert head.decoder is not None
    nn.init.zeros_(head.decoder.correct[-1].weight)
    nn.init.zeros_(head.decoder.correct[-1].bias)
    _, bottleneck, _ = reference(_without_decoder(head), levels)
    expected = F.interpolate(bottleneck, size=(13, 17), mode="bilinear", align_corners=True)
    torch.testing.assert_close(head(levels).bottleneck, expected, rtol=1e-4, atol=1e-5)


def _without_decoder(head: PyramidHead) -> PyramidHead:
    plain = PyramidHead(LEVELS, classes=5, pyramid=4, width=10, separable=True)
    kept = {k: v for k, v in head.state_dict().items() if not k.startswith(("decoder.", "classifier."))}
    plain.load_state_dict(kept, strict=False)
    return plain.eval()


@torch.no_grad()
def test_levels_of_several_sizes_without_a_decoder_come_at_the_coarsest() -> None:
    head, levels = make_head(separable=True), decoder_levels()
    assert head(levels).size == (7, 9)
    assert head(levels).levels["layer2"].shape[-2:] == (7, 9)


def test_a_finer_level_of_another_encoder_is_refused() -> None:
    head, levels = make_decoder_head(), decoder_levels()
    with pytest.raises(GfssError, match="made for 3"):
        head({**levels, "layer2": levels["layer2"][:, :2]})
