"""The one model of a server: segments in one thread, is taught in another, can be undone lesson by lesson.

A lesson changes a copy of the :class:`Segmenter`, is written to disk, and only then takes the place of the one that
answers; whoever segments meanwhile gets the old or the new model, never half of one.
"""

from __future__ import annotations

import copy
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from gfss.app.inputs import ImageLike
from gfss.app.model_folder import ABOUT, checksum, find_model, is_embedded, is_model, refuse_foreign
from gfss.app.report import Report
from gfss.app.segmentation import Result
from gfss.app.segmenter import Segmenter, load
from gfss.app.suggest import Suggestion
from gfss.common.errors import GfssError
from gfss.common.files import make_folder, read_json, refuse_unwritable, write_atomically
from gfss.server.errors import Conflict, NotFound

DEFAULT = "voc20-lite0"
SOURCE = "source.txt"  # in the history: the model to go back to where there was no folder yet
REMEMBERED = 20  # lessons that can be undone
T = TypeVar("T")
Step = Callable[[float, str], None]


@dataclass(frozen=True)
class Lesson:
    """What a class is taught from.

    Attributes:
        name: of the class.
        images: files in which it is painted.
        masks: one per image: 1 the class, 0 the rest, 255 void.
        without: files that do not show it.
    """

    name: str
    images: Sequence[Path]
    masks: Sequence[np.ndarray]
    without: Sequence[Path] = ()


