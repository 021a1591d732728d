"""The specification of experiments: one set of frozen models that are the YAML recipe, the command line's ``--set``,
the Python API and what a record stores.

Options of a stage are the name of a preset (``base: paper``) or a preset with changes
(``base: {preset: paper, epochs: 20}``); the options themselves are defined beside the code that they steer.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationInfo,
    field_validator,
    model_validator,
)

from gfss.common.errors import quoted, unknown
from gfss.data import NAMES as PUBLIC_DATA
from gfss.data.datasets.base import MIN_AREA
from gfss.evaluation.protocols import ProtocolName
from gfss.methods import (
    CALIBRATOR_SUFFIXES,
    LEARNED,
    TRAINED,
    UNTRAINED,
    calibrator_preset,
    inner_method,
    needed_levels,
    training_shots,
)
from gfss.methods.diam_options import CHOSEN, PROGRAM, PUBLISHED, DiamOptions
from gfss.models.calibrators.calibrator import PRESETS as CALIBRATOR_PRESETS
from gfss.models.calibrators.calibrator import CalibratorOptions
from gfss.models.encoders import HUGGING_FACE, encoder_names, usual_stride
from gfss.models.novel import classifier as novel
from gfss.models.novel.classifier import NovelOptions
from gfss.training import base, episodic_options
from gfss.training.base import BaseOptions
from gfss.training.episodic_options import EpisodicOptions

# embedded scenes: a tiny encoder trained from scratch together with the head
SCRATCH = BaseOptions(
    levels=("layer2", "layer3", "layer4"),
    pyramid=24,
    width=96,
    epochs=11,
    batch=8,
    rate=6e-3,
    warmup=200,
    shuffle_colours=True,
    label_stride=2,
    train_encoder=True,
)
BASE_PRESETS = {"frozen": BaseOptions(), "tuned": base.TUNED, "paper": base.PAPER, "scratch": SCRATCH}
NOVEL_PRESETS = {"frozen": novel.FROZEN, "paper": novel.PAPER}
TRAINING_PRESETS = {"frozen": EpisodicOptions(), "paper": episodic_options.PAPER}
DIAM_PRESETS = {"chosen": CHOSEN, "published": PUBLISHED, "program": PROGRAM}
METHOD_NAME = re.compile(r"\w[\w.+@=-]{0,79}")
HEAD_MAPS = ("pooled", "bottleneck")  # maps that the base model's head adds to the encoder's levels
WITH_PUBLISHED_FORM = ("acastle", "capl", "denet", "pfenet", "diam")
FoldNumber = Annotated[int, Field(ge=0, le=3)] | Literal["all"]  # all: every class is a base class


def from_preset(given: Any, presets: Mapping[str, Any], usual: str = "frozen") -> Any:
    """Values of options: those of a preset, changed by what a table says."""
    if isinstance(given, str):
        given = {"preset": given}
    if not isinstance(given, Mapping):
        return given
    name = given.get("preset", usual)
    if not isinstance(name, str):
        raise ValueError(f"a preset is named by a word, not by {reprlib.repr(name)[:60]}; known: {', '.join(presets)}")
    if name not in presets:
        raise ValueError(str(unknown("preset", name, presets)))
    return {**asdict(presets[name]), **{key: value for key, value in given.items() if key != "preset"}}


def training_from(given: Any) -> Any:
    """Values of stage 2; shots and seed belong to the recipe as a whole."""
    for key in ("shots", "seed"):
        if isinstance(given, Mapping) and key in given:
            raise ValueError(f"its '{key}' would contradict the recipe's own; leave it out")
    return from_preset(given, TRAINING_PRESETS)


def as_list(value: Any) -> Any:
    """One value where several may stand."""
    return [value] if isinstance(value, str | int) else value


Several = BeforeValidator(as_list)
Calibrators = Annotated[
    CalibratorOptions, BeforeValidator(partial(from_preset, presets=CALIBRATOR_PRESETS, usual="pcn-support"))
]
Diams = Annotated[DiamOptions, BeforeValidator(partial(from_preset, presets=DIAM_PRESETS, usual="chosen"))]
Training = Annotated[EpisodicOptions, BeforeValidator(training_from)]


class MethodOptions(BaseModel):
    """What a recipe says about one of its methods.

    Attributes:
        calibrator: makes the method a calibrator with these options, on NSF (``NAME+T``: on method NAME).
        training: stage 2, changes of the recipe's ``training``.
        diam: makes the method a DIaM with these options.
        published: a compared system as its authors publish it (see ``docs/experiments/014-bcm-denet-pfenet.md``).
        evaluated: False for a method that is only there because ``NAME+T`` stands on it.
        borrowed: folder of a calibrator that was trained elsewhere, on the same encoder; it is used as it is.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    calibrator: Calibrators | None = None
    training: Training | None = None
    diam: Diams | None = None
    published: bool = False
    evaluated: bool = True
    borrowed: Path | None = None


