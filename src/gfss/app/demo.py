"""The demonstration: teach, segment and report on generated scenes, as one would on photographs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from gfss.app.batch import segment_files
from gfss.app.inputs import find_images
from gfss.app.segmenter import load
from gfss.common.errors import GfssError
from gfss.common.files import make_folder
from gfss.data.datasets.scenes import labelled_scene, make_scenes

MODEL, NAME, SHOTS, NEW = "scenes-tiny", "ring", 5, 6
SEED, VAL = 7, 30  # other scenes than the model was trained on


def demo(folder: Path) -> Iterator[str]:
    """Teach the embedded model a class, segment new images, write a report; a line about every step.

    Args:
        folder: new or empty; gets ``photos``, ``masks``, ``new-photos``, ``validation``, ``model``, ``segmented`` and
            ``report.html``.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise GfssError(f"{folder} is not an empty folder; remove it, or run gfss demo in another folder")
    _write_images(folder)
    validation = make_scenes(folder / "validation", seed=SEED, train=1, val=VAL, workers=1)

    model = load(MODEL)
    yield f"{MODEL} knows {', '.join(model.classes[1:])}; it has never seen a {NAME}."
    photos, masks, out = folder / "photos", folder / "masks", folder / "model"
    yield f"\n$ gfss teach {MODEL} --name {NAME} --images {photos} --masks {masks} -o {out}"
    estimate = model.teach(NAME, photos, masks)
    model.save(out)
    yield f"{NAME}: {estimate.words}"

    segmented = folder / "segmented"
    yield f"\n$ gfss segment {out} {folder / 'new-photos'} -o {segmented}"
    yield from segment_files(model, find_images([folder / "new-photos"]), segmented)

    page = folder / "report.html"
    yield f"\n$ gfss report {out} --validation {validation} -o {page}"
    report = model.report(validation)
    report.save(page)
    row = next(row for row in report.sections[-1].rows if row.name == NAME)
    yield f"IoU of {NAME} on {VAL} labelled images: {row.after or 0:.0f}; the page has every class before and after."
    yield f"\nLook at {segmented}/*_overlay.jpg and {page}. The same commands work with your own photographs."


def _write_images(folder: Path) -> None:
    """Labelled and new images of the class that is taught."""
    for name in ("photos", "masks", "new-photos"):
        make_folder(folder / name)
    for number in range(SHOTS + NEW):
        image, mask = labelled_scene(NAME, (SEED, number))
        if number < SHOTS:
            Image.fromarray(image).save(folder / "photos" / f"{number}.png")
            Image.fromarray(np.uint8(255) * mask).save(folder / "masks" / f"{number}.png")
        else:
            Image.fromarray(image).save(folder / "new-photos" / f"{number}.png")
