"""What teaching changed: every known class before and after, in figures, as text and as one HTML page."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gfss.common.files import write_atomically
from gfss.common.html import render
from gfss.data.catalog import BACKGROUND, VOID
from gfss.data.images import class_colours, overlay

if TYPE_CHECKING:
    from matplotlib.figure import Figure


LEAST_AREA = 0.01  # of one image: a class with fewer pixels in all images is too rare to judge
GUARD = 2.0  # points of IoU that a known class may lose
MOVES = 12  # lines about pixels that changed class
LEAST_SHARE = 0.00005  # of the pixels: less would be printed as 0.00%
TEMPLATE = Path(__file__).parent / "templates" / "report.html"


@dataclass(frozen=True)
class ClassRow:
    """IoU of a class in percent before and after; None where it was neither there nor predicted."""

    name: str
    known: bool
    pixels: int
    before: float | None
    after: float | None


@dataclass(frozen=True)
class Move:
    """Pixels that changed hands."""

    source: str
    target: str
    pixels: int
    share: float


@dataclass(frozen=True)
class Change:
    """What happened in one image.

    Attributes:
        id: its name.
        lost: pixels per known class that were right before and are wrong now.
        before: (size, size) uint8 labels before.
        after: the same after.
        image: the square image, where it is at hand.
        truth: the true labels, 255 where nobody knows.
        wrong: share of the pixels with a true label that are wrong after.
        content: height and width of the image within the square; found from the truth if left out.
    """

    id: str
    lost: dict[str, int]
    before: np.ndarray
    after: np.ndarray
    image: np.ndarray | None
    truth: np.ndarray | None = None
    wrong: float = 0.0
    content: tuple[int, int] | None = None

    @property
    def total(self) -> int:
        return sum(self.lost.values())


@dataclass(frozen=True)
class CurvePoint:
    """Mean IoU in percent of base and of taught classes, with the balance moved; None where no such class occurs."""

    balance: float
    base: float | None
    taught: float | None


@dataclass(frozen=True)
class Loss:
    """A known class that lost more than allowed, and the images where."""

    name: str
    title: str
    points: float
    images: tuple[str, ...]

    def sentence(self) -> str:
        """What was lost, and where."""
        return f"{self._what}, most in {', '.join(self.images)}" if self.images else self._what

    def doubt(self) -> str:
        """What was lost by a class too rare to judge."""
        return f"{self._what}, but shows less than {LEAST_AREA:.0%} of one image: too little to judge"

    @property
    def _what(self) -> str:
        return f"'{self.name}' loses {self.points:.1f} points of IoU on {self.title}"


@dataclass(frozen=True)
class Section:
    """The comparison on one set of images.

    Attributes:
        title: which images.
        images: how many.
        names: all classes in order of label, background first.
        rows: one per class.
        moves: pixels that changed hands, most first.
        where: known class -> images in which it lost most.
        worst: images to look at: those in which known classes lost most, then those with most wrong pixels.
        curve: base and taught classes with the balance of all taught classes moved by several amounts.
        repeated: images that the model was taught from; on these it looks better than on others.
    """

    title: str
    images: int
    names: tuple[str, ...]
    rows: list[ClassRow]
    moves: list[Move]
    where: dict[str, tuple[str, ...]]
    worst: list[Change]
    curve: list[CurvePoint]
    repeated: tuple[str, ...] = ()

    @property
    def seen(self) -> list[ClassRow]:
        """Classes that some label shows; of others nobody can say whether they were found rightly."""
        return [row for row in self.rows if row.pixels]

    @property
    def amount(self) -> str:
        """How many images, in words."""
        return "1 image" if self.images == 1 else f"{self.images} images"

    @property
    def note(self) -> str:
        """A warning where images of the comparison are among those that the model was taught from."""
        if not self.repeated:
            return ""
        names = ", ".join(self.repeated[:3]) + (" ..." if len(self.repeated) > 3 else "")
        were = "was" if len(self.repeated) == 1 else "were"
        return (
            f"{len(self.repeated)} of these {self.images} images {were} also used for teaching ({names}); "
            "the figures look better than they are on other images"
        )

    @property
    def best_move(self) -> float | None:
        """The move of the balance with the best mean of base and taught IoU; the smallest one of equals.

        None where no taught class is in the images, so that fewer of them could only look better.
        """
        points = [(p.balance, p.taught if p.base is None else (p.base + p.taught) / 2)
                  for p in self.curve if p.taught is not None]  # fmt: skip
        return max(points, key=lambda point: (point[1], -abs(point[0])))[0] if points else None

    def losses(self, points: float, least: int = 1) -> list[Loss]:
        """Known classes that lose more than some points; those with fewer than ``least`` pixels are left out."""
        return [
            Loss(row.name, self.title, row.before - row.after, self.where.get(row.name, ()))
            for row in self.rows
            if row.known and row.pixels >= least and row.before is not None and row.after is not None
            if row.before - row.after > points
        ]


@dataclass(frozen=True)
class Report:
    """What the last lesson changed.

    Attributes:
        lesson: what it was.
        size: side of the model's square input.
        sections: the comparison on every set of images.
        balances: of the taught classes, as they are stored.
    """

    lesson: str
    size: int
    sections: list[Section]
    balances: dict[str, float]

    @property
    def recommended(self) -> dict[str, float]:
        """The balance of every taught class that did best on validation images; empty without such images."""
        moves = [section.best_move for section in self.sections if section.best_move is not None]
        return {name: balance + moves[-1] for name, balance in self.balances.items()} if moves else {}

    def losses(self, points: float = GUARD) -> list[Loss]:
        """Known classes that lost more than some points of IoU, but for those too rare to judge."""
        return [loss for section in self.sections for loss in section.losses(points, self.least)]

    def too_rare(self, points: float = GUARD) -> list[Loss]:
        """Known classes that lost as much but show too few pixels to judge."""
        judged = self.losses(points)
        return [loss for section in self.sections for loss in section.losses(points) if loss not in judged]

    @property
    def least(self) -> int:
        """Pixels from which a class is judged."""
        return int(LEAST_AREA * self.size**2)

    def __str__(self) -> str:
        return text_report(self, GUARD)

    def save(self, path: str | Path, guard: float = GUARD) -> None:
        """Write the report as one HTML page with its pictures inside."""
        with write_atomically(Path(path)) as file:
            file.write(html_report(self, guard).encode())

    def figures(self) -> dict[str, Any]:
        """The figures alone, as they are kept with the model."""
        sections = [
            {"title": section.title, "images": section.images, "rows": [asdict(row) for row in section.seen]}
            for section in self.sections
        ]
        return {"lesson": self.lesson, "sections": sections}


def text_report(report: Report, guard: float) -> str:
    """The report for a terminal."""
    lines = [f"After {report.lesson}:" if report.lesson else "Nothing was taught yet."]
    for section in report.sections:
        lines += ["", f"On {section.title} ({section.amount}), IoU in percent"]
        lines += [f"  {section.note}"] if section.note else []
        lines += [f"  {'class':<20}{'before':>8}{'after':>8}{'change':>8}"]
        lines += [f"  {name:<20}{before:>8}{after:>8}{change:>8}" for name, before, after, change in _cells(section)]
        changed = sum(move.share for move in section.moves)
        lines.append(f"  {changed:.1%} of the pixels changed class")
        lines += [
            f"    {m.source} -> {m.target}: {m.share:.2%}" for m in section.moves[:MOVES] if m.share >= LEAST_SHARE
        ]
        if section.curve:
            lines += ["  balance moved by, and mean IoU", f"    {'moved':>5}{'base':>8}{'taught':>8}"]
            lines += [f"    {p.balance:>+5.0f}{_figure(p.base):>8}{_figure(p.taught):>8}" for p in section.curve]
    lines += ["", *_recommendation(report), *(line for line, _ in _verdict(report, guard))]
    return "\n".join(lines)


def html_report(report: Report, guard: float) -> str:
    """The report as one self-contained page."""
    sections = [_section(section, guard, report.least) for section in report.sections]
    return render(
        TEMPLATE, report=report, verdict=_verdict(report, guard), sections=sections, advice=_recommendation(report)
    )


def _verdict(report: Report, guard: float) -> list[tuple[str, str]]:
    """What was lost, in sentences, each with its kind: bad, good or neither."""
    losses, rare = report.losses(guard), report.too_rare(guard)
    lines = [(f"{loss.doubt()}.", "") for loss in rare]
    if not losses:
        others = "other known class" if rare else "known class"
        return [*lines, (f"No {others} loses more than {guard:g} points.", "good")]
    return lines + [(f"Warning: {loss.sentence()}.", "bad") for loss in losses]


def _recommendation(report: Report) -> list[str]:
    """The balance that did best on validation images, a sentence per taught class."""
    lines: list[str] = []
    for name, value in report.recommended.items():
        if value == report.balances[name]:
            lines.append(f"The balance of '{name}', {value:+g}, is the best of those compared.")
        else:
            command = f"gfss balance MODEL {shlex.quote(name)} {value:g}"
            lines.append(f"Recommended balance of '{name}' {value:+g}; {command} stores it.")
    return lines


def _cells(section: Section) -> list[tuple[str, str, str, str]]:
    """Name, before, after and change of every class that some label shows."""
    cells: list[tuple[str, str, str, str]] = []
    for row in section.seen:
        if not row.known:
            cells.append((row.name, "-", _figure(row.after), "new"))
        elif row.before is None or row.after is None:
            cells.append((row.name, _figure(row.before), _figure(row.after), "-"))
        else:
            cells.append((row.name, _figure(row.before), _figure(row.after), f"{row.after - row.before:+.1f}"))
    return cells


def _section(section: Section, guard: float, least: int) -> dict[str, Any]:
    """What the template shows of a section."""
    return {
        "title": section.title,
        "amount": section.amount,
        "note": section.note,
        "rows": _cells(section),
        "lost": {loss.name for loss in section.losses(guard, least)},
        "moves": [move for move in section.moves[:MOVES] if move.share >= LEAST_SHARE],
        "chart": balance_chart(section.curve) if section.curve else None,
        "images_missing": bool(section.worst),
        "examples": [_example(change, section.names) for change in section.worst if change.image is not None],
    }


def _example(change: Change, names: Sequence[str]) -> dict[str, Any]:
    """The image, its labels, before and after without the padding, a caption, and the colours of the classes shown."""
    assert change.image is not None
    colours = class_colours(len(names) - 1)
    masks = {"before": change.before, "labels": change.truth, "after": change.after}
    if change.content is not None:
        part = (slice(0, change.content[0]), slice(0, change.content[1]))
    else:
        part = _without_padding(change.image if change.truth is None else change.truth != VOID)
    image, shown = change.image[part], {word: mask[part] for word, mask in masks.items() if mask is not None}
    values = {int(value) for mask in shown.values() for value in np.unique(mask)}
    lost = ", ".join(f"{name} {pixels:,}" for name, pixels in change.lost.items())
    wrong = f"{change.wrong:.1%} of the labelled pixels are wrong after"
    return {
        "views": [("image", image), *((word, overlay(image, mask, colours)) for word, mask in shown.items())],
        "caption": f"{change.id}: pixels lost by {lost}; {wrong}" if lost else f"{change.id}: nothing lost; {wrong}",
        "legend": [
            (names[value], "#{:02x}{:02x}{:02x}".format(*colours[value]))
            for value in sorted(values - {BACKGROUND, VOID})
        ]
        + [("not judged", "#ffffff")] * (VOID in values),
    }


def _without_padding(content: np.ndarray) -> tuple[slice, slice]:
    """The part of a square image that is not padding at its bottom and right."""
    plane = content.reshape(*content.shape[:2], -1).any(axis=-1)
    rows, columns = np.flatnonzero(np.any(plane, axis=1)), np.flatnonzero(np.any(plane, axis=0))
    return slice(0, int(rows.max(initial=0)) + 1), slice(0, int(columns.max(initial=0)) + 1)


def balance_chart(curve: Sequence[CurvePoint]) -> Figure:
    """Mean IoU of base and of taught classes with the balance moved."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3))
    axes = figure.add_subplot(xlabel="balance moved by", ylabel="mean IoU in percent", ylim=(0, 100))
    for kind, colour in (("base", "#1f77b4"), ("taught", "#d62728")):
        points = [(p.balance, value) for p in curve if (value := getattr(p, kind)) is not None]
        axes.plot([balance for balance, _ in points], [value for _, value in points], color=colour, label=kind)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
