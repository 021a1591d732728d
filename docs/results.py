"""Write the tables of README.md and docs from the records under results/ and tuning/: ``make results``.

A table stands between the lines ``<!-- table: NAME -->`` and ``<!-- end -->``; the text around them is written by hand.
``tests/test_results_page.py`` computes every cell again and checks that the pages are those of the records.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from gfss.evaluation.metrics import Figures, average
from gfss.evaluation.records import MetricName, Record, read_record
from gfss.reporting.paper import comparable_figure

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "results.md", *sorted((ROOT / "docs" / "experiments").glob("*.md")))
FOLDS = (0, 1, 2, 3)
METRICS: tuple[MetricName, ...] = ("per-image", "accumulated")
TASKS = 1000  # paired tasks per fold; the README marks cells with fewer

SYSTEMS = {
    "pcn-support": "**PCN-support**, ours (`pcn-support`)",
    "pcn": "PCN, the paper's (`pcn`)",
    "pixel": "learned per-pixel calibrator (`pixel`)",
    "acastle": "ACASTLE",
    "capl": "CAPL",
    "denet": "DENet",
    "pfenet": "PFENet",
    "bcm": "BCM",
    "bcm-top3": "BCM, balanced, three classes mined (`bcm-top3`)",
    "bcm-published": "BCM in its published settings (`bcm-published`)",
    "diam": "DIaM",
    "diam-published": "DIaM with its published weights (`diam-published`)",
    "nsf": "NSF",
    "score": "score fusion",
    "npf": "NPF",
    "npf-fitted": "NPF with fitted rows (`npf-fitted`)",
    "imprint": "imprinting",
    "imprint-centred": "imprinting, centred (`imprint-centred`)",
    "log-odds": "log-odds rule",
    "background-share": "background-share rule",
    "gated": "gated rule",
}
ABLATIONS = {
    "pcn": "PCN, the paper's (`pcn`)",
    "pcn-as-printed": "PCN as printed (`pcn-as-printed`)",
    "pcn-as-printed-scaled": "the same on scores times a learned scale (`pcn-as-printed-scaled`)",
    "pcn-support": "**PCN-support**, ours (`pcn-support`)",
    "score": "score fusion",
    "score+support": "score fusion with our calibrator (`score+support`)",
    "npf": "NPF",
    "npf+support": "NPF with our calibrator (`npf+support`)",
    "nsf": "NSF",
    "acastle": "ACASTLE",
    "acastle+support": "ACASTLE with our calibrator (`acastle+support`)",
    "denet": "DENet",
    "denet+support": "DENet with our calibrator (`denet+support`)",
    "pfenet": "PFENet",
    "pfenet+support": "PFENet with our calibrator (`pfenet+support`)",
    "linear-no-residual": "linear layer without residual (`linear-no-residual`)",
    "linear": "linear layer (`linear`)",
    "self-attention": "self-attention over classes (`self-attention`)",
    "pixel": "learned per-pixel calibrator (`pixel`)",
    "pcn-support-attention": "PCN-support with the paper's cross-covariance (`pcn-support-attention`)",
    "pcn-support-layer2": "the same, layer 2 alone (`pcn-support-layer2`)",
    "pcn-support-layer3": "the same, layer 3 alone (`pcn-support-layer3`)",
    "pcn-support-layer4": "the same, layer 4 alone (`pcn-support-layer4`)",
    "pcn-support-pooled": "the same, pyramid alone (`pcn-support-pooled`)",
    "pcn-support-layer4-pooled": "the same, layer 4 and pyramid (`pcn-support-layer4-pooled`)",
    "linear-probe": "linear probe",
}
SETTINGS = {
    "score": "score fusion",
    "nsf": "NSF",
    "log-odds": "log-odds rule",
    "cross-entropy": "cross entropy alone (`cross-entropy`)",
    "pixels-once": "novel pixels count once (`pixels-once`)",
    "nsf-alone": "NSF alone is read, not both fusions (`nsf-alone`)",
    "pcn-support": "**as chosen** (`pcn-support`)",
}
WEIGHTS = {
    "nsf": "NSF",
    "bcm": "BCM",
    "diam-1": "DIaM, weight 1 (`diam-1`)",
    "diam-3": "**DIaM, weight 3** (`diam-3`; chosen)",
    "diam-10": "DIaM, weight 10 (`diam-10`)",
    "diam-30": "DIaM, weight 30 (`diam-30`)",
    "diam-100": "DIaM, weight 100 (`diam-100`; published)",
}


def systems(encoder: str, shots: int, protocol: str, folds: Sequence[int] = FOLDS) -> list[tuple[str, ...]]:
    """Every system that was evaluated on some folds, with the average and each fold."""
    unit = "tasks" if protocol == "paired" else "draws"
    head = ("", "base", "novel", "H", *(f"fold {fold}" for fold in folds), f"{unit} per fold")
    head += ("paper's H",) if protocol == "paired" else ()
    rows: list[tuple[float, tuple[str, ...]]] = []
    for method, label in SYSTEMS.items():
        records = _records(encoder, method, shots, protocol, folds)
        if len(records) < len(folds):
            continue
        figures = _average(records)
        cells = [_pair(figures, part) for part in ("base", "novel", "harmonic")]
        cells += [_pair(_average([record]), "harmonic") for record in records]
        paper = [_paper(records[0], None)] if protocol == "paired" else []
        rows.append((_h(figures), (label + _mark(records), *cells, _counts(records), *paper)))
    return [head, *_ranked(rows)]


def evaluated_folds(encoder: str, method: str, shots: int) -> tuple[int, ...]:
    """Folds on which a method has a record under the paired protocol."""
    return tuple(fold for fold in FOLDS if _records(encoder, method, shots, "paired", (fold,)))


def one_fold(encoder: str, shots: int, methods: dict[str, str], order: bool = False) -> list[tuple[str, ...]]:
    """Methods on fold 0 under the paired protocol."""
    head = ("", "base", "novel", "H", "tasks", "paper's H")
    rows: list[tuple[float, tuple[str, ...]]] = []
    for method, label in methods.items():
        for record in _records(encoder, method, shots, "paired", (0,)):
            figures = _average([record])
            cells = [_pair(figures, part) for part in ("base", "novel", "harmonic")]
            row = (label + _mark([record]), *cells, f"{record.tasks:,}", _paper(record, 0))
            rows.append((_h(figures), row))
    return [head, *(_ranked(rows) if order else [row for _, row in rows])]


def short(encoder: str) -> list[tuple[str, ...]]:
    """The README's table: H of the compared systems, four folds, 1 and 5 shots."""
    rows: list[tuple[float, tuple[str, ...]]] = []
    for method, label in SYSTEMS.items():
        found = {shots: _records(encoder, method, shots, "paired", FOLDS) for shots in (1, 5)}
        if method in ("pixel", "diam-published") or not all(len(records) == len(FOLDS) for records in found.values()):
            continue
        cells = [
            _pair(_average(records), "harmonic") + (" *" if min(r.tasks for r in records) < TASKS else "")
            for records in found.values()
        ]
        papers = [_paper(records[0], None) for records in found.values()]
        rows.append((_h(_average(found[1])), (label, *cells, *papers)))
    return [("", "1 shot", "5 shots", "paper, 1 shot", "paper, 5 shots"), *_ranked(rows)]


