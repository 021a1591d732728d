"""What practitioners use: load a model, teach it a class, segment images, see what changed, undo it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gfss.app.hub import HubMixin
from gfss.app.inputs import ImageLike, find_images, images_without, labelled_images
from gfss.app.model_folder import (
    ABOUT,
    BACKGROUND_NAME,
    Parts,
    check_words,
    find_model,
    is_model,
    lessons,
    model_card,
    one_sentence,
    read_model,
    read_training,
    write_model,
)
from gfss.app.network import Network, check_balance
from gfss.app.packing import (
    build_network,
    build_taught,
    check_fits,
    check_name,
    fingerprint,
    network_parts,
    taught_parts,
)
from gfss.app.regression_check import State, compare, read_validation, support_cases
from gfss.app.report import Report
from gfss.app.segmentation import Result, segment_image
from gfss.app.suggest import Suggestion, suggest
from gfss.app.support import TaughtClass, before_lesson, make_example, refuse_repeated
from gfss.app.teaching import ClassFit, Estimate, fit_classes, taught_state
from gfss.common.errors import GfssError, unknown
from gfss.common.files import versions
from gfss.data.catalog import VOID

MOST_CLASSES = VOID - 1  # what an 8-bit mask can name beside background and void
MOST_WITHOUT = 20  # images of a label source that do not show the class which a lesson takes


class Segmenter(HubMixin):
    """A segmentation model that can be taught.

    >>> import gfss
    >>> from gfss.data.datasets.scenes import labelled_scene
    >>> model = gfss.load("scenes-tiny")
    >>> image, mask = labelled_scene("ring")
    >>> print(model.teach("ring", image, mask).words)
    not learned (estimated IoU ..., by altered copies of its one image): add images ...
    >>> model.classes[-1], model.segment(image).mask.shape
    ('ring', (112, 112))
    >>> model.forget("ring")

    Args:
        network: the base model.
        taught: classes that were added.
        fits: of these classes; fitted if left out.
        half: keep weights in fp16 when saving.
        changes: figures of the last report.
        origin: the folder that it was loaded from, and the checksum of the model there.
    """

    def __init__(
        self,
        network: Network,
        taught: Sequence[TaughtClass] = (),
        fits: Sequence[ClassFit] | None = None,
        *,
        half: bool = False,
        changes: dict[str, Any] | None = None,
        origin: tuple[Path, str] | None = None,
    ) -> None:
        self.network = network
        self.half = half
        self.taught = tuple(taught)
        self.fits = tuple(fits if fits is not None else fit_classes(self.taught, network))
        self.state = taught_state(self.taught, self.fits, self.network) if self.taught else None
        self._changes = changes
        self._origin, self._expected = (origin[0].resolve(), origin[1]) if origin else (None, None)
        self._known = self._lessons()  # what may be left out when saving: it was left out on purpose

    @property
    def classes(self) -> tuple[str, ...]:
        """All classes in order of label: mask value i is ``classes[i]``, the first is "background".

        >>> load("scenes-tiny").classes[:3]
        ('background', 'flower', 'moon')
        """
        return self._names(self.taught)

    @property
    def fingerprint(self) -> str:
        """Hash of everything that its masks depend on."""
        return fingerprint(self.network, self.taught, self.fits)

    @property
    def lesson(self) -> int:
        """Number of the last lesson, 0 before the first."""
        return max((example.lesson for one in self.taught for example in one.examples), default=0)

    def teach(
        self,
        name: str,
        images: ImageLike | Sequence[ImageLike],
        masks: ImageLike | Sequence[ImageLike],
        *,
        without: ImageLike | Sequence[ImageLike] = (),
        add: bool = False,
        label: str | None = None,
        void: int | None = None,
    ) -> Estimate:
        """Teach a class from one or more labelled images.

        >>> from gfss.data.datasets.scenes import labelled_scene
        >>> images, masks = zip(*(labelled_scene("ring", seed) for seed in range(3)))
        >>> model = load("scenes-tiny")
        >>> estimate = model.teach("ring", images, masks)
        >>> model.classes[-1], estimate.images
        ('ring', 3)

        Args:
            name: of the class.
            images: images (paths, arrays, PIL), or folders if ``masks`` is one label source.
            masks: one per image, or a label source: folder, ``labelme``, COCO ``.json``, CVAT ``.zip``. An empty mask
                says that the image does not show the class.
            without: images (paths, folders, arrays, PIL) that do not show the class; they keep it from being found
                where it is not.
            add: the class was taught before and these images come on top.
            label: what the label source calls the class, if not ``name``.
            void: the mask value that says nothing, where it is not 255.

        Returns:
            An honest estimate of how well the class was learned; ``estimate.words`` says it for people.
        """
        self._check_name(name, add)
        lesson = self.lesson + 1
        given = labelled_images(images, masks, label or name, negatives=MOST_WITHOUT, void=void)
        if not any(one.shows for one in given) and not add:
            raise GfssError(f"no mask shows '{name}'; label the object in at least one image")
        examples = [make_example(self.network, one, lesson) for one in (*given, *images_without(without))]
        before = next((one for one in self.taught if one.name == name), TaughtClass(name, ()))
        refuse_repeated(name, examples, before.examples)
        whole = replace(before, examples=(*before.examples, *examples))
        others = [whole if one.name == name else one for one in self.taught]
        self._become(others if before.examples else [*others, whole])
        return self.estimate(name)

    def join_lessons(self, first: int) -> None:
        """Count everything that was taught since lesson ``first`` as one lesson, so that it is judged together."""
        self.taught = tuple(
            replace(one, examples=tuple(replace(e, lesson=min(e.lesson, first)) for e in one.examples))
            for one in self.taught
        )
        self._changes = None

    def estimate(self, name: str) -> Estimate:
        """How well a taught class was learned, judged by leaving its images out in turn."""
        return self.fits[self._number(name)].verdict.estimate

    def balance(self, name: str) -> float:
        """What is added to the scores of a taught class: 0 is what was chosen from its images, more finds more."""
        return self.taught[self._number(name)].balance

    def set_balance(self, name: str, value: float) -> None:
        """Move the balance between a taught class and the others; saved with the model.

        >>> from gfss.data.datasets.scenes import labelled_scene
        >>> model = load("scenes-tiny")
        >>> _ = model.teach("ring", *labelled_scene("ring"))
        >>> model.set_balance("ring", -2.0)
        >>> model.balance("ring")
        -2.0
        """
        number = self._number(name)
        changed = replace(self.taught[number], balance=check_balance(value))
        self.taught = (*self.taught[:number], changed, *self.taught[number + 1 :])
        self.state = taught_state(self.taught, self.fits, self.network)
        self._changes = None

    def forget(self, name: str) -> None:
        """Take a taught class out; the model behaves as if it had never been taught.

        >>> from gfss.data.datasets.scenes import labelled_scene
        >>> model, (image, mask) = load("scenes-tiny"), labelled_scene("ring")
        >>> before = model.segment(image).mask
        >>> _ = model.teach("ring", image, mask)
        >>> model.forget("ring")
        >>> bool((model.segment(image).mask == before).all())
        True
        """
        self._require_taught(name)
        self._become([one for one in self.taught if one.name != name])

    def rename(self, name: str, new: str) -> None:
        """Give a taught class another name.

        >>> from gfss.data.datasets.scenes import labelled_scene
        >>> model = load("scenes-tiny")
        >>> _ = model.teach("ring", *labelled_scene("ring"))
        >>> model.rename("ring", "hoop")
        >>> model.classes[-1]
        'hoop'
        """
        self._require_taught(name)
        self._check_name(new, add=False)
        self.taught = tuple(replace(one, name=new) if one.name == name else one for one in self.taught)
        self._changes = None

    def segment(self, image: ImageLike, *, balance: float = 0.0, tile: bool = False) -> Result:
        """Segment an image.

        >>> from gfss.data.datasets.scenes import labelled_scene
        >>> result = load("scenes-tiny").segment(labelled_scene("house")[0])
        >>> result.mask.shape, result.scores.shape, "house" in result.found
        ((112, 112), (10, 112, 112), True)

        Args:
            image: path, array or PIL image of any size.
            balance: added to the scores of taught classes; above 0 finds more of them, below 0 fewer.
            tile: look at an image whose long side is more than twice the model's input piece by piece, for small
                objects in large images.
        """
        look = partial(self.network.score_map, taught=self.state, balance=check_balance(balance))
        return segment_image(image, self.classes, self.network.size, look, tile, len(self.taught))

    def report(
        self, validation: str | Path | None = None, *, label: str | None = None, void: int | None = None
    ) -> Report:
        """What the last lesson changed for every known class, on the support images and a validation folder.

        >>> from gfss.data.datasets.scenes import labelled_scene
        >>> model = load("scenes-tiny")
        >>> _ = model.teach("ring", *labelled_scene("ring"))
        >>> print(model.report())
        After teaching ring...

        Args:
            validation: labelled images in any of the label formats.
            label: what their labels call the class that was taught last, or its mask value, if it is not its name.
            void: their mask value that is neither class nor background, where it is not 255.
        """
        last = self.lesson
        earlier = before_lesson(self.taught, last)
        earlier_fits = fit_classes(earlier, self.network, self._fitted())
        before = State(self._names(earlier), taught_state(earlier, earlier_fits, self.network))
        after = State(self.classes, self.state)
        new = [one.name for one in self.taught if any(example.lesson == last for example in one.examples)]
        sections = []
        if self.taught:
            cases = support_cases(self.taught, self.classes)
            sections.append(compare("the support images", self.network, before, after, cases))
        if validation is not None:
            data = read_validation(validation, self.classes, new[0] if new else None, label=label, void=void)
            supports = {example.sha256 for one in self.taught for example in one.examples}
            repeated: list[str] = []
            cases = data.cases(self.network, self.classes, supports, repeated)
            title = f"the validation images in {Path(validation).name}"
            section = compare(title, self.network, before, after, cases, curve=bool(self.taught))
            sections.append(replace(section, repeated=tuple(repeated)))
        balances = {one.name: one.balance for one in self.taught}
        report = Report(f"teaching {' and '.join(new)}" if new else "", self.network.size, sections, balances)
        self._changes = report.figures()
        return report

    def suggest(self, images: str | Path | Sequence[str | Path]) -> list[Suggestion]:
        """Rank unlabelled images (paths, folders, patterns) by how much a label would help."""
        sources = [images] if isinstance(images, str | Path) else list(images)
        supports = [self.network.features(example.levels) for one in self.taught for example in one.examples]
        return suggest(self.network, self.state, supports, find_images(sources))

    def export(self, path: str | Path, *, calibration: Sequence[str | Path] = ()) -> None:
        """Write the model for inference elsewhere: ``.onnx``, or ``.xml`` for OpenVINO.

        Args:
            calibration: typical images; given some, the file computes in 8-bit integers with ranges that suit them.
        """
        from gfss.app.export import export_model  # needs the extra "export"

        export_model(
            self.network, self.state, self.classes, Path(path), find_images(calibration) if calibration else ()
        )

    def save(self, folder: str | Path, *, keep_images: bool = False) -> None:
        """Write the model folder; an older model in its place is replaced in one step.

        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     load("scenes-tiny").save(Path(folder) / "copy")
        ...     len(load(Path(folder) / "copy").classes)
        10

        Refused if a class that the model there was taught, or some of its images, would be lost, and if the folder that
        this model was loaded from was changed meanwhile.

        Args:
            keep_images: store the (downsized) support images too, not only their features; those that the model was
                loaded with stay in any case.
        """
        parts, words, card = self._contents(keep_images)
        folder = Path(folder)
        if folder.resolve() == self._origin:
            digest = write_model(folder, parts, words, card, expected=self._expected)
        else:
            digest = write_model(folder, parts, words, card, check=partial(self._refuse_loss, folder))
        self._origin, self._expected, self._known = folder.resolve(), digest, self._lessons()

    def _contents(self, keep_images: bool) -> tuple[Parts, dict[str, Any], str]:
        """Tensors, description and card of the model, as they are written."""
        parts, about = network_parts(self.network, self.half)
        support, listing = taught_parts(self.taught, self.fits, keep_images)
        words = {**about, "versions": versions(), "taught": listing, "changes": self._changes}
        return parts | support, words, model_card(self.network.card, listing, words["versions"], self._changes)

    def _refuse_loss(self, folder: Path) -> None:
        """Raise if another model lies in a folder, with lessons that this one never had."""
        ours = self._lessons()
        for name, images in lessons(folder).items():
            if images > max(ours.get(name, 0), self._known.get(name, 0)):
                raise GfssError(
                    f"the model in {folder} was taught '{name}' with {images} image(s), which would be lost; teach "
                    "that model, or give another folder"
                )

    def _lessons(self) -> dict[str, int]:
        return {one.name: len(one.examples) for one in self.taught}

    def _names(self, taught: Sequence[TaughtClass]) -> tuple[str, ...]:
        return (BACKGROUND_NAME, *self.network.card.classes, *(one.name for one in taught))

    def _fitted(self) -> dict[str, tuple[TaughtClass, ClassFit]]:
        return {one.name: (one, fit) for one, fit in zip(self.taught, self.fits, strict=True)}

    def _number(self, name: str) -> int:
        self._require_taught(name)
        return [one.name for one in self.taught].index(name)

    def _become(self, taught: Sequence[TaughtClass]) -> None:
        if len(self.network.card.classes) + len(taught) > MOST_CLASSES:
            raise GfssError(f"a model holds at most {MOST_CLASSES} classes; forget one before teaching another")
        self.fits = tuple(fit_classes(taught, self.network, self._fitted()))
        self.taught = tuple(taught)
        self.state = taught_state(self.taught, self.fits, self.network)
        self._changes = None

    def _check_name(self, name: str, add: bool) -> None:
        check_name(name, add, self.network.card.classes, [one.name for one in self.taught])

    def _require_taught(self, name: str) -> None:
        if name in self.network.card.classes:
            raise GfssError(f"'{name}' is a base class of this model; only taught classes can be forgotten or renamed")
        if name not in self.classes[1:]:
            raise unknown("class", name, [one.name for one in self.taught])


def load(model: str | Path, *, encoder_weights: str | Path | None = None) -> Segmenter:
    """Open a model.

    >>> load("scenes-tiny").classes[-1]
    'mushroom'

    Args:
        model: name of an embedded model, or a folder that ``gfss teach`` or ``gfss run`` wrote.
        encoder_weights: file with the encoder's weights, where they are neither in the model nor installed by pip.
    """
    weights = Path(encoder_weights) if encoder_weights else None
    folder = find_model(model)
    if not is_model(folder):
        return Segmenter(read_training(folder, weights))
    parts, about = read_model(folder)
    with one_sentence(str(model)):
        check_words(about, str(model))
        network = build_network(parts, about, weights, str(model))
        taught, fits = build_taught(parts, about["taught"], network.kept_maps)
        check_fits(fits, sum(network.channels.values()), str(model))
        return Segmenter(
            network,
            taught,
            fits,
            half=about["precision"] == "fp16",
            changes=about["changes"],
            origin=(folder, about["sha256"][ABOUT]),
        )
