"""Teach a model a class that it does not know, see what changed, undo it. Nothing to download.

    python examples/teach_a_class.py

The images are generated scenes of everyday shapes; with your own photographs take the model "voc20-lite0" and give
the paths of your images and masks instead.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from PIL import Image

import gfss
from gfss.data import open_dataset
from gfss.data.datasets.scenes import make_scenes


def main() -> None:
    """Teach, segment, report, forget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="scenes-tiny", help="embedded model or folder of a model")
    parser.add_argument("--shots", type=int, default=3, help="labelled images to teach from")
    parser.add_argument("--out", type=Path, default=Path("example"), help="folder for what is written")
    options = parser.parse_args()

    model = gfss.load(options.model)
    scenes = make_scenes(seed=7, train=60, val=30, workers=1)  # other scenes than the model was trained on
    train, val = (open_dataset(str(scenes), split=split) for split in ("train", "val"))
    name = next((name for name in train.classes if name not in model.classes), None)
    if name is None:
        parser.error(f"{options.model} knows every shape already; take a model of one fold")

    class_id = train.classes.index(name) + 1
    chosen = train.images_of(class_id)[: options.shots]
    model.teach(name, [train.images[i] for i in chosen], [train.mask(i) == class_id for i in chosen])

    query = val.images_of(class_id)[0]
    result = model.segment(val.images[query])
    print(f"{val.ids[query]}: " + ", ".join(f"{found} {share:.1%}" for found, share in result.found.items()))
    result.save(options.out / "mask.png", overlay=True)
    side_by_side([Image.fromarray(result.image), result.overlay()], options.out / "side-by-side.png")

    report = model.report(scenes)  # the val images of the folder are the validation set
    print(report)
    report.save(options.out / "report.html")

    model.save(options.out / f"knows-{name}")
    model.forget(name)
    print(f"forgotten again: {name not in model.classes}")


def side_by_side(images: list[Image.Image], path: Path) -> None:
    """Write images of one size next to each other, twice as large."""
    width, height = (2 * side for side in images[0].size)
    sheet = Image.new("RGB", (len(images) * (width + 8) - 8, height), "white")
    for place, image in enumerate(images):
        sheet.paste(image.resize((width, height), Image.Resampling.NEAREST), (place * (width + 8), 0))
    sheet.save(path)


if __name__ == "__main__":
    main()
