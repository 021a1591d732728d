"""`gfss reproduce`: a table or a figure of the paper."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from gfss.cli import options as o
from gfss.common.errors import GfssError, unknown

if TYPE_CHECKING:
    from gfss.evaluation.records import MetricName, Record
    from gfss.experiments.steps import Plan
    from gfss.reporting.tables import Table

app = typer.Typer()
FIGURE_FOLDER = Path("figures")
PAPERS = "paired/per-image"


class Format(StrEnum):
    """How a table is printed."""

    TEXT = "text"
    MD = "md"
    LATEX = "latex"
    LATEX_ALL = "latex-all"


@app.command("reproduce")
def reproduce(
    name: Annotated[str, typer.Argument(help="table1 to table9, or fig1 to fig6, as the paper numbers them.")],
    recipe: Annotated[str, typer.Option(help="Recipe with the models (default: the frozen one).")] = "",
    change: o.Changes = None,
    results: Annotated[list[Path] | None, typer.Option(help="Folders of records (default: results).")] = None,
    under: Annotated[str, typer.Option(help="Protocol and metric, such as joint/accumulated.")] = PAPERS,
    style: Annotated[
        Format, typer.Option("--format", "-f", help="Output format of a table; latex-all keeps rows that were not run.")
    ] = Format.TEXT,
) -> None:
    """Reproduce a table or figure of the paper from records and trained models, the paper's numbers beside ours.

    Cells without a record say "not run", and how to fill them is said below; latex leaves such rows out.
    per-image is the paper's metric as we infer it from the paper's numbers.
    Figures need the data and trained models; they are written to the folder figures.
    """
    from gfss.reporting.paper_tables import COSTS, FIGURES, SETTINGS, target
    from gfss.reporting.reproduce import settings_table

    if name == SETTINGS:
        _print([settings_table()], style)
        return
    if name not in FIGURES:
        target(name)
    protocol, metric = _measured(under)
    if name == COSTS and under != PAPERS:
        raise GfssError(f"{name} shows H of the paired protocol under the per-image metric only; omit --under")
    places = results or [Path("results")]
    plan = _plan(name, recipe, change or [], places[0])
    if name in FIGURES:
        typer.echo(f"{name}: {_figure(name, plan)}")
    else:
        tables = _tables(name, plan, places, protocol, metric)
        _print([table for own in tables.values() for table in own], style)
        for encoder, own in tables.items():
            _say_what_is_missing(name, encoder, own, plan, protocol, (_file(name, recipe), change or []))


def _measured(under: str) -> tuple[str, MetricName]:
    """Protocol and metric from their names."""
    from gfss.evaluation.protocols import ProtocolName
    from gfss.evaluation.records import MetricName

    protocol, _, metric = under.partition("/")
    metric = metric or "per-image"
    for kind, given, known in (
        ("protocol", protocol, get_args(ProtocolName)),
        ("metric", metric, get_args(MetricName)),
    ):
        if given not in known:
            raise unknown(kind, given, known)
    return protocol, cast("MetricName", metric)


def _tables(name: str, plan: Plan, places: list[Path], protocol: str, metric: MetricName) -> dict[str, list[Table]]:
    """Tables for every encoder of which any row was run; without a row of any, those of the first."""
    from gfss.reporting import reproduce as paper
    from gfss.reporting.paper_tables import COSTS

    records = _records(places)
    tables: dict[str, list[Table]] = {}
    for encoder in paper.encoders_of(records, plan.recipe.data) or [plan.recipe.encoder]:
        if name == COSTS:
            tables[encoder] = paper.cost_tables(records, places, encoder)
        else:
            tables[encoder] = paper.make_tables(name, records, encoder, protocol, metric)
    run = {encoder: own for encoder, own in tables.items() if any(paper.without_gaps(table).rows for table in own)}
    return run or dict(list(tables.items())[:1])


def _plan(name: str, recipe: str, changes: list[str], out: Path) -> Plan:
    """The plan of the part of a recipe that a table or figure needs."""
    from gfss.experiments.steps import Plan
    from gfss.reporting.figures import METHODS_OF
    from gfss.reporting.paper_tables import FIGURES, TABLES

    file = _file(name, recipe)
    whole = o.open_recipe(file, changes)
    names = METHODS_OF[name] if name in FIGURES else [row.method for row in TABLES[name].rows]
    methods = [method for method in whole.evaluated if method in names]
    if not methods:
        raise GfssError(f"the recipe {file} has no method of {name}; give another with --recipe")
    return Plan(whole.only(methods), o.common.runs, out, o.common.place, "methods" if name in FIGURES else None)


def _file(name: str, recipe: str) -> str:
    """The recipe that a table or figure is about, if none is asked for the CPU-scale one."""
    from gfss.reporting.paper_tables import FIGURES, TABLES

    return recipe or TABLES["table2" if name in FIGURES else name].recipes[0]


def _records(places: list[Path]) -> list[Record]:
    """All records; none is no mistake here, the table then says so."""
    from gfss.evaluation.records import read_records

    there = [place for place in places if place.is_file() or any(place.rglob("*.json"))]
    if not there:
        looked = ", ".join(str(place.resolve()) for place in places)
        typer.echo(f"there are no records in {looked}; --results DIR names another folder", err=True)
    return read_records(there) if there else []


def _figure(name: str, plan: Plan) -> Path:
    from gfss.experiments.experiment import Experiment
    from gfss.experiments.recipes import missing
    from gfss.reporting.figures import make_figure
    from gfss.reporting.overview import draw_overview

    recipe = plan.recipe
    if sentence := missing(recipe):
        raise GfssError(f"{name} cannot be made: {sentence}")
    experiment = Experiment(recipe, recipe.folds[0], plan.runs, plan.device)
    path = FIGURE_FOLDER / f"{name}-{recipe.data_name}-{recipe.encoder}.pdf"
    if name == "fig2":
        draw_overview(experiment, recipe.shots[0], path)
        return path
    grid = make_figure(name, experiment, recipe.evaluated, recipe.shots[0], recipe.seeds[0])
    grid.save(path)
    for note in grid.notes:
        typer.echo(note)
    return path


def _print(tables: list[Table], style: Format) -> None:
    from gfss.cli.tables import print_tables
    from gfss.reporting.formats import as_latex, as_markdown
    from gfss.reporting.reproduce import with_printed_names, without_gaps

    match style:
        case Format.TEXT:
            print_tables(tables)
        case Format.MD:
            typer.echo(as_markdown(tables), nl=False)
        case Format.LATEX:
            full = [table for table in map(without_gaps, tables) if table.rows]
            typer.echo(as_latex([with_printed_names(table) for table in full]), nl=False)
        case Format.LATEX_ALL:
            typer.echo(as_latex([with_printed_names(table) for table in tables]), nl=False)


def _say_what_is_missing(
    name: str, encoder: str, tables: list[Table], plan: Plan, protocol: str, given: tuple[str, list[str]]
) -> None:
    """Below a table with gaps: how they are filled, and what that needs.

    Args:
        given: the recipe's name, and changes of it.
    """
    from gfss.experiments.recipes import missing, read_recipe
    from gfss.reporting.paper_tables import TABLES
    from gfss.reporting.reproduce import missing_rows

    methods = missing_rows(tables)
    if not methods:
        return
    words = f"not run with {encoder}: {', '.join(methods)}"
    recipe, (file, changes) = plan.recipe, given
    if encoder != recipe.encoder:
        found = recipe_for(name, encoder)
        if found is None:
            typer.echo(f"{words}; no recipe of {name} is about this encoder", err=True)
            return
        recipe, file, changes = read_recipe(found), found, []
    there = [method for method in methods if method in recipe.evaluated]
    if not there or protocol not in recipe.protocols:
        what = "none of them" if not there else f"no {protocol} protocol"
        typer.echo(f"{words}; the recipe has {what}", err=True)
        return
    which = "what is missing" if there == methods else ", ".join(there)
    if len(recipe.folds) < len(TABLES[name].folds):
        which += f" on fold {' and '.join(map(str, recipe.folds))}"
    options = [f"--set {change}" for change in (f"methods={','.join(there)}", *changes)]
    typer.echo(f"{words}; {' '.join(['gfss run', file, *options])} runs {which}", err=True)
    if sentence := missing(recipe):
        typer.echo(f"that needs more than is here: {sentence}", err=True)


def recipe_for(name: str, encoder: str) -> str | None:
    """The recipe that makes a table with an encoder, the CPU-scale one first; None where there is none."""
    from gfss.experiments.recipes import read_recipe
    from gfss.reporting.paper_tables import target

    return next((recipe for recipe in target(name).recipes if read_recipe(recipe).encoder == encoder), None)
