"""What training cost: one small CSV beside the records of a fold."""

from __future__ import annotations

import csv
import io
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from gfss.common.errors import GfssError
from gfss.common.files import write_atomically


@dataclass(frozen=True)
class TrainingCost:
    """Time and memory of training one method for a number of shots, without the base model.

    Attributes:
        seconds: of the run that finished the training.
        peak_memory_mb: largest memory of the process until then, None where the system does not tell.
        resumed: the run continued an earlier one, so the seconds are not all.
        cpu: processor.
        artifact: identity of what was trained.
    """

    method: str
    shots: int
    seconds: float
    peak_memory_mb: float | None
    resumed: bool
    cpu: str
    artifact: str = ""


def cost_words(cost: TrainingCost, seconds: int = 3600) -> tuple[str, str]:
    """Time (in hours, or units of so many seconds) and gigabytes of a training, for a table."""
    digits = 2 if seconds == 3600 else 1
    memory = "-" if cost.peak_memory_mb is None else f"{cost.peak_memory_mb / 1024:.1f}"
    return f"{'> ' if cost.resumed else ''}{cost.seconds / seconds:.{digits}f}", memory


def read_costs(path: Path) -> list[TrainingCost]:
    """The costs in a file, none if there is no file."""
    if not path.exists():
        return []
    rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
    try:
        return [
            TrainingCost(
                method=row["method"],
                shots=int(row["shots"]),
                seconds=float(row["seconds"]),
                peak_memory_mb=float(row["peak_memory_mb"]) if row["peak_memory_mb"] else None,
                resumed=row["resumed"] == "True",
                cpu=row["cpu"],
                artifact=row["artifact"],
            )
            for row in rows
        ]
    except (KeyError, TypeError, ValueError):
        raise GfssError(f"{path} is not a table of training costs; remove it, gfss run writes a new one") from None


def add_cost(path: Path, cost: TrainingCost) -> None:
    """Add a cost to a file, in place of an older one of the same artefact."""
    kept = [old for old in read_costs(path) if old.artifact != cost.artifact]
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(TrainingCost)], lineterminator="\n")
    writer.writeheader()
    for row in sorted([*kept, cost], key=lambda c: (c.method, c.shots)):
        seconds = f"{row.seconds:.1f}"
        writer.writerow({**asdict(row), "seconds": seconds})
    with write_atomically(path) as file:
        file.write(text.getvalue().encode())
