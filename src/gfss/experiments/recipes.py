"""Recipes: one small YAML per family of experiments, checked completely before anything runs.

A recipe names data, folds, encoder, options of every stage, methods, protocols and seeds. Options of a stage are the
name of a preset (``base: paper``) or a preset with changes (``base: {preset: paper, epochs: 20}``).
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationInfo,
    field_validator,
)

from gfss.common.devices import CPU
from gfss.evaluation.protocols import ProtocolName
from gfss.experiments.experiment import Experiment, special_settings
from gfss.experiments.recipe_options import (
    DIAM_PRESETS,
    NOVEL_PRESETS,
    episodic_from,
    options_from,
    table,
)
from gfss.experiments.stages import BASE_RECIPES, EPISODIC_RECIPES
from gfss.methods import TRAINED, calibrator_preset, inner_method, training_shots
from gfss.methods.diam_options import DiamOptions
from gfss.models.calibrators.options import PRESETS as CALIBRATOR_PRESETS
from gfss.models.calibrators.options import CalibratorOptions
from gfss.models.novel.classifier import NovelOptions
from gfss.training.base import BaseOptions
from gfss.training.episodic_options import CALIBRATOR_ONLY, EpisodicOptions

WITH_PUBLISHED_WIDTH = ("denet", "pfenet", "pfenet-per-class")


class Recipe(BaseModel):
    """What is trained and examined.

    Attributes:
        about: one sentence for people.
        data: ``scenes``, ``pascal``, ``coco`` or a folder of own data.
        folds: fold numbers.
        novel_classes: names of the novel classes of own data, instead of folds.
        contiguous: COCO folds as blocks of ids.
        encoder: name of the encoder.
        output_stride: of the encoder; its usual one if left out.
        size: side of the square input.
        levels: encoder levels that the bank keeps.
        tag: word in the names of folders, which keeps recipes apart that train the same encoder in another way.
        shots: labelled images per novel class.
        base: options of stage 1.
        novel: how novel classifiers are fitted.
        episodic: options of stage 2.
        per_method: changes of ``episodic`` for single methods.
        calibrators: method name -> its calibrator; new names are calibrators on NSF, ``NAME+T`` on another method.
        published: DENet and PFENet in their published width instead of one for CPUs, DIaM with its published weights.
        diams: method name -> DIaM with other options; new names are further methods.
        methods: what is examined; those that are trained are trained first.
        protocols: protocol -> number of tasks (support draws of ``joint``).
        seeds: of the tasks; one record each.
        seed: of all training.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    about: str = ""
    data: str
    folds: tuple[NonNegativeInt, ...] = Field(default=(0,), min_length=1)
    novel_classes: tuple[str, ...] = ()
    contiguous: bool = False
    encoder: str
    output_stride: PositiveInt | None = None
    size: PositiveInt = 417
    levels: tuple[str, ...] = Field(default=("layer2", "layer3", "layer4"), min_length=1)
    tag: str = Field(default="", pattern=r"^[a-z0-9-]*$")
    shots: tuple[PositiveInt, ...] = Field(default=(1,), min_length=1)
    base: BaseOptions = BaseOptions()
    novel: NovelOptions = NovelOptions()
    episodic: EpisodicOptions = EpisodicOptions()
    per_method: dict[str, EpisodicOptions] = {}
    calibrators: dict[str, CalibratorOptions] = {}
    published: bool = False
    diams: dict[str, DiamOptions] = {}
    methods: tuple[str, ...] = Field(min_length=1)
    protocols: dict[ProtocolName, PositiveInt] = Field(default={"paired": 1000}, min_length=1)
    seeds: tuple[NonNegativeInt, ...] = Field(default=(0,), min_length=1)
    seed: NonNegativeInt = 0

    @field_validator("folds", "novel_classes", "levels", "shots", "methods", "seeds", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str | int) else value

    @field_validator("base", mode="before")
    @classmethod
    def _base(cls, value: Any) -> BaseOptions:
        return options_from("base", value, BASE_RECIPES)

    @field_validator("novel", mode="before")
    @classmethod
    def _novel(cls, value: Any) -> NovelOptions:
        return options_from("novel", value, NOVEL_PRESETS)

    @field_validator("episodic", mode="before")
    @classmethod
    def _episodic(cls, value: Any) -> EpisodicOptions:
        return episodic_from("episodic", value, EPISODIC_RECIPES)

    @field_validator("per_method", mode="before")
    @classmethod
    def _per_method(cls, value: Any, info: ValidationInfo) -> dict[str, EpisodicOptions]:
        common = info.data.get("episodic", EpisodicOptions())
        presets = {"episodic": common, **EPISODIC_RECIPES}
        return {
            name: episodic_from(f"per_method.{name}", given, presets)
            for name, given in table("per_method", value).items()
        }

    @field_validator("calibrators", mode="before")
    @classmethod
    def _calibrators(cls, value: Any) -> dict[str, CalibratorOptions]:
        return {
            name: options_from(
                f"calibrators.{name}", given, CALIBRATOR_PRESETS, calibrator_preset(name) or "pcn-support"
            )
            for name, given in table("calibrators", value).items()
        }

    @field_validator("diams", mode="before")
    @classmethod
    def _diams(cls, value: Any, info: ValidationInfo) -> dict[str, DiamOptions]:
        usual = _usual_diam(info.data.get("published", False))
        return {
            name: options_from(f"diams.{name}", given, DIAM_PRESETS, usual)
            for name, given in table("diams", value).items()
        }

    def calibrator(self, method: str) -> CalibratorOptions | None:
        """Options of a method's calibrator, None for a method without."""
        if method in self.calibrators:
            return self.calibrators[method]
        preset = calibrator_preset(method)
        return None if preset is None else CALIBRATOR_PRESETS[preset]

    def diam(self, method: str) -> DiamOptions | None:
        """Options of a DIaM, None for other methods."""
        usual = {"diam": DIAM_PRESETS[_usual_diam(self.published)]}
        return (usual | self.diams).get(method)

    def is_trained(self, method: str) -> bool:
        """Whether a method needs stage 2."""
        return method in TRAINED or self.calibrator(method) is not None

    def training(self, method: str, shots: int) -> EpisodicOptions:
        """Options of stage 2 for a method."""
        options = self.per_method.get(method, self.episodic)
        inner = inner_method(method)
        if inner != method and self.is_trained(inner):  # it belongs to its base model, and so do its episodes
            options = replace(options, held_out=0)
        return replace(options, shots=training_shots(method, shots), seed=self.seed)

    @property
    def special(self) -> dict[str, Any]:
        """What is not as usual about features and folds."""
        return special_settings(self.encoder, self.output_stride, self.contiguous)

    def settings(self, method: str, shots: int) -> dict[str, Any]:
        """What a record says of how its method was made; comparable with ``Record.recipe``."""
        settings: dict[str, Any] = {
            "size": self.size,
            **self.special,
            "base": {**asdict(self.base), "seed": self.seed},
            "novel": asdict(self.novel),
        }
        if self.is_trained(method):
            training = asdict(self.training(method, shots))
            if options := self.calibrator(method):
                training["calibrator"] = asdict(options)
            else:
                training = {key: value for key, value in training.items() if key not in CALIBRATOR_ONLY}
            settings["training"] = training | self._method_settings(method)
        else:
            settings |= self._method_settings(method)
        return settings

    def _method_settings(self, method: str) -> dict[str, Any]:
        """As :attr:`gfss.methods.base.Method.settings` of the method."""
        name = inner_method(method)
        if options := self.diam(name):
            return {"diam": asdict(options)}
        return {"published": self.published} if name in WITH_PUBLISHED_WIDTH else {}

    def experiment(
        self,
        fold: int,
        runs: Path,
        root: Path | None = None,
        weights: Path | None = None,
        device: torch.device = CPU,
    ) -> Experiment:
        """The experiment of one fold."""
        return Experiment(
            data=self.data,
            fold=fold,
            root=root,
            encoder=self.encoder,
            weights=weights,
            output_stride=self.output_stride,
            size=self.size,
            novel=self.novel_classes,
            contiguous=self.contiguous,
            levels=self.levels,
            novel_options=self.novel,
            calibrators=self.calibrators,
            diams=self.diams,
            published=self.published,
            tag=self.tag,
            runs=runs,
            device=device,
        )


def _usual_diam(published: bool) -> str:
    """Name of the preset that DIaM has if nothing else is said."""
    return "published" if published else "chosen"
