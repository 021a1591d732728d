"""Two methods on the same tasks: which records belong together, and a table of their differences."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from gfss.common.errors import GfssError
from gfss.data.episodes import shots_in_words
from gfss.evaluation.intervals import compare
from gfss.evaluation.records import MetricName, Record
from gfss.reporting.tables import Table

HEADER = ("figure", "first", "second", "difference", "95 % interval", "p-value")
WORDS = {"base": "base", "novel": "novel", "miou": "mIoU", "mean": "mean", "harmonic": "H"}
METRICS: tuple[MetricName, ...] = ("per-image", "accumulated")

Pair = tuple[Record, Record]


def comparison_tables(first: Sequence[Record], second: Sequence[Record]) -> list[Table]:
    """Paired differences, one table per data set, number of shots, protocol and metric, over the folds of both."""
    tables: list[Table] = []
    for (data, shots, protocol), pairs in matching(first, second).items():
        one, two = ({name(pair[side]) for pair in pairs} for side in (0, 1))
        tasks = sum(pair[0].tasks for pair in pairs)
        folds = ", ".join(sorted({str(pair[0].fold) for pair in pairs}))
        for metric in METRICS:
            if not all(metric in (record.per_task or {}) for pair in pairs for record in pair):
                continue
            title = (
                f"{' / '.join(sorted(one))} against {' / '.join(sorted(two))}: {data}, {shots_in_words(shots)}, "
                f"{protocol} protocol, {metric} IoU in percent, fold {folds}, {tasks:,} tasks"
            )
            rows = [
                (
                    WORDS[one.figure],
                    f"{one.first:.2f}",
                    f"{one.second:.2f}",
                    f"{one.difference:+.2f}",
                    f"[{one.low:+.2f}, {one.high:+.2f}]",
                    f"{one.p_value:.4f}",
                )
                for one in compare(pairs, metric)
            ]
            tables.append(Table(title, HEADER, rows))
    return tables


def matching(first: Sequence[Record], second: Sequence[Record]) -> dict[tuple[str, int, str], list[Pair]]:
    """Records of the same tasks, by data set, shots and protocol; those without figures of tasks are left out."""
    others = {_tasks_of(record): record for record in second}
    if len(others) < len(second):
        raise GfssError(
            f"there are several records of {name(second[0])} on the same tasks; give the record file instead of a name"
        )
    groups: dict[tuple[str, int, str], list[Pair]] = defaultdict(list)
    old: list[Record] = []
    seen: set[tuple[object, ...]] = set()
    for record in first:
        key = _tasks_of(record)
        other = others.get(key)
        if other is None:
            continue
        if key in seen:
            raise GfssError(
                f"there are several records of {name(record)} on the same tasks; give the record file instead of a name"
            )
        seen.add(key)
        without = [one for one in (record, other) if one.per_task is None]
        if not without:
            groups[record.data, record.shots, record.protocol].append((record, other))
        old += without[:1]
    if old and not groups:
        raise GfssError(
            f"the record of {name(old[0])} on fold {old[0].fold} has no figures of single tasks, since an earlier "
            "version wrote it; evaluate it again: gfss evaluate RECIPE -o FOLDER"
        )
    if not groups:
        raise GfssError(
            "no record of the first is on the same tasks as one of the second; they need the same data, fold, shots, "
            "protocol, seed and number of tasks"
        )
    return dict(groups)


def name(record: Record) -> str:
    """Method and encoder."""
    return f"{record.method} ({record.encoder})"


def _tasks_of(record: Record) -> tuple[object, ...]:
    """What two records on the same tasks agree in."""
    tasks = (record.data, record.fold, record.shots, record.protocol, record.tasks, record.seed)
    return (*tasks, tuple(map(tuple, record.supports)))
