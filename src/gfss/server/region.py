"""A first mask for free: what a click or a box means, from the encoder's features and the image's colours.

A small classifier is fitted on the spot: pixels that are surely the object against pixels that are surely not, on
encoder features and colour. It is applied to all pixels, its answer becomes the next guess, and after a few rounds
the mask is drawn along the edges of the image (guided filter; He, Sun, Tang, 2010). No further network is needed.
"""

from __future__ import annotations

import heapq
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from gfss.common.errors import GfssError
from gfss.data.images import fitted_size, square_image, to_tensor
from gfss.server.model import Model

SIDE = 96  # long side of the grid that regions are found on
WAVES = 160  # random features of the classifier
WIDTH = 0.7  # of them: larger follows finer differences
ROUNDS = 3
STEPS = 36  # shapes that are compared
FILLED = 1.0  # how much a shape counts that fills its box
LIKENESS = 0.3  # of a position to the click, against edges, in the first guess
BORDER = 1.5  # how much a region along the border of the image is held against it
CHANNELS = 24  # of the encoder's features after reduction
COLOUR_WEIGHT = 1.6
PLACE_WEIGHT = 0.6
RIDGE = 3.0
REMEMBERED = 6  # images
RADIUS, SMOOTH = 3, 1e-4  # of the guided filter on the grid


@dataclass(frozen=True)
class Grid:
    """An image as the region finder sees it.

    Attributes:
        image: (height, width, 3) uint8 in its own size.
        colours: (h, w, 3) in [0, 1].
        waves: features of every position for a linear classifier, (h * w, WAVES).
        distances: features before the waves, (h * w, channels), for the first guess.
    """

    image: np.ndarray
    colours: Tensor
    waves: Tensor
    distances: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.colours.shape[0], self.colours.shape[1]


