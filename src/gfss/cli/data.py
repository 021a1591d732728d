"""``gfss data``: prepare public data sets, check and view any data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gfss.cli import options as o
from gfss.data import open_dataset
from gfss.data.contact_sheet import contact_sheet
from gfss.data.datasets.coco import prepare_coco
from gfss.data.datasets.pascal import prepare_pascal
from gfss.data.validation import Finding
from gfss.data.validation import check as check_data

SHOWN = 5  # sentences per kind of problem

app = typer.Typer(help="Prepare public data sets, check and view any data set.", no_args_is_help=True)
prepare = typer.Typer(
    help="Turn the public releases of PASCAL and COCO into data folders. An interrupted run continues.",
    no_args_is_help=True,
)
app.add_typer(prepare, name="prepare")

Data = Annotated[
    str, typer.Argument(help="scenes, pascal, coco, or a path: folder, .zip or COCO .json.", metavar="DATA")
]
Out = Annotated[Path, typer.Option("--out", "-o", help="Data folder to write.")]


@prepare.command("pascal")
def pascal(
    voc: Annotated[Path, typer.Option(help="VOCdevkit, or its folder VOC2012.")],
    out: Out,
    sbd: Annotated[
        Path | None, typer.Option(help="The SBD release (benchmark_RELEASE); not needed with SegmentationClassAug.")
    ] = None,
) -> None:
    """PASCAL-5i: VOC 2012 images with the masks of VOC and SBD.

    The usual train list of 5,953 images needs train_noval.txt of the SBD
    authors in the SBD folder; without it the larger list of 10,582 is used.
    """
    _report_prepared(out, "pascal", prepare_pascal(voc, sbd, out))


@prepare.command("coco")
def coco(
    annotations: Annotated[Path, typer.Option(help="Folder with instances_train2014.json and instances_val2014.json.")],
    images: Annotated[Path, typer.Option(help="Folder with train2014/ and val2014/.")],
    out: Out,
) -> None:
    """COCO-20i: COCO 2014 with its instances drawn into index masks (needs the extra gfss\\[coco])."""
    _report_prepared(out, "coco", prepare_coco(annotations, images, out))


@app.command("check")
def check(
    data: Data,
    images: Annotated[
        list[Path] | None, typer.Option(help="The images, where they are not found by themselves.")
    ] = None,
    masks: Annotated[Path | None, typer.Option(help="The labels, where they are not found by themselves.")] = None,
) -> None:
    """Describe a data set and list its problems (exit code 1 if there are any).

    --void VALUE says which mask value is neither class nor background, if it is not 255.
    """
    console = Console(soft_wrap=True)
    findings = check_data(data, None, images=images or (), masks=masks, void=o.common.void)
    for finding in findings:
        _print(console, finding)
    problems = sum(len(texts) for finding in findings for texts in finding.problems.values())
    console.print(f"{problems} problem(s) found." if problems else "No problems found.")
    raise typer.Exit(1 if problems else 0)


@app.command("sheet")
def sheet(
    data: Data = "scenes",
    split: Annotated[str, typer.Option(help="train or val.")] = "val",
    out: Annotated[Path, typer.Option("--out", "-o", help="PNG file to write.")] = Path("sheet.png"),
) -> None:
    """Write a contact sheet: images, their masks in colour, the names of the classes."""
    contact_sheet(open_dataset(data, None, split), out)
    typer.echo(f"wrote {out}")


def _report_prepared(out: Path, name: str, remarks: list[str]) -> None:
    for remark in remarks:
        typer.echo(f"note: {remark}", err=True)
    typer.echo(f"{out} is ready; set GFSS_{name.upper()}={out} to use it")


def _print(console: Console, finding: Finding) -> None:
    console.print(finding.title, style="bold", markup=False, highlight=False)
    if finding.format:
        classes = "1 class" if len(finding.rows) == 1 else f"{len(finding.rows)} classes"
        console.print(f"{finding.images} images with {finding.format}, {classes}.")
        console.print(_table(finding))
        console.print(f"Of all pixels {finding.background:.1%} are background and {finding.void:.1%} void.")
    for remark in finding.remarks:
        console.print(f"Note: {remark}.", markup=False)
    for kind, texts in finding.problems.items():
        console.print(f"Problem: {kind} ({len(texts)})", style="red")
        for text in texts[:SHOWN]:
            console.print(f"  {text}", markup=False)
        if len(texts) > SHOWN:
            console.print(f"  ... and {len(texts) - SHOWN} more")
    if finding.onward:
        console.print(f"Teach a class from it: {finding.onward}", markup=False, highlight=False)
    console.print()


def _table(finding: Finding) -> Table:
    table = Table("class")
    for title in ("images", "large enough", "mean share of image"):
        table.add_column(title, justify="right")
    for row in finding.rows:
        table.add_row(escape(row.name), str(row.images), str(row.usable), f"{row.share:.1%}")
    return table
