"""A first mask for free: what a click or a box means, from the encoder's features and the image's colours.

A logistic regression is fitted on the spot: positions that may be the object against positions that are surely not,
on encoder levels and colour. What it says, drawn together along the colours of the image, labels the positions anew,
and after three rounds the labels are the proposal (the scheme of GrabCut; Rother, Kolmogorov, Blake 2004). It looks at
the part of the image around the object, so that small objects are seen as large as others. No further network is
needed.

A further click corrects: it adds what belongs to it to the mask, or takes it away. The rest of the mask stays.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from gfss.app.network import DESCRIPTORS
from gfss.common.errors import GfssError
from gfss.data.images import fitted_size, square_image
from gfss.models.novel.logistic import unit_maps
from gfss.models.ops.upsample import upsample
from gfss.server.model import Model

# chosen on objects of the PASCAL train list, with benchmarks/region_proposals.py
LEVELS = {"layer1": (12, 0.5), "stage4": (24, 1.5), "layer3": (24, 0.5), DESCRIPTORS: (40, 3.0)}
TINTS = 0.1  # weight of the colours
OTHER_LEVEL, OTHER_TINTS = (24, 1.0), 1.0  # the same of other encoders
RIDGE = 0.03
ROUNDS = 3
MAYBE_SHARE = 0.4  # of the weight of a fit, for positions that may be the object; the others that are not have the rest
CLICK_WEIGHT, KNOWN_WEIGHT = 0.1, 0.2  # beside it, of positions at the click and of what is in the mask already
GAIN = 1.5  # of the fit, against where an object lies in a box or around a click
BOX_SHAPE = (1.5, 1.2)  # log-odds of the object in the middle of a box, and how fast they fall
CLICK_SHAPE = (1.5, 1.8)  # the same around a click
LEAST_FILLED = 0.25  # of a box, by the object in it
REACH = -4.0  # log-odds below which a position is too far from the click
SIZES = (0.06, 0.09, 0.13, 0.19, 0.28, 0.4)  # radii of objects that a click may mean, of the long side of the image
SIZE_WORTH, RIM_WORTH = 0.1, 0.3  # of a larger size and of a rim that stands out, against how well the fit explains
COARSE, FINE = 53, 105  # positions along the side of the grid, for comparing sizes and for the proposal
CROP = 2.2  # side of the part of the image that is looked at, in sizes of the object
LEAST_CROP = 0.15  # size of an object, of the long side of the image, below which the crop shrinks no further
RADIUS, NEAR, ALIKE = 3, 3.0, 0.12  # of the agreement with positions around: side, distance, distance of colours
AGREEMENT = 8.0
SURE = 20.0  # log-odds of what is given
REMEMBERED = 12  # views

Box = tuple[int, int, int, int]


@dataclass(frozen=True)
class View:
    """A part of an image as the region finder sees it.

    Attributes:
        crop: left, top, right, bottom in the image.
        inputs: features of every position for the fit, (h * w, channels), the last one 1.
        alike: how much every position should agree with those around it, (neighbours, h, w).
        steps: how much the features change to the next position, across (h, w - 1) and down (h - 1, w).
    """

    crop: Box
    inputs: Tensor
    alike: Tensor
    steps: tuple[Tensor, Tensor]

    @property
    def shape(self) -> tuple[int, int]:
        return self.alike.shape[1], self.alike.shape[2]


@dataclass(frozen=True)
class Question:
    """What is known before the fit, on the grid of a view.

    Attributes:
        prior: log-odds of the object by place alone, (h, w).
        possible: where it may lie, (h, w) bool.
        clicked: positions at the click, (h, w) bool.
        known: what is in the mask already, (h, w) bool.
    """

    prior: Tensor
    possible: Tensor
    clicked: Tensor
    known: Tensor


class Regions:
    """Proposes regions; remembers what it saw of the last images."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._views: OrderedDict[Hashable, View] = OrderedDict()
        self._lock = threading.Lock()

    def propose(
        self,
        key: Hashable,
        read: Callable[[], np.ndarray],
        point: tuple[int, int] | None,
        box: Box | None,
        painted: np.ndarray | None = None,
        away: bool = False,
    ) -> np.ndarray:
        """What a click or a box adds to a mask, or takes from it, (height, width) bool.

        Args:
            key: names the image.
            read: gives its pixels.
            point: column and row of a pixel of the object.
            box: left, top, right, bottom around the object.
            painted: the mask so far, (height, width) bool.
            away: take away instead of adding.
        """
        image = read()
        shape = image.shape[:2]
        _refuse_outside(shape, point, box)
        known = np.zeros(shape, dtype=bool) if painted is None else painted
        known = ~known if away else known

        def look(crop: Box, side: int) -> View:
            return self._view((key, crop, side), image, crop, side)

        if point is None:
            assert box is not None
            return self._model.in_turn(lambda: boxed_region(look, shape, box)) & ~known
        return self._model.in_turn(lambda: clicked_region(look, known, point))

    def _view(self, key: Hashable, image: np.ndarray, crop: Box, side: int) -> View:
        with self._lock:
            view = self._views.get(key)
        if view is None:
            view = self._look(image, crop, side)
            with self._lock:
                self._views[key] = view
                while len(self._views) > REMEMBERED:
                    self._views.popitem(last=False)
        return view

    @torch.inference_mode()
    def _look(self, image: np.ndarray, crop: Box, side: int) -> View:
        network = self._model.segmenter.network
        left, top, right, bottom = crop
        part = np.ascontiguousarray(image[top:bottom, left:right])
        levels = network.levels(square_image(part, network.size))
        height, width = fitted_size(part.shape[0], part.shape[1], network.size)
        return make_view(
            part, crop, {name: levels[name] for name in network.channels}, (height, width), network.size, side
        )