class Regions:
    """Proposes regions; remembers the features of the last images."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._grids: OrderedDict[Hashable, Grid] = OrderedDict()
        self._lock = threading.Lock()

    def propose(
        self,
        key: Hashable,
        read: Callable[[], np.ndarray],
        point: tuple[int, int] | None,
        box: tuple[int, int, int, int] | None,
    ) -> np.ndarray:
        """A mask (height, width) bool.

        Args:
            key: names the image.
            read: gives its pixels.
            point: column and row of a pixel of the object.
            box: left, top, right, bottom around the object.
        """
        with self._lock:
            grid = self._grids.get(key)
        if grid is None:
            image = read()
            grid = self._model.in_turn(lambda: self._look(image))
            with self._lock:
                self._grids[key] = grid
                while len(self._grids) > REMEMBERED:
                    self._grids.popitem(last=False)
        _refuse_outside(grid.image.shape[:2], point, box)
        return self._model.in_turn(lambda: find_region(grid, point, box))

    @torch.inference_mode()
    def _look(self, image: np.ndarray) -> Grid:
        network = self._model.segmenter.network
        encoder, size = network.base.encoder, network.size
        square = to_tensor(square_image(image, size)[None])
        levels = encoder.levels((square - encoder.mean) / encoder.std)
        height, width = fitted_size(image.shape[0], image.shape[1], size)
        return make_grid(image, [level[0] for level in levels.values()], height / size, width / size)


@torch.inference_mode()
def make_grid(image: np.ndarray, levels: list[Tensor], rows: float, columns: float) -> Grid:
    """The grid of an image.

    Args:
        levels: encoder maps (channels, h, w) of the squared image.
        rows, columns: share of the square's height and width that the image fills.
    """
    longest = max(image.shape[:2])
    height, width = (max(8, round(side * min(1.0, SIDE / longest))) for side in image.shape[:2])
    small = np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BOX))
    colours = torch.from_numpy(small.copy()).float() / 255
    y, x = torch.meshgrid(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij")
    places = torch.stack([x.flatten(), y.flatten()], dim=1)
    where = torch.stack([(x + 1) * columns - 1, (y + 1) * rows - 1], dim=-1)[None]
    maps = [F.grid_sample(level[None].float(), where, align_corners=True)[0].flatten(1).T for level in levels]
    features = _reduce(torch.cat([_standard(one) / one.shape[1] ** 0.5 for one in maps], dim=1))
    tints = _standard(_opponent(colours.reshape(-1, 3)))
    combined = torch.cat([features, COLOUR_WEIGHT * tints / 3**0.5, PLACE_WEIGHT * places], dim=1)
    generator = torch.Generator().manual_seed(0)
    frequencies = torch.randn(combined.shape[1], WAVES // 2, generator=generator) * WIDTH
    turned = combined @ frequencies
    waves = torch.cat([turned.cos(), turned.sin()], dim=1) / (WAVES / 2) ** 0.5
    return Grid(image, colours, waves, combined)


@torch.inference_mode()
def find_region(
    grid: Grid, point: tuple[int, int] | None = None, box: tuple[int, int, int, int] | None = None
) -> np.ndarray:
    """The mask (height, width) bool that a click or a box asks for; see :meth:`Regions.propose`."""
    height, width = grid.shape
    down, across = height / grid.image.shape[0], width / grid.image.shape[1]
    allowed = torch.ones(height, width, dtype=torch.bool)
    if box is not None:
        left, top, right, bottom = box
        rows = slice(int(top * down), max(int(top * down) + 1, round((bottom + 1) * down)))
        columns = slice(int(left * across), max(int(left * across) + 1, round((right + 1) * across)))
        allowed = torch.zeros(height, width, dtype=torch.bool)
        allowed[rows, columns] = True
        seed, guess = None, _guess_in_box(grid, allowed, rows, columns)
    else:
        assert point is not None
        seed = (min(height - 1, int(point[1] * down)), min(width - 1, int(point[0] * across)))
        guess = _first_guess(grid, seed)
    score = guess.float()
    for _ in range(ROUNDS):
        score = _classify(grid, guess, allowed, seed)
        region = (score > 0.5) & allowed
        region = _connected(region, seed) if seed is not None else region
        if not region.any():
            region = guess
        guess = region
    score = torch.where(guess | ~_grown(guess, 2), score, score.clamp_max(0.5))
    score = torch.where(_grown(guess, 2) & allowed, score, torch.zeros(()))
    return _draw(grid, score, guess)


def _guess_in_box(grid: Grid, allowed: Tensor, rows: slice, columns: slice) -> Tensor:
    """The shape inside a box that fills it best and has the strongest rim, found from several places in it."""
    middle, half = (
        [(part.start + part.stop - 1) / 2 for part in (rows, columns)],
        [(part.stop - part.start) / 4 for part in (rows, columns)],
    )
    places = [(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)]
    seeds = {(int(middle[0] + y * half[0]), int(middle[1] + x * half[1])) for y, x in places}
    best, chosen = -float("inf"), allowed
    for seed in sorted(seeds):
        for region, score in _shapes(grid, seed, allowed):
            filled = region[rows, columns]
            down = float(filled.any(dim=1).float().mean())
            across = float(filled.any(dim=0).float().mean())
            if score * (down * across) ** FILLED > best:
                best, chosen = score * (down * across) ** FILLED, region
    return chosen


def _first_guess(grid: Grid, seed: tuple[int, int]) -> Tensor:
    """The shape around a click whose rim stands out most; one along the border of the image is hardly an object."""
    border = torch.zeros(grid.shape, dtype=torch.bool)
    border[0], border[-1], border[:, 0], border[:, -1] = True, True, True, True
    best, chosen = -float("inf"), torch.zeros(grid.shape, dtype=torch.bool)
    for region, score in _shapes(grid, seed, torch.ones(grid.shape, dtype=torch.bool)):
        rim = (_grown(region, 1) & ~region) | (region & border)
        touching = float((region & border).sum()) / max(1.0, float(rim.sum()))
        if score * (1 - BORDER * touching) > best:
            best, chosen = score * (1 - BORDER * touching), region
    return chosen


def _shapes(grid: Grid, seed: tuple[int, int], allowed: Tensor) -> Iterator[tuple[Tensor, float]]:
    """Connected shapes around a position, from small to large, each with the strength of the edges along its rim.

    Water rises from the position over a landscape whose height is how unlike it a place looks and how strong an edge
    it lies on; the shapes are those that the water takes.
    """
    height, width = grid.shape
    features = grid.distances[:, :-2].reshape(height, width, -1)
    edges = _edges(features)
    near = features[max(0, seed[0] - 1) : seed[0] + 2, max(0, seed[1] - 1) : seed[1] + 2].reshape(-1, features.shape[2])
    distance = (features - near.mean(dim=0)).square().sum(dim=2).sqrt()
    levels = _flood(LIKENESS * distance + edges, seed, allowed)
    reached = levels[allowed]
    previous = 0
    for share in torch.logspace(-2.4, -0.2 if allowed.all() else 0.0, STEPS).tolist():
        region = (levels <= reached.kthvalue(max(1, int(share * len(reached)))).values) & allowed
        area = int(region.sum())
        rim = _grown(region, 1) & ~region
        if area > previous and rim.any():
            yield region, float(edges[rim].mean())
        previous = area


def _edges(features: Tensor) -> Tensor:
    """How much features (h, w, channels) change at every position, (h, w)."""
    maps = features.permute(2, 0, 1)[None]
    padded = F.pad(maps, (1, 1, 1, 1), mode="replicate")[0]
    across = (padded[:, 1:-1, 2:] - padded[:, 1:-1, :-2]).square().sum(dim=0)
    down = (padded[:, 2:, 1:-1] - padded[:, :-2, 1:-1]).square().sum(dim=0)
    return (across + down).sqrt()


def _flood(landscape: Tensor, seed: tuple[int, int], allowed: Tensor) -> Tensor:
    """The level at which water that rises from the seed reaches each allowed position, (h, w)."""
    height, width = landscape.shape
    heights = landscape.flatten().tolist()
    levels = torch.where(allowed, -1.0, torch.inf).flatten().tolist()
    start = seed[0] * width + seed[1]
    levels[start] = heights[start]
    shore = [(heights[start], start)]
    while shore:
        level, at = heapq.heappop(shore)
        column = at % width
        for other in (
            at - width,
            at + width,
            at - 1 if column else -1,
            at + 1 if column < width - 1 else -1,
        ):
            if 0 <= other < len(heights) and levels[other] < 0:
                levels[other] = max(level, heights[other])
                heapq.heappush(shore, (levels[other], other))
    return torch.tensor(levels).reshape(height, width)


def _classify(grid: Grid, guess: Tensor, allowed: Tensor, seed: tuple[int, int] | None) -> Tensor:
    """Probability-like score in about [0, 1] of every position, from a ridge classifier fitted on a guess."""
    inside, outside = guess.flatten(), ~_grown(guess, 1).flatten()
    if not outside.any():
        outside = ~inside
    chosen = inside | outside
    targets = inside[chosen].float()
    weights = torch.where(inside, 0.5 / inside.sum().clamp_min(1), 0.5 / outside.sum().clamp_min(1))[chosen]
    if seed is not None:
        at = (seed[0] * guess.shape[1] + seed[1]) == torch.arange(guess.numel())[chosen]
        weights = weights + at * 0.02
    x = grid.waves[chosen]
    mean = (weights[:, None] * x).sum(dim=0) / weights.sum()
    level = (weights * targets).sum() / weights.sum()
    centred = (x - mean) * weights[:, None].sqrt()
    aim = (targets - level) * weights.sqrt()
    gram = centred.T @ centred + (RIDGE * 1e-4) * torch.eye(x.shape[1])
    solution = torch.linalg.solve(gram, centred.T @ aim)
    return ((grid.waves - mean) @ solution + level).reshape(guess.shape)


def _connected(region: Tensor, seed: tuple[int, int]) -> Tensor:
    """The part of a region that a position belongs to; the nearest part if it belongs to none."""
    if not region.any():
        return region
    if not region[seed]:
        places = region.nonzero()
        nearest = places[(places - torch.tensor(seed)).square().sum(dim=1).argmin()]
        seed = (int(nearest[0]), int(nearest[1]))
    part = torch.zeros_like(region)
    part[seed] = True
    while True:
        grown = _grown(part, 1) & region
        if torch.equal(grown, part):
            return part
        part = grown


def _grown(region: Tensor, steps: int) -> Tensor:
    return F.max_pool2d(region[None, None].float(), 2 * steps + 1, stride=1, padding=steps)[0, 0] > 0


def _draw(grid: Grid, score: Tensor, guess: Tensor) -> np.ndarray:
    """A score on the grid as a mask in the image's own size, its edge along the edges of the image."""
    height, width = grid.image.shape[:2]
    target = (0.5 * score.clamp(0, 1) + 0.5 * guess.float())[None, None]
    guide = grid.colours.permute(2, 0, 1)[None].mean(dim=1, keepdim=True)
    mean_g, mean_t = _box(guide), _box(target)
    slope = (_box(guide * target) - mean_g * mean_t) / (_box(guide * guide) - mean_g**2 + SMOOTH * 10)
    offset = mean_t - slope * mean_g
    large = F.interpolate(torch.cat([_box(slope), _box(offset)], dim=1), (height, width), mode="bilinear")
    grey = torch.from_numpy(grid.image.mean(axis=2, dtype=np.float32) / 255)
    refined = large[0, 0] * grey + large[0, 1]
    limit = F.interpolate(_grown(guess, 1)[None, None].float(), (height, width), mode="bilinear")[0, 0] > 0.5
    return ((refined > 0.5) & limit).numpy()


