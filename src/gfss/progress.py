"""Progress bars with time left on a terminal; silence everywhere else."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

T = TypeVar("T")

console = Console(stderr=True)


class Bar:
    """A progress bar that can show a few figures beside it (loss, learning rate ...).

    >>> with Bar("training", total=2) as bar:
    ...     bar.advance(loss=0.5)
    """

    def __init__(self, description: str, total: int, start: int = 0) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}"),
            console=console,
            disable=not sys.stderr.isatty(),
        )
        self._task = self._progress.add_task(description, total=total, completed=start, figures="")

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def advance(self, steps: int = 1, **figures: float) -> None:
        """Move on by some steps and show figures."""
        text = "  ".join(f"{name} {value:.4g}" for name, value in figures.items())
        self._progress.update(self._task, advance=steps, figures=text)


def track(items: Iterable[T], description: str, total: int, start: int = 0) -> Iterator[T]:
    """Iterate with a progress bar."""
    with Bar(description, total, start) as bar:
        for item in items:
            yield item
            bar.advance()
