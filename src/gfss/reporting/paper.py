"""Every number of the paper's result tables, as printed, and the lookup of the one that a run compares with.

Contradictions between printed numbers are kept; ``tests/reporting/test_paper.py`` lists them.
"""

from __future__ import annotations

from typing import NamedTuple

from gfss.common.errors import unknown
from gfss.data.catalog import CLASSES_PER_FOLD
from gfss.evaluation.metrics import harmonic_mean, weighted_mean

_ = None  # the paper prints "-"

# (encoder, shots, method): base and novel of folds 0 to 3, then averages of base, novel, mIoU, H.
# The base classifier has no shots.
PASCAL: dict[tuple[str, int, str], tuple[float | None, ...]] = {
    ("resnet50", 0, "base"): (63.15, _, 64.17, _, 63.87, _, 65.47, _, 64.17, _, _, _),
    ("resnet50", 1, "denet"): (29.91, 56.66, 18.20, 65.68, 20.75, 60.48, 22.45, 47.02, 22.83, 57.46, 31.49, 32.67),
    ("resnet50", 1, "pfenet"): (58.24, 13.00, 59.14, 9.99, 54.87, 6.08, 58.61, 5.13, 57.72, 8.55, 45.42, 14.89),
    ("resnet50", 1, "acastle"): (59.46, 34.82, 55.12, 37.64, 59.69, 40.45, 61.09, 32.08, 58.84, 36.25, 53.19, 44.86),
    ("resnet50", 1, "capl"): (_, _, _, _, _, _, _, _, 65.48, 18.85, 54.38, 29.16),
    ("resnet50", 1, "nsf"): (29.38, 51.86, 36.61, 55.41, 44.73, 50.63, 42.30, 36.93, 38.26, 48.71, 40.87, 42.85),
    ("resnet50", 1, "pcn"): (59.43, 47.98, 61.31, 51.27, 61.44, 51.25, 62.93, 41.34, 61.28, 47.96, 57.95, 53.81),
    ("resnet50", 5, "denet"): (30.15, 58.04, 18.58, 66.10, 21.21, 61.00, 22.84, 47.73, 23.20, 58.22, 31.95, 33.17),
    ("resnet50", 5, "pfenet"): (57.81, 13.38, 58.96, 9.80, 54.72, 6.17, 58.68, 5.01, 57.54, 8.59, 45.30, 14.95),
    ("resnet50", 5, "acastle"): (60.56, 45.64, 62.87, 53.87, 62.91, 42.41, 63.59, 42.68, 62.48, 46.15, 58.40, 53.09),
    ("resnet50", 5, "capl"): (_, _, _, _, _, _, _, _, 66.14, 22.41, 55.72, 33.48),
    ("resnet50", 5, "nsf"): (29.90, 59.07, 44.99, 64.01, 49.60, 62.74, 48.25, 48.36, 43.19, 58.55, 47.03, 49.71),
    ("resnet50", 5, "pcn"): (59.05, 53.03, 60.59, 58.03, 60.60, 61.67, 63.15, 51.60, 60.85, 56.08, 59.66, 58.37),
    ("resnet101", 0, "base"): (67.42, _, 66.08, _, 64.93, _, 67.70, _, 66.53, _, _, _),
    ("resnet101", 1, "pfenet"): (58.64, 20.42, 59.72, 6.00, 56.85, 12.62, 55.06, 13.31, 57.57, 13.09, 46.45, 21.33),
    ("resnet101", 1, "acastle"): (62.30, 39.61, 56.60, 38.12, 59.43, 32.17, 55.84, 30.34, 58.54, 35.06, 52.67, 43.86),
    ("resnet101", 1, "nsf"): (27.65, 52.64, 34.42, 61.93, 37.75, 58.72, 41.63, 41.56, 35.36, 53.71, 39.95, 42.65),
    ("resnet101", 1, "pcn"): (60.30, 51.38, 60.04, 44.03, 61.16, 39.91, 61.29, 33.09, 60.70, 42.10, 56.05, 49.72),
    ("resnet101", 5, "pfenet"): (58.56, 20.65, 59.70, 6.48, 57.02, 12.20, 54.71, 13.17, 57.50, 13.13, 46.40, 21.37),
    ("resnet101", 5, "acastle"): (62.98, 51.75, 63.26, 47.61, 64.04, 41.07, 62.82, 36.28, 63.28, 44.18, 58.50, 52.03),
    ("resnet101", 5, "nsf"): (27.41, 59.97, 41.54, 67.39, 43.44, 65.69, 47.96, 50.47, 40.09, 60.88, 45.29, 48.34),
    ("resnet101", 5, "pcn"): (59.10, 56.35, 59.18, 49.21, 60.25, 48.41, 60.88, 43.47, 59.85, 49.36, 57.23, 54.10),
}  # fmt: skip
COCO: dict[tuple[str, int, str], tuple[float | None, ...]] = {
    ("resnet50", 0, "base"): (44.29, _, 34.14, _, 36.29, _, 37.47, _, 38.05, _, _, _),
    ("resnet50", 1, "denet"): (11.79, 37.37, 10.42, 38.23, 12.82, 33.68, 11.33, 34.67, 11.59, 35.99, 17.69, 17.53),
    ("resnet50", 1, "pfenet"): (39.88, 4.22, 28.40, 6.17, 31.23, 3.88, 31.75, 2.13, 32.82, 4.10, 25.64, 7.29),
    ("resnet50", 1, "acastle"): (23.42, 25.57, 21.93, 21.64, 25.17, 20.40, 25.90, 18.43, 24.11, 21.51, 23.46, 22.73),
    ("resnet50", 1, "capl"): (_, _, _, _, _, _, _, _, 44.61, 7.05, 35.46, 12.18),
    ("resnet50", 1, "nsf"): (30.99, 32.26, 22.85, 32.12, 25.47, 29.32, 27.59, 23.69, 26.73, 29.35, 27.38, 27.97),
    ("resnet50", 1, "pcn"): (39.83, 31.93, 33.60, 28.63, 35.33, 27.53, 36.51, 29.39, 36.32, 29.37, 34.58, 32.48),
    ("resnet50", 5, "denet"): (12.30, 38.78, 10.81, 39.73, 13.13, 34.77, 11.43, 35.10, 11.92, 37.10, 18.21, 18.04),
    ("resnet50", 5, "pfenet"): (39.83, 4.38, 28.18, 6.00, 31.20, 3.77, 31.49, 2.23, 32.68, 4.10, 25.53, 7.28),
    ("resnet50", 5, "acastle"): (42.03, 23.78, 22.32, 26.11, 35.22, 17.52, 35.60, 23.63, 33.79, 22.76, 31.03, 27.20),
    ("resnet50", 5, "capl"): (_, _, _, _, _, _, _, _, 45.24, 11.05, 36.80, 17.76),
    ("resnet50", 5, "nsf"): (33.44, 41.78, 24.22, 39.85, 26.43, 36.12, 29.61, 36.03, 28.43, 38.45, 30.93, 32.68),
    ("resnet50", 5, "pcn"): (40.16, 40.82, 33.42, 35.76, 34.86, 33.04, 36.31, 38.36, 36.19, 37.00, 36.39, 36.59),
    ("resnet101", 0, "base"): (37.49, _, 41.72, _, 37.28, _, 41.85, _, 39.59, _, _, _),
    ("resnet101", 1, "pfenet"): (34.44, 2.81, 38.35, 2.55, 34.83, 5.07, 38.38, 3.90, 36.50, 3.58, 28.27, 6.52),
    ("resnet101", 1, "acastle"): (21.70, 25.90, 28.53, 23.57, 20.21, 18.75, 29.83, 21.99, 25.07, 22.55, 24.44, 23.74),
    ("resnet101", 1, "nsf"): (25.08, 32.66, 31.74, 33.33, 27.70, 30.50, 32.49, 30.32, 29.25, 31.70, 29.87, 30.43),
    ("resnet101", 1, "pcn"): (35.26, 27.54, 39.08, 30.32, 36.07, 24.66, 39.46, 26.37, 37.47, 27.22, 34.91, 31.53),
    ("resnet101", 5, "pfenet"): (34.52, 2.53, 38.32, 2.76, 34.69, 6.09, 38.72, 3.64, 36.56, 3.76, 28.36, 6.81),
    ("resnet101", 5, "acastle"): (35.33, 20.72, 41.22, 23.75, 34.01, 22.77, 40.97, 19.34, 37.88, 21.65, 33.82, 27.55),
    ("resnet101", 5, "nsf"): (27.18, 40.74, 34.24, 41.94, 29.95, 37.16, 34.69, 39.23, 31.52, 39.77, 33.58, 35.16),
    ("resnet101", 5, "pcn"): (35.09, 35.84, 40.05, 38.11, 35.75, 31.01, 40.50, 33.73, 37.85, 34.67, 37.05, 36.19),
}  # fmt: skip

