"""`gfss compare`: two methods on the same tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gfss.cli.tables import RESULTS, print_tables
from gfss.common.errors import GfssError, unknown

if TYPE_CHECKING:
    from gfss.evaluation.records import Record

app = typer.Typer()


@app.command("compare")
def compare(
    both: Annotated[
        list[str],
        typer.Argument(help="Two methods in the folder results, or two record files or folders.", metavar="A B"),
    ],
) -> None:
    """Compare two methods on the same tasks: paired difference, 95 % bootstrap interval and p-value.

    Tasks are drawn again with replacement, inside each novel class, for the
    interval. For the p-value the two methods change places in every task at
    random. Both need records with figures of single tasks.

    Example: gfss compare pcn-support acastle
    """
    from gfss.reporting.comparison import comparison_tables

    if len(both) != 2:
        raise GfssError(f"gfss compare takes two methods or records, {len(both)} came")
    print_tables(comparison_tables(*(_records(one) for one in both)))


def _records(given: str) -> list[Record]:
    """Records in a file or folder, or of a method in the folder of results; evaluations only."""
    from gfss.evaluation.records import read_records

    if Path(given).exists():
        return [record for record in read_records([Path(given)]) if record.shots]
    known = read_records([RESULTS]) if RESULTS.exists() else []
    found = [record for record in known if record.method == given and record.shots]
    if not found:
        raise unknown("method or record", given, sorted({record.method for record in known}))
    return found
