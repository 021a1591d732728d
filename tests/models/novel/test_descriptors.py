"""Dense descriptors against the same layers in plain torch, and what they are not told."""

import torch
from torch import Tensor
from torch.nn import functional as F

from gfss.models.novel.descriptors import BINS, DenseDescriptors

CHANNELS = {"layer2": 4, "layer3": 6, "layer4": 8}


def levels(seed: int = 0, images: int = 2) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sides = {"layer2": 17, "layer3": 9, "layer4": 9}
    return {
        name: 3 + 2 * torch.randn(images, c, sides[name], sides[name], generator=generator)
        for name, c in CHANNELS.items()
    }


def make() -> DenseDescriptors:
    torch.manual_seed(0)
    module = DenseDescriptors(CHANNELS, width=5, mid=7, context=3)
    module.standardise(levels(9, 20))
    return module.eval().requires_grad_(False)


def plain(module: DenseDescriptors, given: dict[str, Tensor]) -> Tensor:
    """The same by torch's own pooling and resampling, standardised beforehand."""
    joined = {name: [] for name in given}
    start = 0
    for name, level in given.items():
        stop = start + level.shape[1]
        joined[name] = (level - module.mean[None, start:stop, None, None]) / module.std[None, start:stop, None, None]
        start = stop
    fine, deep = joined["layer2"], torch.cat([joined["layer3"], joined["layer4"]], dim=1)
    whole = module.whole(F.adaptive_avg_pool2d(deep, 1)).repeat(1, 1, *deep.shape[-2:])
    parts = module.parts(F.adaptive_avg_pool2d(deep, BINS))
    parts = F.interpolate(parts, size=deep.shape[-2:], mode="bilinear", align_corners=True)
    x = module.wide(module.mix(torch.cat([deep, whole, parts], dim=1)))
    x = module.narrow(x + module.near(x))
    x = F.interpolate(x, size=fine.shape[-2:], mode="bilinear", align_corners=True) + module.fine(fine)
    return module.join(x).clamp_min(0)


def test_descriptors_are_those_of_plain_torch():
    module, given = make(), levels()
    found = module(given)
    assert found.shape == (2, 5, 17, 17)
    assert torch.allclose(found, plain(module, given), atol=1e-5)


def test_every_image_is_described_by_itself():
    module, given = make(), levels()
    first = module({name: level[:1] for name, level in given.items()})
    assert torch.allclose(module(given)[:1], first, atol=1e-5)


def test_standardised_levels_have_mean_zero_and_spread_one():
    module, given = make(), levels(9, 20)
    rows = [channel.flatten() for level in given.values() for channel in level.transpose(0, 1)]
    assert torch.allclose(module.mean, torch.stack([row.mean() for row in rows]), atol=1e-4)
    assert torch.allclose(module.std, torch.stack([row.std() for row in rows]), atol=1e-4)


def test_a_channel_that_never_changes_does_not_blow_up():
    module = DenseDescriptors(CHANNELS, width=5, mid=7, context=3).eval()
    still = {name: torch.ones_like(level) for name, level in levels().items()}
    module.standardise(still)
    assert torch.isfinite(module(still)).all()