# The other tables: PASCAL fold 0, 1 shot, ResNet-50; base, novel, mIoU, H.
FUSION = {
    "score": (59.37, 16.74, 48.71, 26.12),
    "npf": (62.81, 16.00, 51.11, 25.51),
    "nsf": (29.38, 51.86, 35.00, 37.51),
}
FUSION_T = {
    "score+t": (59.31, 35.68, 53.40, 44.55),
    "npf+t": (46.85, 39.21, 44.94, 42.69),
    "nsf+t": (59.43, 47.98, 56.57, 53.09),
}
PREVIOUS_T = {
    "denet": (29.91, 56.66, 36.60, 39.15),
    "denet+t": (39.54, 52.98, 42.90, 45.28),
    "pfenet": (58.24, 13.00, 46.93, 21.26),
    "pfenet+t": (51.35, 37.44, 48.01, 43.37),
    "acastle": (59.46, 34.82, 53.30, 43.92),
    "acastle+t": (60.02, 40.04, 55.03, 48.04),
}
CALIBRATOR = {
    "nsf": (29.38, 51.86, 35.00, 37.51),
    "linear-no-residual": (19.78, 15.71, 18.76, 17.51),
    "linear": (22.53, 18.27, 21.47, 20.18),
    "self-attention": (61.96, 35.54, 55.36, 45.17),
    "pcn": (59.43, 47.98, 56.57, 53.09),
}
FEATURES = {
    "layer2": (60.80, 40.29, 55.68, 48.47),
    "layer3": (60.94, 37.42, 55.06, 46.37),
    "layer4": (57.28, 46.46, 54.57, 51.30),
    "high": (61.51, 39.57, 56.03, 48.16),
    "layer4+high": (59.43, 47.98, 56.57, 53.09),
}
# training hours without the base model, gigabytes of GPU memory at batch size 8 (one RTX 2080 Ti), H
COST = {
    "denet": (31.4, 4.2, 39.15),
    "pfenet": (70.5, 8.6, 21.26),
    "acastle": (4.5, 5.7, 43.92),
    "pcn": (6.8, 4.7, 53.09),
}

