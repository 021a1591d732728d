r"""The ``gfss`` command.

How a command joins in: ``cli/<module>.py`` defines one ``app = typer.Typer(...)`` whose commands are named explicitly,
and ``COMMANDS`` below has a row for each word that follows ``gfss``. A group (``gfss data check``) is the whole ``app``
of its module; a plain command (``gfss evaluate``) is the command of that name in the ``app``.

A module is imported when its command is called, and ``gfss --help`` is printed from the table alone, so the command
starts fast. For the same reason command modules import torch and other heavy packages inside their functions.

Commands raise ``GfssError`` for what the user can fix; ``main`` turns every error into one sentence on stderr.

Example:
    app = typer.Typer(no_args_is_help=True)

    @app.command("build")
    def build(root: Annotated[Path, typer.Argument(help="Folder of the data set.")]) -> None:
        \"\"\"Write the features of every image to the bank.\"\"\"
        from gfss.features.bank import build_bank
        ...
"""

from __future__ import annotations

import importlib.util
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperGroup
from typer.main import get_command

import gfss
from gfss.cli import options
from gfss.cli._failures import INTERRUPTED, report
from gfss.cli._lazy import Entry, LazyCommand

START = "Start here"
OWN_IMAGES = "Your own images"
RESEARCH = "Research"
DATA = "Data"

COMMANDS: dict[str, Entry] = {
    "demo": Entry("demo", "Teach, segment and report on generated images, in seconds.", START),
    "quickstart": Entry("quickstart", "Train, teach and compare on the embedded scenes in a few minutes.", START),
    "doctor": Entry("doctor", "Say what is installed and what is missing for which command.", START),
    "serve": Entry("serve", "Paint, teach and look in the browser; a REST interface too.", OWN_IMAGES),
    "teach": Entry("model", "Teach a model a new class from a few labelled images.", OWN_IMAGES),
    "train": Entry("train", "Train a model on your own labelled images.", OWN_IMAGES),
    "segment": Entry("model", "Segment images with a model.", OWN_IMAGES),
    "classes": Entry("model", "List the classes that a model knows.", OWN_IMAGES),
    "report": Entry("model", "Show what changed for every known class.", OWN_IMAGES),
    "balance": Entry("model", "Show or store the balance between a taught class and the others.", OWN_IMAGES),
    "forget": Entry("model", "Remove a taught class from a model.", OWN_IMAGES),
    "rename": Entry("model", "Rename a taught class.", OWN_IMAGES),
    "suggest": Entry("model", "Rank unlabelled images by how much a label would help.", OWN_IMAGES),
    "export": Entry("model", "Export a model to ONNX.", OWN_IMAGES),
    "data": Entry("data", "Check and prepare data sets.", DATA, group=True),
    "run": Entry("run", "Run every step of a recipe that is not done yet.", RESEARCH),
    "evaluate": Entry("evaluate", "Evaluate methods and print their figures.", RESEARCH),
    "tables": Entry("tables", "Print records as tables.", RESEARCH),
    "compare": Entry("compare", "Compare two methods on the same tasks.", RESEARCH),
    "tune": Entry("tune", "Compare settings on held-out base classes.", RESEARCH),
    "reproduce": Entry("reproduce", "Reproduce a table or figure of the paper.", RESEARCH),
    "runs": Entry("runs", "List what was trained; remove what is not needed.", RESEARCH, group=True),
}

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="rich", context_settings={"help_option_names": ["-h", "--help"]}
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gfss {gfss.__version__}")
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error (accepted anywhere on the command line).")
    ] = False,
    threads: Annotated[int, typer.Option(min=0, max=1024, help="CPU threads (0: all cores).")] = 0,
    device: Annotated[
        str, typer.Option(help="cpu, cuda or cuda:1 ...; with torchrun every process gets its own GPU.")
    ] = "cpu",
    runs: Annotated[Path, typer.Option(help="Folder of trained base models and methods.")] = options.RUNS,
    encoder_weights: Annotated[Path | None, typer.Option(help="File with the encoder's weights.")] = None,
    plugin: Annotated[Path | None, typer.Option(help="Python file with a method of your own.")] = None,
    ray: Annotated[
        str | None, typer.Option(help="Address of a Ray cluster, or local: segment, run, evaluate and tune on it.")
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="Name or mask value of the class in your labels, if it is not --name.")
    ] = None,
    void: Annotated[int | None, typer.Option(help="Value of your masks that is void, if it is not 255.")] = None,
) -> None:
    """Teach a segmentation model a new class from one to five labelled images, and keep the classes it knows.

    The options below are accepted anywhere on the command line.
    """
    options.use(options.Common(runs, device, encoder_weights, plugin, label, void), threads, ray)


def _mount() -> TyperGroup:
    """The whole command, with each row of the table whose module is there."""
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    for name, entry in COMMANDS.items():
        if importlib.util.find_spec(f"gfss.cli.{entry.module}") is not None:
            group.add_command(LazyCommand(name, entry))
    return group


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    Args:
        arguments: what follows ``gfss`` on the command line; the process's own if left out.

    Returns:
        0 for success, 1 when a check found something to fix, 2 for an error, 130 when interrupted.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    for stream in (sys.stdout, sys.stderr):  # a terminal without a character shows another instead
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        given = options.common_first([word for word in words if word != "--debug"])
        code = _mount().main(given, prog_name="gfss", standalone_mode=False)
    except (Exception, KeyboardInterrupt) as error:
        return report(error, debug)
    # typer answers Ctrl-C inside a command with the exit code alone
    return report(KeyboardInterrupt(), debug=False) if code == INTERRUPTED else int(code or 0)