Look = Callable[[Box, int], View]


@torch.inference_mode()
def make_view(
    part: np.ndarray, crop: Box, levels: dict[str, Tensor], filled: tuple[int, int], size: int, side: int
) -> View:
    """The view of a part of an image.

    Args:
        part: its pixels.
        levels: maps of the squared part, name -> (1, channels, h, w).
        filled: height and width that it fills of the square.
        size: side of the square.
        side: positions of the grid along the side of the square.
    """
    maps = unit_maps({name: level.float() for name, level in levels.items()})
    height, width = (max(2, round((one - 1) / (size - 1) * (side - 1)) + 1) for one in filled)
    parts: list[Tensor] = []
    usual = DESCRIPTORS in maps
    for name, level in maps.items():
        if name in LEVELS or not usual:
            count, weight = LEVELS[name] if usual else OTHER_LEVEL
            share = [
                max(1, round(one / side * length)) for one, length in zip((height, width), level.shape[2:], strict=True)
            ]
            leading = _leading(level[0], share, count) * weight
            parts.append(upsample(leading[None], (side, side))[0, :, :height, :width].flatten(1).T)
    small = np.asarray(Image.fromarray(part).resize((width, height), Image.Resampling.BOX))
    colours = torch.from_numpy(small.copy()).float().permute(2, 0, 1) / 255
    inputs = torch.cat(
        [*parts, _tints(colours) * (TINTS if usual else OTHER_TINTS), torch.ones(height * width, 1)], dim=1
    )
    maps = inputs.T.unflatten(1, (height, width))
    steps = ((maps[:, :, 1:] - maps[:, :, :-1]).norm(dim=0), (maps[:, 1:] - maps[:, :-1]).norm(dim=0))
    return View(crop, inputs, _alike(colours), steps)


@torch.inference_mode()
def boxed_region(look: Look, shape: tuple[int, ...], box: Box) -> np.ndarray:
    """The object in a box, (height, width) bool."""
    left, top, right, bottom = box
    middle, half = ((left + right) / 2, (top + bottom) / 2), (max(right - left, bottom - top) / 2)
    view = look(crop_around(middle, half, shape), FINE)
    rows, columns = _places(view)
    across, down = (columns - middle[0]) / max(1, right - left) * 2, (rows - middle[1]) / max(1, bottom - top) * 2
    inside = (across.abs() <= 1) & (down.abs() <= 1)
    none = torch.zeros(view.shape, dtype=torch.bool)
    if not inside.any():  # smaller than a position of the grid
        inside.view(-1)[(across.square() + down.square()).argmin()] = True
    prior = BOX_SHAPE[0] - BOX_SHAPE[1] * (across.square() + down.square())
    found, _ = _solve(view, Question(prior, inside, none, none))
    least = found[inside].quantile(1 - LEAST_FILLED)
    found = found if least > 0.5 else torch.where(inside, found / (2 * least.clamp_min(1e-9)), 0.0)
    mask = np.zeros(shape, dtype=bool)
    mask[top : bottom + 1, left : right + 1] = True
    return _enlarge(found, view.crop, shape) & mask


