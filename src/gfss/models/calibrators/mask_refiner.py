"""Mask refiner: a small network that corrects the log-odds map of a taught class.

It sees what the class's row says of every position and through which level, how a position compares with positions of
the support images, how the query hangs together, and the colours; it knows nothing of any class or encoder channel, so
that one refiner serves every class. Trained on episodes with 1 to 10 support images and with queries that do not show
the class. Ours, not the paper's; the idea that scores should be consistent with features is the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gfss.models.novel.logistic import LogisticHead
from gfss.models.ops.upsample import upsample

COARSE_STEP = 2  # positions of the finest grid per position of the coarse grid, on which most of the work is done
ODDS_SCALE = 4.0  # log-odds are divided by this
ODDS_LIMIT = 12.0
SIMILARITY = ((5.0, 0.0), (3.0, 0.7))  # factor and offset of "class minus rest", and of "class"
SHARPNESS = (12.0, 20.0)  # of the self-similarity of the deepest and the first compared level
LARGEST_MEMORY = (300, 600)  # positions of class and rest that a query is compared with
BLEND = 0.7  # weight of the network's answer beside the row's own
FILLED, EMPTY = 0.5, 0.05  # share of a cell that makes it one of the class, or of the rest


@dataclass(frozen=True)
class ClassMemory:
    """What the refiner is told of a class beside its row.

    Attributes:
        shown: level -> unit feature vectors of positions of the class, (positions, channels).
        rest: the same for positions of the rest.
        summary: (3,) logarithm of the class's share of its images, one over their number, IoU on the fitted positions.
    """

    shown: dict[str, Tensor]
    rest: dict[str, Tensor]
    summary: Tensor


class MaskRefiner(nn.Module):
    """The network, and what the features that rows are fitted on are like in ordinary images.

    Attributes:
        mean: of the features, (channels,).
        spread: of the features, (channels,).
        ordinary: features of some positions of ordinary images, (positions, channels).

    Args:
        channels: levels that rows read, name -> channels.
        compared: levels that positions are compared on, on the grid of the coarsest of them.
        width: channels on the coarse grid.
        fine_width: channels on the finest grid.
        ordinary: number of positions of ordinary images.
    """

    mean: Tensor
    spread: Tensor
    ordinary: Tensor

    def __init__(
        self,
        channels: Mapping[str, int],
        compared: Sequence[str],
        width: int = 32,
        fine_width: int = 12,
        ordinary: int = 0,
    ) -> None:
        super().__init__()
        self.config: dict[str, Any] = {
            "channels": dict(channels),
            "compared": list(compared),
            "width": width,
            "fine_width": fine_width,
            "ordinary": ordinary,
        }
        self.compared = tuple(compared)
        self.register_buffer("mean", torch.zeros(sum(channels.values())))
        self.register_buffer("spread", torch.ones(sum(channels.values())))
        self.register_buffer("ordinary", torch.zeros(ordinary, sum(channels.values())))
        inputs = 1 + len(channels) + 2 * len(self.compared) + len(SHARPNESS) + 5
        self.first = nn.Conv2d(inputs, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=2, dilation=2)
        self.third = nn.Conv2d(width, width, 3, padding=4, dilation=4)
        self.whole = nn.Linear(2 * width, width)
        self.narrow = nn.Conv2d(width, fine_width, 1)
        self.fine_first = nn.Conv2d(fine_width + 4, fine_width, 3, padding=1)
        self.fine_second = nn.Conv2d(fine_width, fine_width, 3, padding=1)
        self.out = nn.Conv2d(fine_width, 1, 1)
        self.scale = nn.Parameter(torch.tensor(1.0))
        for parameter in self.out.parameters():
            nn.init.zeros_(parameter)  # starts at the row's own decision

    def forward(self, coarse: Tensor, fine: Tensor) -> Tensor:
        """Corrected log-odds (batch, 1, h, w).

        Args:
            coarse: (batch, inputs, h / 2, w / 2), the first result of :func:`refiner_inputs`.
            fine: (batch, 4, h, w), the second.
        """
        x = F.relu(self.first(coarse))
        x = x + F.relu(self.second(x))
        x = x + F.relu(self.third(x))
        image = torch.cat([x.mean(dim=(2, 3)), x.amax(dim=(2, 3))], dim=1)
        x = x + F.relu(self.whole(image))[:, :, None, None]
        x = upsample(F.relu(self.narrow(x)), (fine.shape[-2], fine.shape[-1]))
        x = F.relu(self.fine_first(torch.cat([x, fine], dim=1)))
        x = x + F.relu(self.fine_second(x))
        return self.scale * ODDS_SCALE * fine[:, :1] + self.out(x)

    def refine(
        self, head: LogisticHead, number: int, memory: ClassMemory, maps: Mapping[str, Tensor], colours: Tensor
    ) -> Tensor:
        """Corrected log-odds of one class, blended with the row's own, (1, 1, h, w).

        Args:
            head: rows of all classes.
            number: the class.
            maps: unit maps of one image.
            colours: (1, 3, h, w) of the finest grid, as ``grid_colours`` gives them.
        """
        row = LogisticHead(head.weight[number : number + 1], head.bias[number : number + 1])
        coarse, fine = self.inputs(row, memory, maps, colours)
        return BLEND * self(coarse, fine) + (1 - BLEND) * ODDS_SCALE * fine[:, :1]

    def inputs(
        self, row: LogisticHead, memory: ClassMemory, maps: Mapping[str, Tensor], colours: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What :meth:`forward` takes, for one class and one image."""
        parts = row.parts(maps)
        odds = torch.stack(parts).sum(dim=0) + row.bias[:, None, None]
        usual = (row.weight[0] * self.mean).split([level.shape[1] for level in maps.values()])
        parts = [part - share.sum() for part, share in zip(parts, usual, strict=True)]
        half = [part[..., ::COARSE_STEP, ::COARSE_STEP] for part in (odds, *parts)]
        size = (half[0].shape[-2], half[0].shape[-1])
        channels = [part.clamp(-ODDS_LIMIT, ODDS_LIMIT) / ODDS_SCALE for part in half]
        compared = on_one_grid({name: maps[name] for name in self.compared})
        for name, level in compared.items():
            vectors = level[0].flatten(1).T
            of_class = (vectors @ memory.shown[name].T).amax(dim=1)
            of_rest = (vectors @ memory.rest[name].T).amax(dim=1)
            for (factor, offset), values in zip(SIMILARITY, (of_class - of_rest, of_class), strict=True):
                small = ((values - offset) * factor).view(1, 1, level.shape[-2], level.shape[-1])
                channels.append(upsample(small, size))
        for name, sharpness in zip((self.compared[0], self.compared[-1]), SHARPNESS, strict=True):
            level = compared[name]
            vectors = level[0].flatten(1).T
            step = (odds.shape[-1] - 1) // (level.shape[-1] - 1)
            found = odds[0, 0, ::step, ::step].sigmoid().flatten()
            spread = (sharpness * (vectors @ vectors.T)).softmax(dim=1) @ found
            channels.append(upsample(spread.view(1, 1, level.shape[-2], level.shape[-1]), size))
        image = torch.stack([odds.sigmoid().mean(), odds.amax(dim=(0, 1, 2, 3)) / ODDS_SCALE])
        constants = torch.cat([memory.summary.to(odds.dtype), image])[None, :, None, None]
        coarse = torch.cat([*channels, constants.expand(-1, -1, *size)], dim=1)
        return coarse, torch.cat([odds.clamp(-ODDS_LIMIT, ODDS_LIMIT) / ODDS_SCALE, colours], dim=1)