class Recipe(BaseModel):
    """What is trained and evaluated.

    Attributes:
        about: one sentence for people.
        data: ``scenes``, ``pascal``, ``coco`` or a path to custom data.
        root: folder of the data set, where the environment does not name it.
        folds: fold numbers, or ``all`` for base models of all classes.
        novel_classes: names of the novel classes of custom data, instead of folds.
        contiguous: COCO folds as blocks of ids.
        encoder: name of the encoder.
        weights: file with its weights, where they do not come with a package.
        output_stride: of the encoder; its usual one if left out.
        size: side of the square input.
        levels: encoder levels that the feature bank keeps.
        base: stage 1.
        novel: how novel classifiers are fitted.
        training: stage 2.
        trained_shots: supports per class in the episodes of stage 2; as many as at test if left out.
        methods: what is evaluated, by name; those that are trained are trained first.
        shots: labelled images per novel class.
        protocols: protocol -> number of tasks (support draws of ``joint``).
        supports: split that the joint protocol draws its supports from.
        support_area: least area of a class in them, at the reference size (16,384 in DIaM, BCM and CAPL).
        seeds: of the tasks; one record each.
        seed: of all training.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    about: str = ""
    data: str
    root: Path | None = None
    folds: Annotated[tuple[FoldNumber, ...], Several] = Field((0,), min_length=1)
    novel_classes: Annotated[tuple[str, ...], Several] = ()
    contiguous: bool = False
    encoder: str
    weights: Path | None = None
    output_stride: PositiveInt | None = None
    size: PositiveInt = 417
    levels: Annotated[tuple[str, ...], Several] = Field(("layer2", "layer3", "layer4"), min_length=1)
    base: Annotated[BaseOptions, BeforeValidator(partial(from_preset, presets=BASE_PRESETS))] = BaseOptions()
    novel: Annotated[NovelOptions, BeforeValidator(partial(from_preset, presets=NOVEL_PRESETS))] = NovelOptions()
    training: Training = EpisodicOptions()
    trained_shots: PositiveInt | None = None
    methods: dict[str, MethodOptions] = Field(min_length=1)
    shots: Annotated[tuple[PositiveInt, ...], Several] = Field((1,), min_length=1)
    protocols: dict[ProtocolName, PositiveInt] = Field({"paired": 1000}, min_length=1)
    supports: Literal["val", "train"] = "val"
    support_area: PositiveInt = MIN_AREA
    seeds: Annotated[tuple[NonNegativeInt, ...], Several] = Field((0,), min_length=1)
    seed: NonNegativeInt = 0

    @field_validator("methods", mode="before")
    @classmethod
    def _methods(cls, value: Any, info: ValidationInfo) -> Any:
        """Names in a list or before their options; what options leave out is the recipe's or the method's own."""
        value = as_list(value)
        if not isinstance(value, Mapping | list | tuple):
            return value
        if not all(isinstance(name, str) for name in value):
            raise ValueError("names of methods are words; write a list of names, or a table with options behind them")
        if strange := next((name for name in value if not METHOD_NAME.fullmatch(name)), None):
            raise ValueError(
                f"the method name {quoted(strange)} would be part of a path; use letters, digits and +-_.=@"
            )
        if len(set(value)) < len(value):
            raise ValueError("a method is named twice")
        table = value if isinstance(value, Mapping) else dict.fromkeys(value)
        return {name: _with_usual(name, given, info.data.get("training")) for name, given in table.items()}

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        own = [name for name, options in self.methods.items() if options.calibrator or options.diam]
        known = [*UNTRAINED, *TRAINED, *(name for name in own if inner_method(name) == name)]
        for name in self.methods:
            if inner_method(name) not in known:
                with_calibrator = (f"NAME{suffix}" for suffix in CALIBRATOR_SUFFIXES)
                raise ValueError(str(unknown("method", name, [*known, *with_calibrator])))
        encoders = encoder_names()
        if self.encoder not in encoders and not self.encoder.startswith(HUGGING_FACE):
            raise ValueError(str(unknown("encoder", self.encoder, encoders)))
        for place, (asked, there) in self._maps().items():
            for one in asked:
                if one not in there:
                    raise ValueError(str(unknown(f"map in '{place}'", one, there)))
        for name in self.methods:
            for levels in needed_levels(name, self.is_published(name)):
                if not set(levels) & set(self.levels):
                    raise ValueError(
                        f"method '{name}' needs {' or '.join(levels)}, but 'levels' are only {', '.join(self.levels)}; "
                        "add it there or leave the method out"
                    )
        return self

    @model_validator(mode="after")
    def _nothing_contradicts(self) -> Self:
        named, public = bool(self.novel_classes), self.data in PUBLIC_DATA
        fixed = self.output_stride is not None and self.encoder.startswith(HUGGING_FACE)
        joint = set(self.protocols) == {"joint"}
        wrong = {
            f"'novel_classes' is for custom data, not for {self.data}": named and public,
            "'novel_classes' takes the place of several folds; leave 'folds' out": named and len(self.folds) > 1,
            f"'contiguous' is about the folds of coco, not of {self.data}": self.contiguous and self.data != "coco",
            f"the output stride of {self.encoder} is fixed; leave 'output_stride' out": fixed,
            "'base.train_encoder' trains the whole encoder, so 'base.frozen_until' contradicts it": (
                self.base.train_encoder and bool(self.base.frozen_until)
            ),
            "'supports: train' is for the joint protocol; leave the paired one out": self.supports == "train"
            and not joint,
            **{
                f"'{key}' names something twice": len(set(values)) < len(values)
                for key in ("folds", "shots", "seeds")
                if (values := getattr(self, key))
            },
            **{words: True for name, options in self.methods.items() for words in self._wrong_options(name, options)},
        }
        for words in (words for words, is_so in wrong.items() if is_so):
            raise ValueError(words)
        return self

    def _wrong_options(self, name: str, options: MethodOptions) -> list[str]:
        """What contradicts itself in the options of a method."""
        wrong = []
        taken = name in LEARNED or (name in UNTRAINED and name != "diam")
        if (options.calibrator and (taken or name == "diam")) or (options.diam and (taken or self.is_calibrated(name))):
            wrong.append(f"'methods.{name}' is another method already; take a new name for these options")
        if options.training and not self.is_trained(name):
            wrong.append(f"'methods.{name}.training' is set, but the method has no training")
        if options.borrowed and not self.is_calibrated(name):
            wrong.append(f"'methods.{name}.borrowed' is only for calibrators, such as pcn-support")
        if options.published and inner_method(name) not in WITH_PUBLISHED_FORM:
            wrong.append(f"'methods.{name}.published' is only for {', '.join(WITH_PUBLISHED_FORM)}")
        return wrong

    def _maps(self) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
        """Maps that options name, and those that there are, by place."""
        maps = (*self.levels, *HEAD_MAPS)
        own = (self.base.frozen_until, *((self.base.decoder_level,) if self.base.decoder else ()))
        wanted = {
            "base.levels": (self.base.levels, self.levels),
            "base.frozen_until and base.decoder_level": (tuple(name for name in own if name), self.levels),
            "novel.features": (self.novel.features, maps),
        }
        for name in self.methods:
            if (calibrator := self.calibrator(name)) is None:
                continue
            if self.methods[name].calibrator:
                wanted[f"methods.{name}.calibrator.features"] = (calibrator.features, maps)
            if calibrator.class_interaction or self.training_of(name, 1).episodes is not None:
                wanted[f"methods.{name}.calibrator.compared"] = (calibrator.compared, maps)
        return wanted

    def options_of(self, name: str) -> MethodOptions:
        """What the recipe says about a method, also one that only another stands on."""
        return self.methods.get(name, MethodOptions())

    def calibrator(self, name: str) -> CalibratorOptions | None:
        """Options of a method's calibrator, None for a method without."""
        if given := self.options_of(name).calibrator:
            return given
        preset = calibrator_preset(name)
        return None if preset is None else CALIBRATOR_PRESETS[preset]

    def is_calibrated(self, name: str) -> bool:
        """Whether a method is a calibrator on another."""
        return self.calibrator(name) is not None

    def is_published(self, name: str) -> bool:
        """Whether a method, or the one it stands on, is in its published form."""
        return self.options_of(name).published or self.options_of(inner_method(name)).published

    def diam(self, name: str) -> DiamOptions | None:
        """Options of a DIaM, None for other methods."""
        usual = DIAM_PRESETS["program" if self.is_published(name) else "chosen"]
        return self.options_of(name).diam or (usual if name == "diam" else None)

    def is_trained(self, name: str) -> bool:
        """Whether a method needs stage 2."""
        return (name in TRAINED or self.is_calibrated(name)) and not self.options_of(name).borrowed

    def training_of(self, name: str, shots: int) -> EpisodicOptions:
        """Options of stage 2 for a method that is evaluated at some number of shots."""
        options = self.options_of(name).training or self.training
        inner = inner_method(name)
        if inner != name and self.is_trained(inner):  # it belongs to its base model, and so do its episodes
            options = replace(options, held_out=0)
        return replace(options, shots=self.trained_shots or training_shots(name, shots), seed=self.seed)

    @property
    def stride(self) -> int | None:
        """Output stride of the encoder; None where it cannot be chosen."""
        return self.output_stride or usual_stride(self.encoder)

    @property
    def data_name(self) -> str:
        """Name of the data set in records and folders."""
        return self.data if self.data in PUBLIC_DATA else Path(self.data).resolve().name

    @property
    def evaluated(self) -> tuple[str, ...]:
        """Names of the methods that are evaluated."""
        return tuple(name for name, options in self.methods.items() if options.evaluated)

    def only(self, methods: Iterable[str] | None = None, **changes: Any) -> Recipe:
        """The recipe with other folds, shots, protocols ..., or with some methods."""
        if methods is not None:
            changes["methods"] = chosen_methods(self.methods, methods)
        return self.model_copy(update=changes)


def chosen_methods(table: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Some methods with what a recipe says about them; options of those that ``NAME+T`` stands on come along."""
    chosen: dict[str, Any] = {name: table.get(name) or MethodOptions() for name in names}
    for inner in {inner_method(name) for name in chosen} - {*chosen}:
        if isinstance(given := table.get(inner), MethodOptions):
            chosen[inner] = given.model_copy(update={"evaluated": False})
        elif given:
            chosen[inner] = {**given, "evaluated": False}
    return chosen


def _with_usual(name: str, given: Any, training: EpisodicOptions | None) -> Any:
    """A method's options with the presets that they change if they name none."""
    if not isinstance(given, Mapping):
        return {} if given is None else given
    filled = dict(given)
    if isinstance(filled.get("calibrator"), Mapping):
        filled["calibrator"] = {"preset": calibrator_preset(name) or "pcn-support", **filled["calibrator"]}
    changes = filled.get("training")
    if isinstance(changes, Mapping) and "preset" not in changes and training is not None:
        usual = {key: value for key, value in asdict(training).items() if key not in ("shots", "seed")}
        filled["training"] = {**usual, **changes}
    return filled