@torch.inference_mode()
def clicked_region(look: Look, known: np.ndarray, point: tuple[int, int]) -> np.ndarray:
    """What a click adds to a mask, (height, width) bool.

    Of several sizes that the object may have, the one is taken whose fit is surest.

    Args:
        known: the mask so far, (height, width) bool.
        point: column and row.
    """
    shape, side = known.shape, max(known.shape)
    whole = look((0, 0, shape[1], shape[0]), COARSE)
    sizes = [size * side for size in SIZES]
    worth = [_worth(whole, size / side, *_ask(whole, known, point, size)) for size in sizes]
    size = sizes[int(np.argmax(worth))]
    crop = crop_around((point[0] + 0.5, point[1] + 0.5), size, shape)
    view = look(crop, FINE)
    question, found, _ = _ask(view, known, point, size)
    added = _connected((found > 0.5) & ~question.known, question.clicked)
    region = _enlarge(torch.where(_grown(added), found, 0.0), crop, shape) & ~known
    region[point[1], point[0]] = not known[point[1], point[0]]
    return region


def crop_around(middle: tuple[float, float], half: float, shape: tuple[int, ...]) -> Box:
    """Left, top, right, bottom of the part of an image (height, width) to look at, for an object and half its size."""
    reach = CROP * max(half, LEAST_CROP / 2 * max(shape[:2]))
    left, top = (max(0, int(one - reach)) for one in middle)
    right, bottom = (
        min(side, int(np.ceil(one + reach))) for one, side in zip(middle, (shape[1], shape[0]), strict=True)
    )
    return left, top, right, bottom


def _ask(view: View, known: np.ndarray, point: tuple[int, int], size: float) -> tuple[Question, Tensor, Tensor]:
    """Question, probabilities and fit of a click on an object of a size."""
    rows, columns = _places(view)
    squares = ((columns - point[0] - 0.5).square() + (rows - point[1] - 0.5).square()) / size**2
    prior = CLICK_SHAPE[0] - CLICK_SHAPE[1] * squares
    clicked = squares <= 0.15**2
    clicked.view(-1)[squares.argmin()] = True
    left, top, right, bottom = view.crop
    part = torch.from_numpy(known[top:bottom, left:right].astype(np.float32))[None, None]
    inside = F.interpolate(part, view.shape, mode="area")[0, 0] > 0.5
    question = Question(prior, (prior > REACH) & ~inside, clicked, inside & ~clicked)
    return question, *_solve(view, question)


def _worth(view: View, size: float, question: Question, found: Tensor, fit: Tensor) -> float:
    """How good an answer to a click is: how likely the fit makes it, how much its rim stands out, how large it is."""
    added = _connected((found > 0.5) & ~question.known, question.clicked)
    signed = torch.where(added | question.known, fit, -fit)
    explained = F.logsigmoid(signed[question.possible | question.clicked]).mean()
    across, down = view.steps
    free = ~question.known
    rim_across = (added[:, 1:] != added[:, :-1]) & free[:, 1:] & free[:, :-1]
    rim_down = (added[1:] != added[:-1]) & free[1:] & free[:-1]
    rim = torch.cat([across[rim_across], down[rim_down]])
    usual = (across.mean() + down.mean()) / 2
    stands_out = (rim.sum() / max(1, len(rim)) / usual.clamp_min(1e-9)).clamp_min(0.1).log()
    return float(explained + RIM_WORTH * stands_out + SIZE_WORTH * np.log(size))


def _solve(view: View, question: Question) -> tuple[Tensor, Tensor]:
    """Probability of the object at every position, and the log-odds of the last fit, (h, w) each."""
    given = question.clicked | question.known
    maybe = question.possible & ~given
    other = ~maybe & ~given
    weights = torch.zeros(view.shape)
    for positions, weight in (
        (maybe, MAYBE_SHARE), (other, 1 - MAYBE_SHARE), (question.clicked, CLICK_WEIGHT), (question.known, KNOWN_WEIGHT)
    ):  # fmt: skip
        weights += weight / positions.sum().clamp_min(1) * positions
    weights = (weights / weights.sum()).flatten()
    found = torch.where(maybe, question.prior.sigmoid(), given.float())
    row, fit = torch.zeros(view.inputs.shape[1]), found
    for number in range(ROUNDS):
        row = _fit(view.inputs, found.flatten(), weights, row, 2 if number else 4)
        fit = (view.inputs @ row).reshape(view.shape)
        odds = torch.where(maybe, GAIN * fit + question.prior, torch.where(given, SURE, -SURE))
        found = torch.where(maybe | given, _agreed(odds, view.alike), 0.0)
    return found, fit


def _fit(inputs: Tensor, targets: Tensor, weights: Tensor, row: Tensor, steps: int) -> Tensor:
    """Newton steps of ridge logistic regression on targets in [0, 1]; the last input, always 1, is not shrunk."""
    ridge = torch.full_like(row, RIDGE)
    ridge[-1] = 1e-6
    for _ in range(steps):
        found = (inputs @ row).sigmoid()
        slope = inputs.T @ (weights * (found - targets)) + ridge * row
        bend = weights * (found * (1 - found)).clamp_min(0.02)
        row = row - torch.linalg.solve((inputs * bend[:, None]).T @ inputs + ridge.diag(), slope)
    return row


