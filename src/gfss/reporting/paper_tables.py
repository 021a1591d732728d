"""The tables of the paper, numbered as it prints them: their rows, and the recipes that make them."""

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
    "table2": Target(
        "PASCAL-5^i, all methods", "pascal", "pascal", _MAIN,
        ("frozen/pascal-lite0", "frozen/pascal-resnet50", "paper/pascal-resnet50", "paper/pascal-resnet101"),
        FOLDS, (1, 5),
    ),
    "table3": Target(
        "COCO-20^i, all methods", "coco", "coco", _MAIN,
        ("frozen/coco-lite0", "paper/coco-resnet50", "paper/coco-resnet101"), FOLDS, (1, 5),
    ),
    "table4": Target(
        "Fusions", "fusion", "pascal", (Row("score", "score"), Row("npf-fitted", "npf"), Row("nsf", "nsf"), Row("npf")),
        ("frozen/pascal-lite0", "paper/pascal-resnet50-ablations"),
    ),
    "table5": Target(
        "Fusions with the calibrator T", "fusion+t", "pascal",
        (Row("score+T", "score+t"), Row("npf+T", "npf+t"), Row("pcn", "nsf+t"), Row("score+support"),
         Row("npf+support"), Row("pcn-support")),
        _ABLATIONS,
    ),
    "table6": Target(
        "Earlier methods with the calibrator T", "previous+t", "pascal",
        tuple(
            row
            for name in ("denet", "pfenet", "acastle")
            for row in (Row(name, name), Row(f"{name}+T", f"{name}+t"), Row(f"{name}+support"))
        ),
        _ABLATIONS,
    ),
    "table7": Target(
        "Kinds of calibrators", "calibrator", "pascal",
        (*_same("nsf", "linear-no-residual", "linear", "self-attention", "pcn"), Row("pcn-as-printed"),
         Row("pixel"), Row("pcn-support")),
        _ABLATIONS,
    ),
    "table8": Target(
        "Feature levels of the cross-attention", "features", "pascal",
        (Row("pcn-layer2", "layer2"), Row("pcn-layer3", "layer3"), Row("pcn-layer4", "layer4"),
         Row("pcn-pooled", "high"), Row("pcn", "layer4+high")),
        _ABLATIONS,
    ),
    "table9": Target(
        "Training time and memory", "cost", "pascal",
        (*_same("denet", "pfenet", "acastle", "pcn"), Row("pcn-support")), _ABLATIONS,
    ),
}  # fmt: skip
SETTINGS = "table1"  # the paper's comparison of settings, in words
COSTS = "table9"
FIGURES = ("fig1", "fig2", "fig3", "fig4", "fig5", "fig6")


def target(name: str) -> Target:
    """A table by its name."""
    if name not in TABLES:
        raise unknown("table or figure of the paper", name, (SETTINGS, *TABLES, *FIGURES))
    return TABLES[name]


# names as papers write them; other methods keep the name that commands know
PRINTED = {
    "base": "Base classifier",
    "score": "Score fusion",
    "npf": "NPF (prototypes)",
    "npf-fitted": "NPF",
    "nsf": "NSF",
    "imprint": "Imprinting",
    "imprint-centred": "Imprinting, centred",
    "acastle": "ACASTLE",
    "capl": "CAPL",
    "denet": "DENet",
    "pfenet": "PFENet",
    "bcm": "BCM",
    "bcm-top3": "BCM, three classes mined",
    "diam": "DIaM",
    "pcn": "PCN",
    "pcn-support": "PCN-support (ours)",
    "pcn-as-printed": "PCN as printed",
    "linear": "Linear layer",
    "linear-no-residual": "Linear layer without residual",
    "self-attention": "Self-attention",
    "pixel": "Per-pixel calibrator",
    "pcn-layer2": "PCN, layer 2",
    "pcn-layer3": "PCN, layer 3",
    "pcn-layer4": "PCN, layer 4",
    "pcn-pooled": "PCN, pyramid",
}


def printed_name(method: str) -> str:
    """The name of a method as papers write it.

    >>> printed_name("nsf"), printed_name("acastle+T"), printed_name("mine")
    ('NSF', 'ACASTLE + T', 'mine')
    """
    for suffix, words in {"+T": " + T", "+support": " + ours"}.items():
        if method.endswith(suffix):
            return printed_name(method.removesuffix(suffix)) + words
    return PRINTED.get(method, method)
