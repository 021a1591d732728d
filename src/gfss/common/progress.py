"""Progress bars with time left on a terminal; in a log file a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from gfss.common.errors import printable

T = TypeVar("T")

LINE_SECONDS = 60  # between two lines in a log file; what is done sooner says nothing

console = Console(stderr=True)


def note(text: str) -> None:
    """Print a remark to stderr."""
    console.print(f"note: {printable(text)}", markup=False, highlight=False, soft_wrap=True)


class Bar:
    """A progress bar that can show a few figures beside it (loss, learning rate ...).

    >>> with Bar("training", total=2) as bar:
    ...     bar.advance(loss=0.5)
    """

    def __init__(self, description: str, total: int, start: int = 0) -> None:
        self.description, self.total, self.done = description, total, start
        self._first, self._begin = start, time.monotonic()
        self._line = self._begin
        self._progress: Progress | None = None
        if sys.stderr.isatty():
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[figures]}"),
                console=console,
            )
            self._task = self._progress.add_task(description, total=total, completed=start, figures="")

    def __enter__(self) -> Bar:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress:
            self._progress.stop()

    def advance(self, steps: int = 1, **figures: float) -> None:
        """Move on by some steps and show figures."""
        self.done += steps
        text = "  ".join(f"{name} {value:.4g}" for name, value in figures.items())
        if self._progress:
            self._progress.update(self._task, advance=steps, figures=text)
        elif time.monotonic() - self._line >= LINE_SECONDS:
            self._line = time.monotonic()
            print(f"{self._state()}  {text}".rstrip(), file=sys.stderr, flush=True)

    def _state(self) -> str:
        """How far it is, for a log file."""
        left = (self.total - self.done) * (time.monotonic() - self._begin) / max(1, self.done - self._first)
        return f"{self.description}: {self.done:,} of {self.total:,}, {left / 60:.0f} min left"


def track(items: Iterable[T], description: str, total: int, start: int = 0) -> Iterator[T]:
    """Iterate with a progress bar."""
    with Bar(description, total, start) as bar:
        for item in items:
            yield item
            bar.advance()