def _agreed(odds: Tensor, alike: Tensor) -> Tensor:
    """Probabilities after positions have agreed with those around them that have their colour (mean field)."""
    found = odds.sigmoid()
    for _ in range(5):
        around = _neighbours(2 * found[None] - 1)[0]
        found = (odds + AGREEMENT * (alike * around).sum(dim=0)).sigmoid()
    return found


def _alike(colours: Tensor) -> Tensor:
    """Shares of the positions around every position by nearness and colour, (neighbours, h, w), sum 1."""
    offsets = torch.arange(-RADIUS, RADIUS + 1).square()
    far = (offsets[:, None] + offsets).flatten()[:, None, None] / (2 * NEAR**2)
    differ = (_neighbours(colours) - colours[:, None]).square().sum(dim=0) / (2 * ALIKE**2)
    shares = torch.exp(-far - differ)
    shares[len(shares) // 2] = 0
    return shares / shares.sum(dim=0).clamp_min(1e-6)


def _neighbours(maps: Tensor) -> Tensor:
    """Values around every position of (channels, h, w), (channels, neighbours, h, w)."""
    channels, height, width = maps.shape
    side = 2 * RADIUS + 1
    padded = F.pad(maps[None], (RADIUS,) * 4, mode="replicate")
    return F.unfold(padded, side).reshape(channels, side * side, height, width)


def _leading(level: Tensor, filled: list[int], count: int) -> Tensor:
    """A level (channels, h, w) in its leading directions over the filled part, total variance 1, (count, h, w)."""
    vectors = level[:, : filled[0], : filled[1]].flatten(1)
    mean = vectors.mean(dim=1, keepdim=True)
    centred = vectors - mean
    spread, directions = torch.linalg.eigh(centred @ centred.T / vectors.shape[1])
    chosen = directions[:, -count:] / spread.sum().clamp_min(1e-9).sqrt()
    return (chosen.T @ (level.flatten(1) - mean)).unflatten(1, level.shape[1:])


def _tints(colours: Tensor) -> Tensor:
    """Brightness, red against green, yellow against blue, their squares and products, (h * w, 9)."""
    red, green, blue = colours.flatten(1) - colours.flatten(1).mean(dim=1, keepdim=True)
    plain = torch.stack([(red + green + blue) / 3, red - green, (red + green) / 2 - blue], dim=1)
    plain = plain / plain.std(dim=0).clamp_min(0.02)
    products = [plain[:, i] * plain[:, j] / 2 for i in range(3) for j in range(i, 3)]
    return torch.cat([plain, torch.stack(products, dim=1)], dim=1)


def _places(view: View) -> tuple[Tensor, Tensor]:
    """Rows (h, 1) and columns (1, w) of the image that the positions of a view stand for."""
    (height, width), (left, top, right, bottom) = view.shape, view.crop
    rows = top + (torch.arange(height) + 0.5) * (bottom - top) / height
    columns = left + (torch.arange(width) + 0.5) * (right - left) / width
    return rows[:, None], columns[None]


def _connected(region: Tensor, start: Tensor) -> Tensor:
    """The parts of a region that touch a start."""
    part = start & region
    while not torch.equal(grown := _grown(part) & region, part):
        part = grown
    return part


def _grown(region: Tensor) -> Tensor:
    return F.max_pool2d(region[None, None].float(), 3, stride=1, padding=1)[0, 0] > 0


def _enlarge(found: Tensor, crop: Box, shape: tuple[int, ...]) -> np.ndarray:
    """Probabilities of a view as a mask of the whole image, (height, width) bool."""
    left, top, right, bottom = crop
    mask = np.zeros(shape, dtype=bool)
    size = (bottom - top, right - left)
    mask[top:bottom, left:right] = F.interpolate(found[None, None], size, mode="bilinear")[0, 0].numpy() > 0.5
    return mask


def _refuse_outside(shape: tuple[int, ...], point: tuple[int, int] | None, box: Box | None) -> None:
    height, width = shape[:2]
    if point is not None and not (0 <= point[0] < width and 0 <= point[1] < height):
        raise GfssError(f"the point {point} is outside the image of {width} x {height}; give a pixel of it")
    if box is not None:
        left, top, right, bottom = box
        if not (0 <= left < right <= width and 0 <= top < bottom <= height):
            raise GfssError(
                f"the box {box} does not lie in the image of {width} x {height}; expected left < right, top < bottom"
            )
