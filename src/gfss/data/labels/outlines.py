"""How much work an outline is to draw; known before it is drawn."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gfss.common.errors import GfssError

LONGEST = 2_000_000  # pixels along one outline; drawing it takes half a second and 100 MB
LONGEST_TOGETHER = 20_000_000  # pixels along all outlines of one image


def length(points: np.ndarray) -> float:
    """Pixels along a closed outline (points, 2), one for every point at least.

    >>> length(np.array([[0, 0], [10, 0], [10, 10], [0, 10]]))
    44.0
    """
    return float(np.abs(points - np.roll(points, 1, axis=0)).max(axis=1).sum() + len(points))


def refuse_endless(outlines: Iterable[np.ndarray], where: str) -> None:
    """Raise if outlines run to and fro so often that drawing them would take minutes or all memory.

    Args:
        outlines: all outlines of one image, each (points, 2).
        where: file and image, for the message.
    """
    together = 0.0
    for points in outlines:
        one = length(points)
        together += one
        if one > LONGEST or together > LONGEST_TOGETHER:
            raise GfssError(
                f"{where} has outlines of {together:,.0f} pixels in length ({len(points):,} points in the last one); "
                f"at most {LONGEST:,} each and {LONGEST_TOGETHER:,} together are drawn, simplify them"
            )
