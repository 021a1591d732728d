"""What can be taken away: masks, labels, the model, ONNX."""

from __future__ import annotations

import copy
import io
import json
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from gfss.app.segmenter import Segmenter
from gfss.common.errors import unknown
from gfss.common.files import make_folder, write_atomically
from gfss.data.catalog import BACKGROUND, VOID
from gfss.data.images import class_colours
from gfss.server.errors import Conflict
from gfss.server.project import Project

Step = Callable[[float, str], None]
Maker = Callable[[Segmenter, Step], Path]


class Exporter:
    """Writes exports into the project's folder.

    Args:
        project: images and labels.
        mask: what the model says of an image, by its id.
    """

    def __init__(self, project: Project, mask: Callable[[str], np.ndarray]) -> None:
        self.project, self._mask = project, mask
        self.folder = project.root / "exports"
        self._makers: dict[str, Maker] = {
            "masks": self.masks,
            "coco": self.coco,
            "labels": self.labels,
            "labels-coco": self.labels_coco,
            "model": self.model,
            "onnx": self.onnx,
        }

    def maker(self, kind: str) -> Maker:
        """What writes a kind of export."""
        if kind not in self._makers:
            raise unknown("export", kind, self._makers)
        make_folder(self.folder)
        return self._makers[kind]

    def masks(self, segmenter: Segmenter, step: Step) -> Path:
        """The model's mask of every image, as index PNG with ``classes.txt``."""
        names = segmenter.classes[1:]
        return self._zip("masks.zip", names, list(self.project.images), self._mask, step)

    def labels(self, segmenter: Segmenter, step: Step) -> Path:
        """What was painted, in the form that ``gfss teach`` reads."""
        extra = self.project.root / "project.json"
        names = self._painted_names()
        return self._zip("labels.zip", names, self._labelled(), self.project.label, step, extra)

    def coco(self, segmenter: Segmenter, step: Step) -> Path:
        """The model's masks as COCO JSON."""
        names = segmenter.classes[1:]
        return self._coco("masks-coco.json", names, list(self.project.images), self._mask, step)

    def labels_coco(self, segmenter: Segmenter, step: Step) -> Path:
        """What was painted, as COCO JSON."""
        return self._coco("labels-coco.json", self._painted_names(), self._labelled(), self.project.label, step)

    def model(self, segmenter: Segmenter, step: Step) -> Path:
        """The model folder as a zip."""
        step(0.1, "packing the model")
        staging = self.folder / ".model"
        try:
            copy.copy(segmenter).save(staging)  # the original remembers the folder it belongs to
            target = self.folder / "model.zip"
            with write_atomically(target) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                for path in sorted(staging.iterdir()):
                    archive.write(path, f"model/{path.name}")
        finally:
            for path in staging.glob("*"):
                path.unlink()
            if staging.exists():
                staging.rmdir()
        return target

    def onnx(self, segmenter: Segmenter, step: Step) -> Path:
        """The model as ONNX."""
        step(0.1, "exporting to ONNX")
        try:
            segmenter.export(self.folder / "model.onnx")
        except ModuleNotFoundError as error:
            raise Conflict(f"ONNX needs the package {error.name}; run: pip install 'gfss[export]'") from None
        return self.folder / "model.onnx"

    def _labelled(self) -> list[str]:
        found = [image_id for image_id in self.project.images if self.project.mask_file(image_id).exists()]
        if not found:
            raise Conflict("nothing is painted yet, so there are no labels to export")
        return found

    def _painted_names(self) -> list[str]:
        names = (self.project.root / "classes.txt").read_text(encoding="utf-8").split("\n")
        return [name for name in names if name]

    def _zip(
        self,
        name: str,
        classes: Sequence[str],
        images: Sequence[str],
        mask: Callable[[str], np.ndarray],
        step: Step,
        extra: Path | None = None,
    ) -> Path:
        palette = class_colours(len(classes)).ravel().tolist()
        target = self.folder / name
        with write_atomically(target) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr("classes.txt", "".join(f"{one}\n" for one in classes))
            if extra is not None and extra.exists():
                archive.write(extra, extra.name)
            for number, image_id in enumerate(images):
                step(number / len(images), f"image {number + 1} of {len(images)}")
                content = io.BytesIO()
                picture = Image.fromarray(mask(image_id))
                picture.putpalette(palette)
                picture.save(content, format="PNG")
                archive.writestr(f"masks/{image_id}.png", content.getvalue())
        return target

    def _coco(
        self,
        name: str,
        classes: Sequence[str],
        images: Sequence[str],
        mask: Callable[[str], np.ndarray],
        step: Step,
    ) -> Path:
        listing: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        for number, image_id in enumerate(images, start=1):
            step(number / (len(images) + 1), f"image {number} of {len(images)}")
            entry = self.project.image(image_id)
            listing.append({"id": number, "file_name": entry.path.name, "height": entry.height, "width": entry.width})
            values = mask(image_id)
            for value in [int(one) for one in np.unique(values) if one != BACKGROUND]:
                crowd = value == VOID  # the way COCO says that pixels do not count
                area = values == value
                annotations.append(
                    {
                        "id": len(annotations) + 1,
                        "image_id": number,
                        "category_id": 1 if crowd else value,
                        "segmentation": {"size": list(values.shape), "counts": run_lengths(area)},
                        "area": int(area.sum()),
                        "bbox": bounding_box(area),
                        "iscrowd": int(crowd),
                    }
                )
        categories = [{"id": value, "name": one} for value, one in enumerate(classes, start=1)]
        target = self.folder / name
        write_json_compactly(target, {"images": listing, "annotations": annotations, "categories": categories})
        return target


def run_lengths(area: np.ndarray) -> list[int]:
    """COCO's run lengths of a mask (height, width) bool: column by column, zeros first.

    >>> run_lengths(np.array([[0, 1], [1, 1]], dtype=bool))
    [1, 3]
    """
    flat = area.ravel(order="F")
    edges = np.flatnonzero(np.diff(flat)) + 1
    lengths = np.diff([0, *edges.tolist(), len(flat)]).tolist()
    return [0, *lengths] if flat[0] else lengths


def bounding_box(area: np.ndarray) -> list[int]:
    """Left, top, width and height of a mask with at least one pixel."""
    rows, columns = np.flatnonzero(area.any(axis=1)), np.flatnonzero(area.any(axis=0))
    left, top = int(columns[0]), int(rows[0])
    return [left, top, int(columns[-1]) - left + 1, int(rows[-1]) - top + 1]


def write_json_compactly(path: Path, content: Any) -> None:
    """Write JSON atomically in one line; run lengths would fill pages otherwise."""
    with write_atomically(path) as file:
        file.write(json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode())
