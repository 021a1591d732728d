"""Records: one JSON file per run, with all that is needed to repeat it and to compare it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from gfss.common.errors import GfssError
from gfss.common.files import read_json, write_atomically
from gfss.common.options import mistake
from gfss.evaluation.metrics import Figures, Metric

MetricName = Literal["per-image", "accumulated"]


class Run(BaseModel):
    """What may differ between two runs of one specification.

    Attributes:
        seconds: time of every part of the run.
        peak_memory_mb: largest memory of the process, None where the system does not tell.
        versions: Python, packages and processor.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    seconds: dict[str, float] = {}
    peak_memory_mb: float | None = None
    versions: dict[str, str] = {}


class PerTask(BaseModel):
    """Base and novel of every task in percent, to two digits; see :meth:`gfss.evaluation.metrics.Metric.per_task`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    base: list[float]
    novel: list[float]


class Record(BaseModel):
    """One run: a method evaluated on one fold under one protocol.

    Attributes:
        data: name of the data set.
        fold: number of the fold, or the novel classes' names for own data.
        shots: labelled images per novel class.
        encoder: name of the encoder.
        method: name of the method.
        protocol: "paired" or "joint".
        tasks: number of tasks.
        seed: seed of the tasks.
        spec: every other setting that the result depends on, as in a recipe; tables average over its seeds and folds.
        artifacts: identities of the evaluation and of what it was made with.
        base_classes: names of the base classes.
        novel_classes: names of the novel classes.
        supports: for every task the ids of its support images, class by class.
        figures: figures in percent under each metric.
        per_task: base and novel of every task under each metric; None in records from before they were kept.
        run: time, memory and versions, the only part that may differ when a run is repeated.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    data: str
    fold: int | str
    shots: NonNegativeInt
    encoder: str
    method: str
    protocol: Literal["paired", "joint"]
    tasks: PositiveInt
    seed: int
    spec: dict[str, Any] = {}
    artifacts: list[str] = []
    base_classes: list[str]
    novel_classes: list[str]
    supports: list[list[str]]
    figures: dict[MetricName, Figures] = Field(min_length=1)
    per_task: dict[MetricName, PerTask] | None = None
    run: Run = Run()

    @field_validator("figures")
    @classmethod
    def _has_every_class(cls, figures: dict[MetricName, Figures], info: ValidationInfo) -> dict[MetricName, Figures]:
        names = [*info.data.get("base_classes", []), *info.data.get("novel_classes", [])]
        for metric, values in figures.items():
            if set(values.classes) != set(names):
                raise ValueError(f"the classes of '{metric}' should be the base and novel classes of the record")
        return figures

    @field_validator("per_task")
    @classmethod
    def _has_every_task(
        cls, per_task: dict[MetricName, PerTask] | None, info: ValidationInfo
    ) -> dict[MetricName, PerTask] | None:
        for metric, values in (per_task or {}).items():
            if {len(values.base), len(values.novel)} != {info.data.get("tasks")}:
                raise ValueError(f"the figures of single tasks of '{metric}' should be as many as the tasks")
        return per_task


def same_result(first: Record, second: Record) -> bool:
    """Whether two records are equal apart from time, memory and versions; older ones lack figures of single tasks."""
    left_out = {"run"} if first.per_task and second.per_task else {"run", "per_task"}
    return first.model_dump(exclude=left_out) == second.model_dump(exclude=left_out)


def per_task(metrics: Mapping[str, Metric], order: Sequence[int]) -> dict[MetricName, PerTask]:
    """Figures of single tasks for a record.

    Args:
        order: number of the task that each value belongs to.
    """
    found: dict[MetricName, PerTask] = {}
    for name, metric in metrics.items():
        parts = (dict(zip(order, values, strict=True)) for values in metric.per_task())
        base, novel = ([round(part[number], 2) for number in sorted(part)] for part in parts)
        found[cast(MetricName, name)] = PerTask(base=base, novel=novel)
    return found


def write_record(path: Path | str, record: Record) -> None:
    """Write a record atomically."""
    write_records({Path(path): record})


def write_records(records: Mapping[Path, Record]) -> None:
    """Write records atomically, all of them or, if one cannot be written, none."""
    with ExitStack() as files:
        for path, record in records.items():
            file = files.enter_context(write_atomically(path))
            file.write(_as_text(record).encode())
            file.flush()  # a full disk shows here, before any of them takes its place


def _as_text(record: Record) -> str:
    """A record as JSON; the lists of names and supports and the figures of single tasks take one line each."""
    lines = []
    for key, value in record.model_dump(mode="json", exclude=None if record.per_task else {"per_task"}).items():
        indent = 1 if isinstance(value, dict) and key != "per_task" else None
        text = json.dumps(value, ensure_ascii=False, indent=indent).replace("\n", "\n ")
        lines.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read_record(path: Path) -> Record:
    """Read a record; say in one sentence what is wrong with the file."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise GfssError(f"{path} is not a record: it holds a JSON {type(content).__name__}, not an object")
    try:
        return Record.model_validate(content)
    except ValidationError as error:
        raise GfssError(f"{path} is not a record of this version: {_explain(error)}") from None


def read_records(paths: Iterable[Path]) -> list[Record]:
    """All records among files and folders; refuses two that claim the same run with other figures."""
    known: dict[str, Path] = {}
    records: list[Record] = []
    for path in find_records(paths):
        record = read_record(path)
        run = record.model_dump_json(exclude={"supports", "figures", "per_task", "run", "artifacts"})
        twin = known.setdefault(run, path)
        if twin != path and not same_result(read_record(twin), record):
            raise GfssError(
                f"{twin} and {path} are records of one specification with different figures; leave the outdated one out"
            )
        records.append(record)
    return records


def find_records(paths: Iterable[Path]) -> list[Path]:
    """Record files among files and folders; folders are searched for ``*.json`` with their subfolders.

    Other JSON files in a folder, such as those of trained models, are passed over.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if not path.exists():
            raise GfssError(f"{path} does not exist; give record files (JSON) or folders of them")
        inside = [file for file in sorted(path.rglob("*.json")) if _may_be_record(file)] if path.is_dir() else [path]
        if not inside:
            raise GfssError(f"there is no record (*.json) under {path}; gfss evaluate writes them")
        found.update(dict.fromkeys(inside))
    return list(found)


def is_record(content: Any) -> bool:
    """Whether the content of a JSON file is meant to be a record."""
    return isinstance(content, dict) and {"protocol", "method"} <= content.keys()


def _may_be_record(file: Path) -> bool:
    """Whether a JSON file in a folder is meant to be a record; a torn one may be."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return True
    return is_record(content)


def peak_memory_mb() -> float | None:
    """Largest memory that this process has used so far, None where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)  # bytes on macOS, kilobytes elsewhere


def _explain(error: ValidationError) -> str:
    """The first thing that is wrong, in words."""
    first, *others = error.errors()
    place = ".".join(str(part) for part in first["loc"])
    match first["type"]:
        case "missing":
            words = f"'{place}' is missing"
        case "extra_forbidden":
            words = f"'{place}' is not known"
        case "value_error":
            words = first["msg"].removeprefix("Value error, ")
        case _:
            words = mistake(first, place)
    return words + (f" (and {len(others)} more)" if others else "")
