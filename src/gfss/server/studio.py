"""What the page and the REST interface do, apart from HTTP: a project, a model and the jobs between them."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from gfss.app.report import GUARD, Report
from gfss.common.errors import GfssError
from gfss.data.images import class_colours, read_image
from gfss.server.errors import Conflict, NotFound
from gfss.server.exports import Exporter
from gfss.server.jobs import Job, Jobs
from gfss.server.model import Lesson, Model
from gfss.server.project import Project
from gfss.server.region import Regions

VIVID = ("#ff2d6f", "#00a8ff", "#ffb300", "#8b5cf6", "#00c28a", "#ff6a00", "#d946ef", "#84cc16", "#06b6d4", "#ef4444")
GREY = 64  # mixed into the colours of base classes, so that the others stand out
CACHED = 24  # segmented images that are kept
CACHED_PIXELS = 16_000_000  # larger ones are not


class Studio:
    """One folder, one model, any number of clients.

    Attributes:
        session: another one with every start of the server.
    """

    def __init__(self, project: Project, model: Model) -> None:
        self.project, self.model, self.jobs = project, model, Jobs()
        self.session = secrets.token_hex(4)
        self.regions = Regions(model)
        self.exporter = Exporter(project, self.mask)
        self._cache: OrderedDict[tuple[Any, ...], np.ndarray] = OrderedDict()
        self._lock = threading.Lock()
        self._last_report: dict[str, Any] | None = None

    def close(self) -> None:
        """Stop the threads."""
        self.jobs.close()
        self.model.close()

    # what there is

    def state(self) -> dict[str, Any]:
        """Everything that a page shows beside the images; small, asked for often."""
        self.project.refresh()
        job = self.jobs.active()
        return {
            "session": self.session,
            "revision": self.project.revision,
            "folder": self.project.folder.name,
            "problem": self.project.problem,
            "left_out": self.project.left_out,
            "model": {
                "name": self.model.name,
                "version": self.model.version,
                "undoable": self.model.undoable,
                "changed_on_disk": self.model.changed_on_disk,
            },
            "job": job.as_json() if job else None,
        }

    def classes(self) -> list[dict[str, Any]]:
        """Every class: those of the model in order of mask value, then those that are only painted so far.

        ``value`` is the mask value in what the model says, ``label`` that in painted labels.
        """
        names, painted, taught = self.model.classes, self.project.classes, self.model.taught
        changed = self.project.changed
        table = class_colours(len(names))
        listing: list[dict[str, Any]] = []
        for value, name in [*enumerate(names), *((None, one) for one in painted if one not in names)]:
            if value == 0:
                continue
            own = name in painted
            label = self.project.value(name) if own else None
            images = [i for i in self.project.images if own and name in self.project.areas(i)]
            listing.append(
                {
                    "name": name,
                    "value": value,
                    "label": label,
                    "colour": colour(label) if label else as_hex(table[value or 0] // 2 + GREY),
                    "kind": "base" if name in self.model.base_classes else "taught" if name in taught else "new",
                    "taught_from": taught.get(name, 0),
                    "painted": len(images),
                    "without": len(self.project.without(name)),
                    "changed": bool(images) and (name in changed or name not in taught),
                    "balance": self.model.balance(name),
                }
            )
        return listing

    def images(self) -> list[dict[str, Any]]:
        """Every image with what is known of its label."""
        self.project.refresh()
        without = {name: set(self.project.without(name)) for name in self.project.classes}
        return [
            {
                "id": entry.id,
                "file": entry.path.name,
                "width": entry.width,
                "height": entry.height,
                "stamp": entry.stamp,
                "version": self.project.version(entry.id),
                "painted": self.project.areas(entry.id),
                "without": [name for name, marked in without.items() if entry.id in marked],
            }
            for entry in list(self.project.images.values())
        ]

    def mask(self, image_id: str, balance: float | None = None) -> np.ndarray:
        """What the model says of an image, (height, width) uint8; remembered until something changes."""
        entry = self.project.image(image_id)
        key = (image_id, entry.stamp, self.model.version, balance)
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        mask = self.model.segment(entry.path, balance=balance).mask
        if mask.size <= CACHED_PIXELS:
            with self._lock:
                self._cache[key] = mask
                while len(self._cache) > CACHED:
                    self._cache.popitem(last=False)
        return mask

    def taught_only(self, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A mask without base classes, and the page's colours of its values."""
        colours = np.zeros((256, 3), dtype=np.uint8)
        keep = np.zeros(256, dtype=np.uint8)
        for one in self.classes():
            if one["kind"] == "taught":
                keep[one["value"]] = one["value"]
                colours[one["value"]] = list(bytes.fromhex(one["colour"][1:]))
        return keep[mask], colours

    # what can be done

    def add_class(self, name: str) -> None:
        """Add a class to paint; a taught class that has no labels here may be taken up too."""
        if name in self.model.base_classes:
            raise Conflict(f"the class name '{name}' is taken by a base class; choose another name")
        self.project.add_class(name)

    def rename(self, name: str, new: str) -> None:
        """Rename a class in the labels and in the model."""
        self._require(name)
        if new in (*self.model.classes, *self.project.classes):
            raise Conflict(f"there is a class called '{new}' already; choose another name")

        def work(_: Job) -> dict[str, Any]:
            if name in self.model.taught:
                self.model.rename(name, new)
            if name in self.project.classes:
                self.project.rename_class(name, new)
            return {}

        self.jobs.run("rename", f"renaming {name} to {new}", work)

    def forget(self, name: str) -> None:
        """Take a class out of the model; what was painted stays, so that it can be taught again."""
        self._require(name)

        def work(_: Job) -> dict[str, Any]:
            self.model.forget(name)
            return {}

        self.jobs.run("forget", f"forgetting {name}", work)

    def remove(self, name: str) -> None:
        """Take a class out of the model and its labels out of the project."""
        self._require(name)

        def work(_: Job) -> dict[str, Any]:
            if name in self.model.taught:
                self.model.forget(name)
            if name in self.project.classes:
                self.project.remove_class(name)
            return {}

        self.jobs.run("remove", f"removing {name}", work)

    def set_balance(self, name: str, value: float) -> None:
        """Find more of a taught class, or less."""

        def work(_: Job) -> dict[str, Any]:
            self.model.set_balance(name, value)
            return {}

        self.jobs.run("balance", f"changing the balance of {name}", work)

    def teach(self, names: Sequence[str] | None = None) -> Job:
        """Teach classes from what is painted; those with new labels if none are named."""
        listing = {one["name"]: one for one in self.classes()}
        chosen = list(names) if names else [name for name, one in listing.items() if one["changed"]]
        for name in chosen:
            self.project.value(name)
            if not listing[name]["painted"]:
                raise Conflict(f"'{name}' is not painted in any image yet; paint one object first")
        if not chosen:
            raise Conflict("nothing new is painted; paint an object of a class first")

        def work(job: Job) -> dict[str, Any]:
            job.at(0.02, "reading what is painted")
            try:
                lessons = [Lesson(name, *self.project.start_lesson(name)) for name in chosen]
                report = self.model.teach(lessons, job.at)
            except Exception:
                self.project.mark_changed(chosen)
                raise
            self._last_report = report_json(report)
            return {"classes": chosen, "report": self._last_report, "estimates": self.model.estimates(chosen)}

        return self.jobs.submit("teach", f"teaching {', '.join(chosen)}", work)

    def undo(self) -> None:
        """Take back the last change of the model; labels stay."""

        def work(_: Job) -> dict[str, Any]:
            self.model.undo()
            self.project.mark_changed(self.project.classes)
            self._last_report = None
            return {}

        self.jobs.run("undo", "undoing the last lesson", work)

    def reload(self) -> None:
        """Take the model as another program left it on disk."""

        def work(_: Job) -> dict[str, Any]:
            self.model.reload()
            self._last_report = None
            return {}

        self.jobs.run("reload", "loading the model again", work)

    def report(self) -> dict[str, Any]:
        """What the last lesson changed for every known class."""
        if self._last_report is None:
            if not self.model.taught:
                raise Conflict("nothing was taught yet, so nothing changed; teach a class first")
            self._last_report = self.jobs.run("report", "checking the known classes", self._make_report)
        return self._last_report

    def suggest(self) -> Job:
        """Rank the images without labels by how much a label would help."""
        unlabelled = [e for e in self.project.images.values() if not self.project.mask_file(e.id).exists()]
        paths = {entry.path: entry.id for entry in unlabelled}
        if not paths:
            raise Conflict("every image has a label already; there is nothing to suggest")

        def work(job: Job) -> dict[str, Any]:
            job.at(0.1, f"looking at {len(paths)} images")
            ranked = self.model.suggest(list(paths))
            return {"images": [{"id": paths[one.path], "value": round(one.value, 4)} for one in ranked]}

        return self.jobs.submit("suggest", "choosing the next image to label", work)

    def export(self, kind: str) -> Job:
        """Write something to take away; the result names the file under ``/api/exports``."""
        make = self.exporter.maker(kind)
        segmenter = self.model.segmenter

        def work(job: Job) -> dict[str, Any]:
            return {"file": make(segmenter, job.at).name}

        return self.jobs.submit("export", f"exporting {kind}", work)

    def exported(self, name: str) -> Path:
        """A file that was exported."""
        found = {path.name: path for path in self.exporter.folder.glob("*") if path.is_file()}
        if name not in found:
            raise NotFound(f"there is no export '{name[:100]}'; make one with POST /api/exports/KIND")
        return found[name]

    def region(
        self,
        image_id: str,
        point: tuple[int, int] | None,
        box: tuple[int, int, int, int] | None,
        name: str | None = None,
        away: bool = False,
    ) -> np.ndarray:
        """What a click or a box adds to what is painted of a class, or takes from it, (height, width) bool."""
        entry = self.project.image(image_id)
        if (point is None) == (box is None):
            raise GfssError("give either a point x, y on the object or a box around it")
        if away and name is None:
            raise GfssError("there is nothing to take away from; give the class by name")
        painted = None if name is None else self.project.label(image_id) == self.project.value(name)
        key = (entry.id, entry.stamp)
        return self.regions.propose(key, lambda: read_image(entry.path), point, box, painted, away)

    def _make_report(self, job: Job) -> dict[str, Any]:
        job.at(0.1, "checking the known classes")
        return report_json(self.model.report())

    def _require(self, name: str) -> None:
        if name in self.model.base_classes:
            raise Conflict(f"'{name}' is a base class of this model; only taught classes can be changed")
        if name not in (*self.model.taught, *self.project.classes):
            raise NotFound(f"there is no class '{name}'; /api/classes lists those that are there")


def colour(label: int) -> str:
    """Colour of a painted class by its mask value, as #rrggbb."""
    if label <= len(VIVID):
        return VIVID[label - 1]
    return as_hex(class_colours(label)[label])


def as_hex(colour: np.ndarray) -> str:
    """A colour (3,) uint8 as #rrggbb."""
    return f"#{bytes(colour).hex()}"


def report_json(report: Report) -> dict[str, Any]:
    """A report as figures and sentences."""
    losses, rare = report.losses(GUARD), report.too_rare(GUARD)
    words = [{"text": f"{one.sentence()}.", "kind": "bad"} for one in losses]
    words += [{"text": f"{one.doubt()}.", "kind": "neutral"} for one in rare]
    if not losses:
        text = f"No {'other ' if rare else ''}known class loses more than {GUARD:g} points of IoU."
        words.append({"text": text, "kind": "good"})
    sections = [
        {
            "title": section.title,
            "images": section.images,
            "rows": [{**asdict(row), "judged": row.pixels >= report.least} for row in section.seen],
            "moves": [asdict(move) for move in section.moves[:8]],
        }
        for section in report.sections
    ]
    return {"lesson": report.lesson, "good": not losses, "words": words, "sections": sections}