def tuning(encoder: str, shots: int, settings: dict[str, str], place: str = "") -> list[tuple[str, ...]]:
    """H of settings on held-out base classes, a column for every fold and part that was evaluated."""
    folders = _evaluated_parts(f"{place}pascal-{encoder}")
    rows = [(label, *_tuned(folders, method, shots)) for method, label in settings.items()]
    return [("", *map(_part, folders)), *rows]


def rates(encoder: str, shots: int, chosen: str = "0.5") -> list[tuple[str, ...]]:
    """H of NSF on held-out base classes with novel classifiers fitted at several learning rates."""
    found = sorted(path.name.removeprefix("rate-") for path in (ROOT / "tuning").glob("rate-*"))
    folders = {rate: _evaluated_parts(f"rate-{rate}/pascal-{encoder}") for rate in found}
    rows = [(rate + " (chosen)" * (rate == chosen), *_tuned(folders[rate], "nsf", shots)) for rate in found]
    return [("rate", *map(_part, folders[chosen])), *rows]


def _evaluated_parts(place: str) -> list[Path]:
    return sorted((ROOT / "tuning" / place).glob("fold*-part*"))


def _part(folder: Path) -> str:
    """``fold 1, part 2 of 3`` from the name of a folder."""
    return "fold {}, part {} of {}".format(*re.findall(r"\d+", folder.name))


