"""The practitioner's commands: teach, segment, classes, report, balance, forget, rename, suggest, export."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from gfss.cli import options as o
from gfss.common.errors import GfssError

if TYPE_CHECKING:
    from gfss.app.report import Report

app = typer.Typer()
EXPORTED = (".onnx", ".xml")  # endings of exported models


class Format(StrEnum):
    """Formats of exported models."""

    ONNX = "onnx"
    OPENVINO = "openvino"

    @property
    def ending(self) -> str:
        """Of their files."""
        return ".xml" if self is Format.OPENVINO else ".onnx"


Model = Annotated[str, typer.Argument(help="Name of an embedded model, or a model folder.", metavar="MODEL")]
Out = Annotated[
    Path | None, typer.Option("-o", "--out", help="Folder for the new model (default: change MODEL in place).")
]
Validation = Annotated[Path | None, typer.Option(help="Labelled images on which to check the known classes as well.")]
Guard = Annotated[
    float, typer.Option(help="Points of IoU that a known class may lose without a warning.", callback=o.within(0, 100))
]


@app.command("teach")
def teach(
    model: Model,
    name: Annotated[list[str], typer.Option(help="Name of the new class; repeat it to teach several.")],
    images: Annotated[list[Path], typer.Option(help="Image or folder of images; may be repeated.")],
    masks: Annotated[str, typer.Option(help="Labels: DIR, labelme, coco.json, data.yaml, cvat.zip or a mask.")],
    without: Annotated[
        list[Path] | None, typer.Option(help="Image or folder of images that do not show the class; may be repeated.")
    ] = None,
    out: Out = None,
    add: Annotated[bool, typer.Option("--add", help="Add these images to a class that was taught before.")] = False,
    validation: Validation = None,
    guard: Guard = 2.0,
    strict: Annotated[
        bool, typer.Option("--strict", help="Write nothing if a known class loses more than --guard points.")
    ] = False,
    keep_images: Annotated[bool, typer.Option("--keep-images", help="Store the support images in the model.")] = False,
) -> None:
    """Teach a model one or more classes from a few labelled images, and show what that changed.

    --label says what the labels call the class, or its mask value, if it is not --name; --void VALUE which mask value
    is neither class nor background, if it is not 255.

    Example: gfss teach voc20-lite0 --name forklift --images photos --masks masks -o yard-model
    """
    from gfss.app.inputs import shows_one_class
    from gfss.app.segmenter import load

    target = _target(model, out, name)
    label, void = o.common.label, o.common.void
    if label and len(name) > 1:
        raise GfssError("--label needs exactly one --name; teach the classes one by one")
    if len(name) > 1 and shows_one_class(images, masks):
        raise GfssError(
            f"the masks in {masks} show one class, but {len(name)} names were given; teach the classes one by one"
        )
    segmenter = load(model, encoder_weights=o.common.weights)
    first = segmenter.lesson + 1
    for one in name:
        segmenter.teach(one, images, masks, without=without or (), add=add, label=label, void=void)
    segmenter.join_lessons(first)
    report = segmenter.report(validation, label=label, void=void)
    _show(report, guard)
    for one in name:
        typer.echo(f"{one}: {segmenter.estimate(one).words}")
    losses = report.losses(guard)
    if strict and losses:
        raise GfssError(f"{model} is unchanged, nothing was written: " + "; ".join(x.sentence() for x in losses))
    segmenter.save(target, keep_images=keep_images)
    typer.echo(f"{target} now knows {len(segmenter.classes) - 1} classes, including {', '.join(name)}")


@app.command("segment")
def segment(
    model: Annotated[
        str, typer.Argument(help="Name of an embedded model, a model folder or an exported file.", metavar="MODEL")
    ],
    images: Annotated[list[str], typer.Argument(help="Images, folders or patterns.", metavar="IMAGE...")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder for the masks.")],
    overlay: Annotated[bool, typer.Option(help="Also write images with the classes in colour.")] = True,
    scores: Annotated[bool, typer.Option("--scores", help="Also write the class probabilities (.npz).")] = False,
    tile: Annotated[bool, typer.Option("--tile", help="Segment large images in tiles (finds small objects).")] = False,
    balance: Annotated[
        float,
        typer.Option(help="Above 0 finds more of the taught classes, below 0 fewer.", callback=o.within(-100, 100)),
    ] = 0.0,
) -> None:
    """Write a mask for every image: an index PNG of its size; classes.txt names the values."""
    from gfss.app.batch import segment_files
    from gfss.app.exported import open_exported
    from gfss.app.inputs import find_images
    from gfss.app.segmenter import load

    network = open_exported(model) if Path(model).suffix in EXPORTED else load(model, encoder_weights=o.common.weights)
    paths = find_images(images)
    for line in segment_files(network, paths, out, balance=balance, tile=tile, overlay=overlay, scores=scores):
        typer.echo(line)


@app.command("classes")
def classes(model: Model) -> None:
    """List the classes of a model with their mask values; taught ones with the images they were taught from."""
    from gfss.app.model_folder import describe_classes

    for line in describe_classes(model):
        typer.echo(line)


@app.command("forget")
def forget(
    model: Model,
    name: Annotated[str, typer.Argument(help="Taught class to remove.")],
    out: Out = None,
) -> None:
    """Remove a taught class; the model then behaves as before it was taught."""
    from gfss.app.segmenter import load

    target = _target(model, out)
    segmenter = load(model, encoder_weights=o.common.weights)
    segmenter.forget(name)
    segmenter.save(target)
    typer.echo(f"{target} no longer knows '{name}'")


@app.command("rename")
def rename(
    model: Model,
    name: Annotated[str, typer.Argument(help="Current name.")],
    new: Annotated[str, typer.Argument(help="New name.")],
) -> None:
    """Rename a taught class."""
    from gfss.app.segmenter import load

    target = _target(model, None)
    segmenter = load(model, encoder_weights=o.common.weights)
    segmenter.rename(name, new)
    segmenter.save(target)
    typer.echo(f"{target}: renamed '{name}' to '{new}'")


@app.command("balance", context_settings={"ignore_unknown_options": True})  # a value may be negative
def balance(
    model: Model,
    name: Annotated[str, typer.Argument(help="Taught class.")],
    value: Annotated[
        float | None,
        typer.Argument(help="Above 0 finds more of the class, below 0 less; 0 is what its images said."),
    ] = None,
) -> None:
    """Show or store the balance between a taught class and all others.

    Example: gfss balance yard-model forklift 0.5
    """
    from gfss.app.segmenter import load

    target = None if value is None else _target(model, None)
    segmenter = load(model, encoder_weights=o.common.weights)
    before = segmenter.balance(name)
    if value is None or target is None:
        typer.echo(f"{before:+g}")
        return
    segmenter.set_balance(name, value)
    segmenter.save(target)
    typer.echo(f"{target}: the balance of '{name}' is {value:+g} (was {before:+g})")


@app.command("report")
def report(
    model: Model,
    validation: Validation = None,
    store: Annotated[
        bool, typer.Option("--store", help="Store the balance that the validation images recommend.")
    ] = False,
    guard: Guard = 2.0,
    page: Annotated[Path | None, typer.Option("-o", "--out", help="Also write an HTML page.")] = None,
) -> None:
    """Show what the last lesson changed for every known class (exit code 1 if one lost too much).

    --label and --void say how the labels of --validation are to be read, as for gfss teach. Given records (a JSON
    file or a folder of results), write an HTML page about them instead.
    """
    from gfss.app.segmenter import load
    from gfss.reporting.report import is_results, write_report

    if is_results(Path(model)):
        typer.echo(f"wrote {write_report([Path(model)], page or Path('report.html'))}")
        return
    if store and validation is None:
        raise GfssError("--store needs labelled images to choose a balance from; give them with --validation")
    target = _target(model, None) if store else None
    segmenter = load(model, encoder_weights=o.common.weights)
    made = segmenter.report(validation, label=o.common.label, void=o.common.void)
    _show(made, guard, page)
    if target is not None:
        for name, value in made.recommended.items():
            segmenter.set_balance(name, value)
        segmenter.save(target)
        stored = ", ".join(f"{name} {value:+g}" for name, value in made.recommended.items())
        typer.echo(f"{target}: stored the balance {stored}" if stored else f"{target}: no balance to store")
    raise typer.Exit(1 if made.losses(guard) else 0)


@app.command("suggest")
def suggest(
    model: Model,
    images: Annotated[list[str], typer.Argument(help="Unlabelled images, folders or patterns.", metavar="IMAGE...")],
) -> None:
    """Rank unlabelled images by how much a label would help: value = uncertainty x novelty."""
    from gfss.app.segmenter import load

    ranked = load(model, encoder_weights=o.common.weights).suggest(images)
    typer.echo(f"{'value':>7}{'unsure':>7}{'novelty':>9}  image")
    for one in ranked:
        typer.echo(f"{one.value:7.3f}{one.doubt:7.3f}{one.novelty:9.3f}  {one.path}")


@app.command("export")
def export(
    model: Model,
    out: Annotated[Path, typer.Option("-o", "--out", help="File to write: .onnx, or .xml for OpenVINO.")],
    form: Annotated[
        Format | None, typer.Option("--format", help="Format, where the ending of the file should be checked.")
    ] = None,
    int8: Annotated[
        bool, typer.Option("--int8", help="Compute in 8-bit integers; needs --images to take their ranges from.")
    ] = False,
    images: Annotated[
        list[str] | None, typer.Option(help="Typical images, on which the file is compared with the model.")
    ] = None,
) -> None:
    """Export a model to ONNX or OpenVINO; gfss segment accepts the file like any model.

    With --images the file is compared with the model: pixels that differ, IoU,
    speed. With --int8 half of these images give the ranges of the integers, the
    others the comparison. Needs the extra gfss\\[export] or gfss\\[openvino].

    Example: gfss export yard-model -o yard.xml --format openvino --images photos
    """
    from gfss.app.export import refuse_ending
    from gfss.app.exported import open_exported
    from gfss.app.inputs import find_images
    from gfss.app.parity import measure_parity
    from gfss.app.segmenter import load

    refuse_ending(out)
    if form and out.suffix != form.ending:
        raise GfssError(f"--format {form.value} is written to a file that ends in {form.ending}; got {out}")
    found = find_images(images or ())
    if int8 and len(found) < 2:
        raise GfssError(
            f"--int8 needs at least 2 typical images, for ranges and comparison; got {len(found)} (--images)"
        )
    segmenter = load(model, encoder_weights=o.common.weights)
    segmenter.export(out, calibration=found[::2] if int8 else ())
    typer.echo(f"wrote {out}")
    if not found:
        return
    with TemporaryDirectory() as folder:
        plain = Path(folder) / "plain.onnx" if int8 or out.suffix == ".xml" else out
        if plain != out:
            segmenter.export(plain)
        parity = measure_parity(segmenter, open_exported(out), open_exported(plain), found[1::2] if int8 else found)
    for line in parity.lines:
        typer.echo(line)


def _target(model: str, out: Path | None, new: Sequence[str] = ()) -> Path:
    """Where a changed model goes; embedded models and trained folders are not changed in place.

    Args:
        new: class names that the changed model has beside those of ``model``.
    """
    from gfss.app.model_folder import find_model, is_embedded, is_model, lessons, refuse_foreign
    from gfss.common.files import refuse_unwritable

    source = find_model(model)
    if out is None:
        if is_embedded(model) or not is_model(source):
            raise GfssError(f"{model} cannot be changed in place; give a folder for the new model with -o FOLDER")
        refuse_unwritable(source)
        return source
    refuse_foreign(out)
    refuse_unwritable(out if out.exists() else out.absolute().parent)
    if out.resolve() != source.resolve():
        lost = set(lessons(out)) - {*lessons(source), *new}
        if lost:
            raise GfssError(
                f"the model in {out} was taught {', '.join(sorted(lost))}, which would be lost; teach that model, as "
                f"in 'gfss teach {out} ...', or give another folder"
            )
    return out


def _show(report: Report, guard: float, page: Path | None = None) -> None:
    """Print a report, and write its page if wanted."""
    from gfss.app.report import text_report

    typer.echo(text_report(report, guard))
    if page:
        report.save(page, guard)
        typer.echo(f"report: {page}")