def _box(values: Tensor) -> Tensor:
    return F.avg_pool2d(values, 2 * RADIUS + 1, stride=1, padding=RADIUS, count_include_pad=False)


def _standard(values: Tensor) -> Tensor:
    return (values - values.mean(dim=0)) / values.std(dim=0).clamp_min(1e-6)


def _opponent(colours: Tensor) -> Tensor:
    """Brightness, red against green, yellow against blue."""
    red, green, blue = colours.unbind(dim=1)
    return torch.stack([(red + green + blue) / 3, red - green, (red + green) / 2 - blue], dim=1)


def _reduce(features: Tensor) -> Tensor:
    """Leading directions of standardised features, (positions, CHANNELS)."""
    centred = features - features.mean(dim=0)
    generator = torch.Generator().manual_seed(0)
    kept = min(CHANNELS, features.shape[1])
    probe = torch.randn(features.shape[1], 2 * kept, generator=generator)
    for _ in range(2):  # subspace iteration
        probe = torch.linalg.qr(centred.T @ (centred @ probe)).Q
    projected = centred @ probe
    _, vectors = torch.linalg.eigh(projected.T @ projected)
    return projected @ vectors[:, -kept:]


def _refuse_outside(
    shape: tuple[int, ...], point: tuple[int, int] | None, box: tuple[int, int, int, int] | None
) -> None:
    height, width = shape
    if point is not None and not (0 <= point[0] < width and 0 <= point[1] < height):
        raise GfssError(f"the point {point} lies outside the image of {width} x {height}")
    if box is not None and not (0 <= box[0] < box[2] <= width and 0 <= box[1] < box[3] <= height):
        raise GfssError(f"the box {box} must be left, top, right, bottom inside the image of {width} x {height}")
