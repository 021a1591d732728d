"""The tables of the paper: their rows, and the recipes that make them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gfss.common.errors import unknown

FOLDS = (0, 1, 2, 3)


class Row(NamedTuple):
    """A row: our method, and the name of the paper's row (empty if it has none)."""

    method: str
    paper: str = ""


@dataclass(frozen=True)
class Target:
    """A table of the paper.

    Attributes:
        title: what it shows.
        source: name of the table in :mod:`gfss.reporting.paper`.
        data: data set.
        rows: in the paper's order; methods that the paper does not have come last.
        recipes: that make it, the CPU-scale one first.
        folds: the paper's.
        shots: the paper's.
    """

    title: str
    source: str
    data: str
    rows: tuple[Row, ...]
    recipes: tuple[str, ...]
    folds: tuple[int, ...] = (0,)
    shots: tuple[int, ...] = (1,)

    @property
    def methods(self) -> set[str]:
        """Our methods in it."""
        return {row.method for row in self.rows}


def _same(*names: str) -> tuple[Row, ...]:
    return tuple(Row(name, name) for name in names)


_PAPER_ROWS = _same("base", "denet", "pfenet", "acastle", "capl", "nsf", "pcn")
_OTHERS = ("pcn-support", "score", "npf", "npf-fitted", "imprint", "imprint-centred", "bcm", "bcm-top3", "diam")
_MAIN = (*_PAPER_ROWS, *(Row(name) for name in _OTHERS))
_ABLATIONS = ("frozen/pascal-lite0-ablations", "paper/pascal-resnet50-ablations")
TABLES = {
    "table1": Target(
        "PASCAL-5^i, all methods", "pascal", "pascal", _MAIN,
        ("frozen/pascal-lite0", "frozen/pascal-resnet50", "paper/pascal-resnet50", "paper/pascal-resnet101"),
        FOLDS, (1, 5),
    ),
    "table2": Target(
        "COCO-20^i, all methods", "coco", "coco", _MAIN,
        ("frozen/coco-lite0", "paper/coco-resnet50", "paper/coco-resnet101"), FOLDS, (1, 5),
    ),
    "table3": Target("Fusions", "fusion", "pascal", _same("score", "npf", "nsf"), _ABLATIONS),
    "table4": Target(
        "Fusions with the calibrator T", "fusion+t", "pascal",
        (Row("score+T", "score+t"), Row("npf+T", "npf+t"), Row("pcn", "nsf+t"), Row("score+support"),
         Row("npf+support"), Row("pcn-support")),
        _ABLATIONS,
    ),
    "table5": Target(
        "Earlier methods with the calibrator T", "previous+t", "pascal",
        tuple(
            row
            for name in ("denet", "pfenet", "acastle")
            for row in (Row(name, name), Row(f"{name}+T", f"{name}+t"), Row(f"{name}+support"))
        ),
        _ABLATIONS,
    ),
    "table6": Target(
        "Kinds of calibrators", "calibrator", "pascal",
        (*_same("nsf", "linear-no-residual", "linear", "self-attention", "pcn"), Row("pcn-as-printed"),
         Row("pixel"), Row("pcn-support")),
        _ABLATIONS,
    ),
    "table7": Target(
        "Feature levels of the cross-attention", "features", "pascal",
        (Row("pcn-layer2", "layer2"), Row("pcn-layer3", "layer3"), Row("pcn-layer4", "layer4"),
         Row("pcn-pooled", "high"), Row("pcn", "layer4+high"), Row("pcn-support-layer2"), Row("pcn-support-layer3"),
         Row("pcn-support-layer4"), Row("pcn-support-pooled"), Row("pcn-support-layer4-pooled")),
        _ABLATIONS,
    ),
    "table8": Target(
        "Training time and memory", "cost", "pascal",
        (*_same("denet", "pfenet", "acastle", "pcn"), Row("pcn-support")), _ABLATIONS,
    ),
}  # fmt: skip
FIGURES = ("fig1", "fig2", "fig3", "fig4", "fig5", "fig6")


def target(name: str) -> Target:
    """A table by its name."""
    if name not in TABLES:
        raise unknown("table or figure of the paper", name, (*TABLES, *FIGURES))
    return TABLES[name]
