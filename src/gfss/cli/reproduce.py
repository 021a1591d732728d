"""`gfss reproduce`: a table or a figure of the paper."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from gfss.cli import options as o
from gfss.common.errors import GfssError, unknown

if TYPE_CHECKING:
    from gfss.evaluation.records import MetricName, Record
    from gfss.experiments.plan import Plan
    from gfss.reporting.tables import Table

app = typer.Typer()
FIGURE_FOLDER = Path("figures")


class Format(StrEnum):
    """How a table is printed."""

    TEXT = "text"
    MD = "md"
    LATEX = "latex"


@app.command("reproduce")
def reproduce(
    name: Annotated[str, typer.Argument(help="table1 to table8, or fig1 to fig6.")],
    results: Annotated[list[Path] | None, typer.Option(help="Folders of records (default: results).")] = None,
    run: Annotated[bool, typer.Option("--run", help="First run what is missing.")] = False,
    recipe: Annotated[str, typer.Option(help="Recipe to run or to take models from; a frozen one if left out.")] = "",
    change: Annotated[list[str] | None, typer.Option("--set", help="Change the recipe: key=value.")] = None,
    encoder: Annotated[str, typer.Option(help="Only this encoder's records; all that there are if left out.")] = "",
    protocol: Annotated[str, typer.Option(help="paired (the paper's) or joint.")] = "paired",
    metric: Annotated[str, typer.Option(help="per-image (the paper's) or accumulated.")] = "per-image",
    style: Annotated[Format, typer.Option("--format", "-f", help="Form of a table.")] = Format.TEXT,
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of a figure's PNG.")] = FIGURE_FOLDER,
    examples: Annotated[int, typer.Option(min=1, help="Rows of a figure.")] = 4,
    root: o.Root = None,
    encoder_weights: o.Weights = None,
    runs: o.Runs = o.RUNS,
    threads: o.Threads = 0,
) -> None:
    """Make a table or a figure of the paper from records and trained models, the paper's numbers beside ours.

    Cells without a record say "not run"; --run does what is missing first. Figures need the data and trained models.
    """
    from gfss.reporting import reproduce as paper
    from gfss.reporting.paper_tables import FIGURES, target

    o.use_threads(threads)
    places = results or [Path("results")]
    if name not in FIGURES:
        target(name)
    if protocol not in ("paired", "joint"):
        raise unknown("protocol", protocol, ("paired", "joint"))
    if metric not in ("per-image", "accumulated"):
        raise unknown("metric", metric, ("per-image", "accumulated"))
    if name == "table8" and (protocol, metric) != ("paired", "per-image"):
        raise GfssError("table8 shows H of the paired protocol under the per-image metric only; leave the options out")
    if run and encoder and not recipe and name not in FIGURES and recipe_for(name, encoder) is None:
        raise GfssError(f"no recipe of {name} is about encoder {encoder}; give one with --recipe")
    plan = _plan(name, recipe, change or [], encoder, protocol if run else "", places[0], root, encoder_weights, runs)
    if run:
        from gfss.common.progress import console
        from gfss.experiments.runner import run_plan

        run_plan(plan, lambda words: console.print(words, highlight=False, markup=False))
    if name in FIGURES:
        typer.echo(f"{name}: {_figure(name, plan, out, examples)}")
        return
    records = _records(places)
    chosen = [encoder] if encoder else paper.encoders_of(records, plan.recipe.data) or [plan.recipe.encoder]
    tables: dict[str, list[Table]] = {}
    for one in chosen:
        if name == "table8":
            tables[one] = paper.cost_tables(records, places, one)
        else:
            tables[one] = paper.make_tables(name, records, one, protocol, cast("MetricName", metric))
    _print([table for own in tables.values() for table in own], style)
    of_recipe = [f"--recipe {recipe}"] * bool(recipe) + [f"--set {one}" for one in change or ()]
    given = [f"--protocol {protocol}"] * (protocol != "paired") + [f"--runs {runs}"] * (runs != o.RUNS)
    given += [f"--results {place}" for place in results or ()]
    for one, own in tables.items():
        options = [*of_recipe * (one == plan.recipe.encoder), *given]
        _say_what_is_missing(name, one, paper.missing_rows(own), plan, protocol, options)


def _plan(
    name: str,
    recipe: str,
    changes: list[str],
    encoder: str,
    protocol: str,
    out: Path,
    root: Path | None,
    weights: Path | None,
    runs: Path,
) -> Plan:
    """The plan of the part of a recipe that a table or figure needs.

    Args:
        protocol: which will be run; all of the recipe if empty.
    """
    from gfss.experiments.plan import Plan
    from gfss.experiments.recipe_files import find_recipe, read_recipe
    from gfss.experiments.recipe_options import about_methods
    from gfss.reporting.paper_tables import FIGURES, TABLES

    table = "table3" if name in FIGURES else name
    file = find_recipe(recipe or recipe_for(table, encoder) or TABLES[table].recipes[0])
    whole = read_recipe(file, changes)
    if name in FIGURES:
        from gfss.reporting.figures import METHODS_OF

        names = METHODS_OF[name]
    else:
        names = [row.method for row in TABLES[name].rows]
    methods = [method for method in whole.methods if method in names]
    if not methods:
        raise GfssError(f"the recipe {file} has no method of {name}; give another with --recipe")
    if protocol and protocol not in whole.protocols:
        raise GfssError(f"the recipe {file} has no {protocol} protocol; add it with --set protocols.{protocol}=5")
    protocols = {protocol: whole.protocols[protocol]} if protocol else whole.protocols
    changes_of_part = {"methods": tuple(methods), "protocols": protocols}
    part = whole.model_copy(update=changes_of_part | about_methods(vars(whole), methods))
    return Plan(part, runs, out, root, weights, records=name not in FIGURES)


def _records(places: list[Path]) -> list[Record]:
    """All records; none is no mistake here, the table then says so."""
    from gfss.evaluation.records import read_records

    there = [place for place in places if place.is_file() or any(place.rglob("*.json"))]
    if not there:
        looked = ", ".join(str(place.resolve()) for place in places)
        typer.echo(f"there are no records in {looked}; --results DIR names another folder", err=True)
    return read_records(there) if there else []


def _figure(name: str, plan: Plan, out: Path, examples: int) -> Path:
    from gfss.experiments.requirements import missing
    from gfss.reporting.figures import make_figure

    if sentence := missing(plan.recipe.data, plan.recipe.encoder, plan.root, plan.weights):
        raise GfssError(f"{name} cannot be made: {sentence}")
    experiment = plan.experiment(plan.recipe.folds[0])
    shots = plan.recipe.shots[0]
    grid = make_figure(name, experiment, plan.recipe.methods, shots, plan.recipe.seeds[0], examples)
    path = out / f"{name}-{plan.recipe.data}-{plan.recipe.encoder}.png"
    grid.save(path)
    for note in grid.notes:
        typer.echo(note)
    return path


def _print(tables: list[Table], style: Format) -> None:
    from gfss.cli.tables import print_tables
    from gfss.reporting.formats import as_latex, as_markdown

    if style is Format.TEXT:
        print_tables(tables)
    else:
        typer.echo((as_markdown if style is Format.MD else as_latex)(tables), nl=False)


def _say_what_is_missing(
    name: str, encoder: str, methods: list[str], plan: Plan, protocol: str, given: list[str]
) -> None:
    """Below a table with gaps: how they are filled, and what that needs.

    Args:
        given: further options of the command.
    """
    from gfss.experiments.recipe_files import find_recipe, read_recipe
    from gfss.experiments.requirements import missing
    from gfss.reporting.paper_tables import TABLES

    if not methods:
        return
    words, own = f"not run with {encoder}: {', '.join(methods)}", encoder == plan.recipe.encoder
    file = None if own else recipe_for(name, encoder)
    if not own and file is None:
        typer.echo(f"{words}; no recipe of {name} is about this encoder", err=True)
        return
    recipe = read_recipe(find_recipe(file)) if file else plan.recipe
    there = [method for method in methods if method in recipe.methods]
    if not there or protocol not in recipe.protocols:
        what = "none of them" if not there else f"no {protocol} protocol"
        typer.echo(f"{words}; the recipe has {what}", err=True)
        return
    which = "what is missing" if there == methods else ", ".join(there)
    if len(recipe.folds) < len(TABLES[name].folds):
        which += f" on fold {' and '.join(map(str, recipe.folds))}"
    command = " ".join([f"gfss reproduce {name} --run --encoder {encoder}", *given])
    typer.echo(f"{words}; {command} runs {which}", err=True)
    if sentence := missing(plan.recipe.data, encoder, plan.root, plan.weights if own else None):
        typer.echo(f"that needs more than is here: {sentence}", err=True)


def recipe_for(name: str, encoder: str) -> str | None:
    """The recipe that makes a table with an encoder, the CPU-scale one first; None where there is none."""
    from gfss.experiments.recipe_files import find_recipe, read_recipe
    from gfss.reporting.paper_tables import target

    files = {recipe: find_recipe(recipe) for recipe in target(name).recipes}
    return next((recipe for recipe, file in files.items() if read_recipe(file).encoder == encoder), None)
