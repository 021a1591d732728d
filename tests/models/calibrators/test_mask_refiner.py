"""The mask refiner: where it starts, what it remembers, and that it knows of no class or channel."""

from __future__ import annotations

import torch

from gfss.models.calibrators.mask_refiner import BLEND, MaskRefiner, class_memory
from gfss.models.novel.logistic import LogisticHead, unit_maps
from gfss.models.ops.upsample import grid_colours

CHANNELS = {"layer1": 3, "layer3": 4, "layer4": 5}
SIZE = 33  # of the image; grids of 17, 9 and 9 positions


def make_maps(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sides = {"layer1": 17, "layer3": 9, "layer4": 9}
    return unit_maps({n: torch.randn(1, c, sides[n], sides[n], generator=generator) for n, c in CHANNELS.items()})


def make_labels() -> torch.Tensor:
    labels = torch.zeros(SIZE, SIZE, dtype=torch.uint8)
    labels[8:24, 8:24] = 1
    labels[:, 30:] = 255
    return labels


def make_refiner(noise: float = 0.0) -> MaskRefiner:
    torch.manual_seed(0)
    refiner = MaskRefiner(CHANNELS, ["layer4", "layer3", "layer1"]).eval().requires_grad_(False)
    for parameter in refiner.parameters():
        parameter += noise * torch.randn_like(parameter)
    return refiner


def make_head() -> LogisticHead:
    generator = torch.Generator().manual_seed(3)
    return LogisticHead(torch.randn(2, sum(CHANNELS.values()), generator=generator), torch.tensor([0.5, -0.5]))


def refined(refiner: MaskRefiner, number: int = 0) -> torch.Tensor:
    memory = class_memory([(make_maps(1), make_labels())], refiner.compared, 0.8)
    colours = grid_colours(torch.rand(1, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(5)), (17, 17))
    return refiner.refine(make_head(), number, memory, make_maps(2), colours)


def test_it_starts_at_the_row_s_own_decision() -> None:
    for number in (0, 1):
        own = make_head().logits(make_maps(2))[:, number : number + 1]
        assert torch.allclose(refined(make_refiner(), number), own.clamp(-12, 12), atol=1e-5)


def test_a_trained_one_changes_the_map_and_is_blended() -> None:
    refiner = make_refiner(0.1)
    memory = class_memory([(make_maps(1), make_labels())], refiner.compared, 0.8)
    colours = torch.zeros(1, 3, 17, 17)
    row = LogisticHead(make_head().weight[:1], make_head().bias[:1])
    coarse, fine = refiner.inputs(row, memory, make_maps(2), colours)
    own = row.logits(make_maps(2))
    blended = refiner.refine(make_head(), 0, memory, make_maps(2), colours)
    assert torch.allclose(blended, BLEND * refiner(coarse, fine) + (1 - BLEND) * own, atol=1e-5)
    assert not torch.allclose(blended, own, atol=1e-3)


def test_parts_of_the_odds_are_measured_from_the_usual_feature() -> None:
    refiner = make_refiner()
    refiner.mean.copy_(torch.arange(12) / 12)
    memory = class_memory([(make_maps(1), make_labels())], refiner.compared, 0.8)
    row = LogisticHead(make_head().weight[:1], make_head().bias[:1])
    coarse, _ = refiner.inputs(row, memory, make_maps(2), torch.zeros(1, 3, 17, 17))
    usual = float(row.weight[0] @ refiner.mean + row.bias[0])
    assert torch.allclose(4 * coarse[:, 1:4].sum(dim=1) + usual, 4 * coarse[:, 0], atol=1e-4)


def test_memory_holds_positions_of_the_class_and_of_the_rest_but_not_of_void() -> None:
    memory = class_memory([(make_maps(1), make_labels())], ["layer4"], 0.5)
    vectors = make_maps(1)["layer4"][0].flatten(1).T  # 9 x 9 positions, every 4th pixel
    inside = [9 * y + x for y in range(9) for x in range(9) if 2 < y < 6 and 2 < x < 6]
    assert all(any(torch.equal(vectors[i], one) for one in memory.shown["layer4"]) for i in inside)
    assert not any(torch.equal(vectors[9 * y + 8], one) for y in range(9) for one in memory.rest["layer4"])
    shares = float((make_labels() == 1).sum() / (make_labels() <= 1).sum())
    assert torch.allclose(memory.summary[1:], torch.tensor([1.0, 0.5]))
    assert abs(float(memory.summary[0]) - float(torch.tensor(shares + 1e-4).log()) / 4) < 1e-6


def test_another_order_of_channels_is_the_same_class() -> None:
    refiner = make_refiner(0.1)
    order = {name: torch.randperm(c, generator=torch.Generator().manual_seed(1)) for name, c in CHANNELS.items()}
    mixed = [{name: maps[name][:, order[name]] for name in maps} for maps in (make_maps(1), make_maps(2))]
    starts = dict(zip(CHANNELS, (0, 3, 7), strict=True))
    columns = torch.cat([starts[name] + order[name] for name in CHANNELS])
    colours = grid_colours(torch.rand(1, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(5)), (17, 17))
    memory = class_memory([(mixed[0], make_labels())], refiner.compared, 0.8)
    head = LogisticHead(make_head().weight[:, columns], make_head().bias)
    assert torch.allclose(refiner.refine(head, 0, memory, mixed[1], colours), refined(refiner), atol=1e-4)
