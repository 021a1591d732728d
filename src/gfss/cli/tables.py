"""`gfss tables`: records as tables."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from gfss.reporting.tables import Table

RESULTS = Path("results")
NATURAL_WIDTH = 1000  # wide enough for every table
LEAST_WIDTH = 90  # narrower, figures would be cut

app = typer.Typer()


class Format(StrEnum):
    """How a table is printed."""

    TEXT = "text"
    MD = "md"
    CSV = "csv"
    LATEX = "latex"


@app.command("tables")
def tables(
    records: Annotated[
        list[Path] | None,
        typer.Argument(help="Record files or folders of them (default: results).", show_default=False),
    ] = None,
    style: Annotated[Format, typer.Option("--format", "-f", help="Output format.")] = Format.TEXT,
    with_background: Annotated[
        bool, typer.Option("--with-background", help="Count the background as one more base class.")
    ] = False,
) -> None:
    """Print records as tables.

    All figures are IoU in percent; each table names its protocol and metric.
    mIoU weighs all classes the same, mean is (base + novel) / 2, and H is the
    harmonic mean of the averaged base and novel figures.

    csv has one row per record and metric; its last column names the settings
    that distinguish the records of a method. The other formats group the records:
    a row per fold with mean ± sample standard deviation over seeds, a row for
    the average over folds, and the paper's figures below, where it has
    comparable ones (mIoU and H of single folds follow from its base and novel).
    """
    from gfss.evaluation.records import read_records
    from gfss.reporting.formats import as_latex, as_markdown
    from gfss.reporting.tables import csv_table, grouped_tables

    found = read_records(records or [RESULTS])
    match style:
        case Format.CSV:
            typer.echo(csv_table(found, with_background), nl=False)
        case Format.MD:
            typer.echo(as_markdown(grouped_tables(found, with_background)), nl=False)
        case Format.LATEX:
            typer.echo(as_latex(grouped_tables(found, with_background)), nl=False)
        case Format.TEXT:
            print_tables(grouped_tables(found, with_background))


def print_tables(tables: Sequence[Table]) -> None:
    """Print tables for people, no figure cut; where the terminal is too narrow, without the columns of single folds."""
    from rich.console import Console

    from gfss.reporting.formats import as_rich, natural_width, without_folds

    console = Console()
    console.width = max(console.width, LEAST_WIDTH) if sys.stdout.isatty() else NATURAL_WIDTH
    for table in tables:
        short = without_folds(table)
        narrow = short != table and natural_width(table) > console.width
        console.print(as_rich(short if narrow else table))
        if narrow:
            typer.echo(
                f"the columns of single folds need a terminal of {natural_width(table)} columns, or --format md",
                err=True,
            )