def on_one_grid(levels: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Levels (1, channels, h, w) at the positions of the coarsest one; the corners of all grids coincide."""
    least = min(level.shape[-1] for level in levels.values())
    steps = {name: (level.shape[-1] - 1) // max(1, least - 1) for name, level in levels.items()}
    return {name: level[..., :: steps[name], :: steps[name]] for name, level in levels.items()}


def class_memory(
    supports: Sequence[tuple[Mapping[str, Tensor], Tensor]], compared: Sequence[str], fitted_iou: float
) -> ClassMemory:
    """What to remember of the support images of a class.

    Args:
        supports: unit maps (1, channels, h, w) and labels (height, width) of each: 1 the class, 0 the rest, 255 void.
        fitted_iou: IoU of the row on the positions it was fitted on, in [0, 1].
    """
    shown: dict[str, Tensor] = {}
    rest: dict[str, Tensor] = {}
    grids = [(on_one_grid({name: maps[name] for name in compared}), labels) for maps, labels in supports]
    for name in compared:
        of_class: list[Tensor] = []
        of_rest: list[Tensor] = []
        for maps, labels in grids:
            level = maps[name]
            size = (level.shape[-2], level.shape[-1])
            share, void = _cell_share(labels == 1, size, 0.0), _cell_share(labels > 1, size, 1.0)
            vectors = level[0].flatten(1).T
            inside = (share > FILLED) & (void < FILLED)
            if not inside.any():
                inside = (share >= 0.9 * share.max()) & (share > 0)
            of_class.append(vectors[inside])
            of_rest.append(vectors[(share < EMPTY) & (void < FILLED)])
        shown[name] = _some(torch.cat(of_class), LARGEST_MEMORY[0])
        rest[name] = _some(torch.cat(of_rest), LARGEST_MEMORY[1])
    shares = [float((labels == 1).sum()) / max(1, int((labels <= 1).sum())) for _, labels in supports]
    summary = [math.log(sum(shares) / len(shares) + 1e-4) / 4, 1 / len(supports), fitted_iou]
    return ClassMemory(shown, rest, torch.tensor(summary))


def _cell_share(mask: Tensor, size: tuple[int, int], beyond: float) -> Tensor:
    """Share of set pixels around every position of a grid, (positions,); ``beyond`` counts outside of the mask."""
    step = (mask.shape[-1] - 1) // (size[1] - 1)
    half = step // 2
    padded = F.pad(mask.float()[None, None], (half, half, half, half), value=beyond)
    return F.avg_pool2d(padded, step + 1, step)[0, 0, : size[0], : size[1]].flatten()


def _some(vectors: Tensor, most: int) -> Tensor:
    """At most so many of the vectors, evenly chosen; one of zeros where there is none."""
    if not len(vectors):
        return vectors.new_zeros(1, vectors.shape[1])
    return vectors[:: -(-len(vectors) // most)]