def _tuned(folders: Sequence[Path], method: str, shots: int) -> list[str]:
    records = [record for folder in folders for record in _found(folder, f"{method}-{shots}shot-seed0")]
    return [_pair(_average([record]), "harmonic") for record in records]


TABLES: dict[str, Callable[[], list[tuple[str, ...]]]] = {
    "short": lambda: short("lite0"),
    "paired 1 shot": lambda: systems("lite0", 1, "paired"),
    "paired 5 shots": lambda: systems("lite0", 5, "paired"),
    "joint 1 shot": lambda: systems("lite0", 1, "joint"),
    "joint 5 shots": lambda: systems("lite0", 5, "joint"),
    "ablations": lambda: one_fold("lite0", 1, ABLATIONS),
    "tuning": lambda: tuning("lite0", 1, SETTINGS),
    "tuning diam 1 shot": lambda: tuning("lite0", 1, WEIGHTS, "diam/"),
    "tuning rates": lambda: rates("lite0", 1),
    "lite4 1 shot": lambda: systems("lite4", 1, "paired", evaluated_folds("lite4", "pcn-support", 1)),
    "resnet50 1 shot": lambda: one_fold("resnet50", 1, SYSTEMS, order=True),
    "resnet50 5 shots": lambda: one_fold("resnet50", 5, SYSTEMS, order=True),
}


def page(text: str) -> str:
    """A page with its tables made again."""
    return re.sub(r"(<!-- table: (.+?) -->\n).*?(<!-- end -->)", _fill, text, flags=re.DOTALL)


def _fill(found: re.Match[str]) -> str:
    head, *rows = TABLES[found[2]]()
    lines = [head, ("---",) * len(head), *rows]
    return found[1] + "".join(f"| {' | '.join(line)} |\n" for line in lines) + found[3]


def _records(encoder: str, method: str, shots: int, protocol: str, folds: Iterable[int]) -> list[Record]:
    folders = [ROOT / "results" / f"pascal-{encoder}" / f"fold{fold}" for fold in folds]
    return [record for folder in folders for record in _found(folder, f"{method}-{shots}shot-{protocol}-seed0")]


def _found(folder: Path, name: str) -> list[Record]:
    """The record of a name in a folder, of several the one with most tasks; none if there is none."""
    records = [read_record(path) for path in sorted(folder.glob(f"{name}-*.json"))]
    return [max(records, key=lambda record: record.tasks)] if records else []


def _average(records: Sequence[Record]) -> dict[str, Figures]:
    """Figures by metric; H is that of averaged base and novel figures."""
    return {metric: average([r.figures[metric] for r in records], per_class=False) for metric in METRICS}


def _pair(figures: dict[str, Figures], part: str) -> str:
    """Per-image / accumulated."""
    return " / ".join(f"{getattr(figures[metric], part):.1f}" for metric in METRICS)


def _h(figures: dict[str, Figures]) -> float:
    return figures["per-image"].harmonic or 0.0


def _ranked(rows: list[tuple[float, tuple[str, ...]]]) -> list[tuple[str, ...]]:
    """Best first."""
    return [row for _, row in sorted(rows, key=lambda row: -row[0])]


def _counts(records: Sequence[Record]) -> str:
    counts = [f"{record.tasks:,}" for record in records]
    return counts[0] if len(set(counts)) == 1 else ", ".join(counts)


def _mark(records: Sequence[Record]) -> str:
    """A dagger beside calibrators from before the present form, whose loss knew no overlap."""
    specs = [record.spec for record in records if "calibrator" in record.spec]
    return " †" if any(spec["training"]["overlap"] == 0 for spec in specs) else ""


def _paper(record: Record, fold: int | None) -> str:
    """H of the paper, per-image, of its own end-to-end ResNet-50; empty where it has none."""
    found = comparable_figure(
        data=record.data,
        method=record.method,
        protocol="paired",
        metric="per-image",
        encoder=record.encoder,
        shots=record.shots,
        fold=fold,
    )
    return f"{found[0].harmonic:.2f}" if found and found[0].harmonic is not None else ""


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(page(path.read_text(encoding="utf-8")), encoding="utf-8")