class Model:
    """A model that many clients use at once.

    Args:
        source: embedded model or folder to start from.
        folder: where the model with its lessons is kept; continued if it is there.
        history: where the states before each lesson are kept.
        encoder_weights: as for :func:`gfss.load`.
    """

    def __init__(self, source: str, folder: Path, history: Path, encoder_weights: Path | None = None) -> None:
        self.source, self.folder, self._history, self._weights = source, folder, history, encoder_weights
        refuse_foreign(folder)
        refuse_unwritable(folder if folder.exists() else folder.absolute().parent)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gfss-segment")
        self._change = threading.Lock()  # whoever changes the model
        self._refuse_other_base()
        self._segmenter = self._load()
        self.version = 1

    @property
    def segmenter(self) -> Segmenter:
        """The model as it is now; do not change it."""
        return self._segmenter

    @property
    def name(self) -> str:
        """What the model is called on the page."""
        return Path(self.source).name

    @property
    def classes(self) -> tuple[str, ...]:
        """All classes in order of mask value, background first."""
        return self._segmenter.classes

    @property
    def base_classes(self) -> tuple[str, ...]:
        """Classes that were there from the start."""
        return self._segmenter.network.card.classes

    @property
    def taught(self) -> dict[str, int]:
        """Taught classes and the number of images each was taught from."""
        return {one.name: len(one.examples) for one in self._segmenter.taught}

    @property
    def undoable(self) -> int:
        """How many changes can be undone."""
        return len(self._states())

    @property
    def changed_on_disk(self) -> bool:
        """Whether another program changed the model in the folder since it was read or written here."""
        if not self._change.acquire(blocking=False):
            return False  # we are changing it ourselves
        try:
            return self._differs()
        finally:
            self._change.release()

    # use

    def in_turn(self, work: Callable[[], T]) -> T:
        """Run something that computes in the one thread that computes, so that many clients share the cores."""
        return self._thread.submit(work).result()

    def segment(self, image: ImageLike, *, balance: float | None = None, tile: bool = False) -> Result:
        """Segment an image.

        Args:
            balance: of all taught classes, instead of those that were set; above 0 finds more of them, below 0 fewer.
        """
        return self.in_turn(lambda: self._balanced(balance).segment(image, tile=tile))

    def _balanced(self, balance: float | None) -> Segmenter:
        if balance is None:
            return self._segmenter
        model = copy.copy(self._segmenter)
        for one in model.taught:
            model.set_balance(one.name, balance)
        return model

    def balance(self, name: str) -> float | None:
        """Balance of a taught class, None of others."""
        return self._segmenter.balance(name) if name in self.taught else None

    def set_balance(self, name: str, value: float) -> None:
        """Find more of a taught class (above 0) or less (below 0); stored, and no lesson that is undone on its own."""
        if name not in self.taught:
            raise NotFound(
                f"the model was not taught '{name}'; it was taught {', '.join(self.taught) or 'nothing yet'}"
            )
        with self._change:
            self._refuse_changed()
            model = copy.copy(self._segmenter)
            model.set_balance(name, value)
            model.save(self.folder)
            self._become(model)

    def estimates(self, names: Sequence[str]) -> dict[str, Any]:
        """How good taught classes will be on new images: IoU in percent, and in words."""
        found = {name: self._segmenter.estimate(name) for name in names if name in self.taught}
        return {name: {"iou": one.iou, "words": one.words} for name, one in found.items()}

    def report(self) -> Report:
        """What the last lesson changed for every known class."""
        return copy.copy(self._segmenter).report()

    def suggest(self, images: Sequence[Path]) -> list[Suggestion]:
        """Rank images by how much a label would help."""
        return self._segmenter.suggest(list(images))

    # change

    def teach(self, lessons: Sequence[Lesson], step: Step) -> Report:
        """Teach classes from what is painted now; what a class was taught from the same images before is replaced.

        Args:
            step: is told how far it is.
        """

        def change(model: Segmenter) -> Report:
            for known in {one.name for one in model.taught} & {lesson.name for lesson in lessons}:
                model.forget(known)
            first = model.lesson + 1
            for number, lesson in enumerate(lessons):
                step(0.05 + 0.6 * number / len(lessons), f"teaching {lesson.name} from {len(lesson.images)} image(s)")
                model.teach(lesson.name, list(lesson.images), list(lesson.masks), without=list(lesson.without))
            model.join_lessons(first)
            step(0.7, "checking the known classes")
            return model.report()

        return self._changed(change, step)

    def forget(self, name: str) -> None:
        """Take a taught class out of the model."""
        self._changed(lambda model: model.forget(name))

    def rename(self, name: str, new: str) -> None:
        """Give a taught class another name."""
        self._changed(lambda model: model.rename(name, new))

    def undo(self) -> None:
        """Go back to the model before the last change."""
        with self._change:
            states = self._states()
            if not states:
                raise Conflict("there is no lesson to undo")
            self._refuse_changed()
            if (states[-1] / SOURCE).exists():
                self.source = (states[-1] / SOURCE).read_text(encoding="utf-8")
            _restore(states[-1], self.folder)
            self._become(self._load())
            shutil.rmtree(states[-1])

    def reload(self) -> None:
        """Take the model as it is on disk now."""
        with self._change:
            self._become(self._load())

    def close(self) -> None:
        """Let the computing thread end."""
        self._thread.shutdown(cancel_futures=True)

    def _changed(self, change: Callable[[Segmenter], T], step: Step = lambda *_: None) -> T:
        """Change a copy of the model, remember the state before, write the new one, use it."""
        with self._change:
            self._refuse_changed()
            model = copy.copy(self._segmenter)
            result = change(model)
            step(0.95, "saving")
            state = self._remember()
            try:
                model.save(self.folder)
            except GfssError:
                shutil.rmtree(state, ignore_errors=True)
                raise
            self._become(model)
            return result

    def _become(self, segmenter: Segmenter) -> None:
        self._segmenter = segmenter
        self._expected = checksum(self.folder)
        self.version += 1

    def _load(self) -> Segmenter:
        segmenter = load(self.folder if is_model(self.folder) else self.source, encoder_weights=self._weights)
        self._expected = checksum(self.folder)
        return segmenter

    def _differs(self) -> bool:
        return checksum(self.folder) != self._expected

    def _refuse_changed(self) -> None:
        if self._differs():
            raise Conflict(
                f"the model in {self.folder} was changed by another program; nothing was written: load it again first"
            )

    def _refuse_other_base(self) -> None:
        """Raise if the folder continues another model than the one that was named."""
        source = find_model(self.source)
        if not is_model(self.folder) or not is_model(source):
            return
        if read_json(source / ABOUT)["base"]["classes"] != read_json(self.folder / ABOUT)["base"]["classes"]:
            raise GfssError(
                f"the model in {self.folder} was not made from {self.source}; omit MODEL to continue with it, or "
                "give another folder with -o"
            )

    # history: one folder for every state

    def _states(self) -> list[Path]:
        return sorted(path for path in self._history.glob("*") if path.is_dir() and path.name.isdigit())

    def _remember(self) -> Path:
        states = self._states()
        state = self._history / f"{int(states[-1].name) + 1 if states else 1:06d}"
        part = state.with_name(f".{state.name}")
        shutil.rmtree(part, ignore_errors=True)
        make_folder(part)
        if is_model(self.folder):
            for path in _files(self.folder):
                shutil.copy2(path, part / path.name)
        else:
            (part / SOURCE).write_text(self.source, encoding="utf-8")
        part.rename(state)
        for old in states[: -REMEMBERED + 1]:
            shutil.rmtree(old)
        return state


def choose_folders(source: str | None, out: Path | None, project: Path) -> tuple[str, Path]:
    """Which model to start from, and the folder its lessons go to.

    Args:
        source: MODEL of the command line, if given.
        out: folder of the command line, if given.
        project: folder of the labels.
    """
    own = project / "model"
    if out is not None or source is None:
        folder = out or own
        return source or (str(folder) if is_model(folder) else DEFAULT), folder
    if not is_embedded(source) and is_model(find_model(source)):
        return source, find_model(source)
    return source, own


def _files(folder: Path) -> list[Path]:
    """Files of a model, ``model.json`` last: it makes the others count."""
    return [*folder.glob("*.safetensors"), *folder.glob("*.md"), folder / ABOUT]


def _restore(state: Path, folder: Path) -> None:
    """Put a model back into its folder; ``model.json`` is what switches from one to the other."""
    if not is_model(state):
        (folder / ABOUT).unlink(missing_ok=True)
        for path in [*folder.glob("*.safetensors"), *folder.glob("*.md")]:
            path.unlink()
        return
    names = set()
    for path in _files(state):
        names.add(path.name)
        with write_atomically(folder / path.name) as file:
            file.write(path.read_bytes())
    for path in folder.glob("*.safetensors"):
        if path.name not in names:
            path.unlink()