MAIN = {"pascal": PASCAL, "coco": COCO}
ABLATIONS = {
    "fusion": FUSION,
    "fusion+t": FUSION_T,
    "previous+t": PREVIOUS_T,
    "calibrator": CALIBRATOR,
    "features": FEATURES,
}
TABLES = (*MAIN, *ABLATIONS, "cost")


class PaperFigure(NamedTuple):
    """Numbers of one row of the paper, in percent; hours and gigabytes only in the table of costs."""

    base: float | None = None
    novel: float | None = None
    miou: float | None = None
    harmonic: float | None = None
    hours: float | None = None
    gigabytes: float | None = None


def paper_figure(
    table: str, method: str, encoder: str = "resnet50", shots: int = 1, fold: int | None = None
) -> PaperFigure | None:
    """The paper's numbers of one row, None where it has none.

    Args:
        table: "pascal", "coco", "fusion", "fusion+t", "previous+t", "calibrator", "features" or "cost".
        method: name of the row: a method, a calibrator or feature levels.
        encoder: "resnet50" or "resnet101".
        shots: 1 or 5.
        fold: a fold, or None for the average over the four. The main tables print no mIoU and H of single folds:
            they are computed from base and novel. The other tables are all of fold 0.

    >>> paper_figure("pascal", "pcn").harmonic
    53.81
    """
    if table not in TABLES:
        raise unknown("table of the paper", table, TABLES)
    if table in MAIN:
        return _main_figure(table, method, encoder, shots, fold)
    if (encoder, shots, fold or 0) != ("resnet50", 1, 0):
        return None
    if table == "cost" and method in COST:
        hours, gigabytes, harmonic = COST[method]
        return PaperFigure(harmonic=harmonic, hours=hours, gigabytes=gigabytes)
    row = ABLATIONS.get(table, {}).get(method)
    return PaperFigure(*row) if row else None


def comparable_figure(
    data: str,
    method: str,
    protocol: str,
    metric: str,
    encoder: str,
    shots: int,
    fold: int | str | None,
    with_background: bool = False,
    contiguous: bool = False,
) -> tuple[PaperFigure, str] | None:
    """The paper's numbers measured as a run was, with the paper's encoder, None where there are none.

    Encoders that the paper does not use are set beside its ResNet-50.

    Args:
        data: name of the data set.
        method: a method, or the name of a calibrator that stands in for the paper's.
        protocol: "paired" or "joint".
        metric: "per-image" or "accumulated".
        encoder: name of the run's encoder.
        shots: labelled images per novel class.
        fold: a fold, or None for the average over the four.
        with_background: the run's base figure counts the background as a class.
        contiguous: the run's folds are blocks of ids, not interleaved as the paper's.
    """
    # the paper quotes CAPL's own publication, which measures otherwise than all other rows
    measured = ("joint", "accumulated", True) if method == "capl" else ("paired", "per-image", False)
    if data not in MAIN or (protocol, metric, with_background) != measured or isinstance(fold, str) or contiguous:
        return None
    theirs = "resnet101" if "101" in encoder else "resnet50"
    tables = [data, *ABLATIONS] if (data, fold) == ("pascal", 0) else [data]
    row = method.replace("+T", "+t")
    figures = (paper_figure(table, row, theirs, shots, fold) for table in tables)
    figure = next((figure for figure in figures if figure), None)
    return (figure, theirs) if figure else None


def _main_figure(table: str, method: str, encoder: str, shots: int, fold: int | None) -> PaperFigure | None:
    row = MAIN[table].get((encoder, 0 if method == "base" else shots, method))
    if row is None or fold not in (None, 0, 1, 2, 3):
        return None
    if fold is None:
        return PaperFigure(*row[8:])
    base, novel = row[2 * fold : 2 * fold + 2]
    if base is None:
        return None
    return PaperFigure(base, novel, weighted_mean(base, novel, *CLASSES_PER_FOLD[table]), harmonic_mean(base, novel))
