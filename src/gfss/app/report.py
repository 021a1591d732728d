"""What teaching changed: every known class before and after, in figures."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gfss.app.report_page import html_report, text_report
from gfss.common.files import write_atomically

LEAST_AREA = 0.01  # of one image: a class with fewer pixels in all images is too rare to judge
GUARD = 2.0  # points of IoU that a known class may lose


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
    """What happened in one image: pixels per known class that were right before and are wrong now."""

    id: str
    lost: dict[str, int]
    before: np.ndarray
    after: np.ndarray
    image: np.ndarray | None
    truth: np.ndarray | None = None

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
        worst: images in which most was lost.
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
    def note(self) -> str:
        """A warning where images of the comparison are among those that the model was taught from."""
        if not self.repeated:
            return ""
        names = ", ".join(self.repeated[:3]) + (" ..." if len(self.repeated) > 3 else "")
        return (
            f"{len(self.repeated)} of these {self.images} images were also used for teaching ({names}); "
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
