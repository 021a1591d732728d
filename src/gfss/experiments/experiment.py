"""One fold of a recipe, opened: data, features, base models and methods, each when first asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from gfss.common.devices import CPU
from gfss.common.errors import GfssError
from gfss.data import open_dataset, open_fold
from gfss.data.datasets.base import Dataset
from gfss.data.episodes import Fold, fold_of_names
from gfss.experiments.artifacts import Artifact, FoldName, Part, base_artifact, method_artifact, parts
from gfss.experiments.recipes import find_weights, missing_weights
from gfss.experiments.spec import Recipe
from gfss.features.bank import Bank, build_bank
from gfss.features.episodes import EpisodeSampler, FeatureStore, HeldOutSamplers
from gfss.methods import Context, build_method, inner_method
from gfss.methods.base import Method
from gfss.methods.pcn import Calibrated, NormalisedScoreFusion, NovelFitter
from gfss.models.base_model import BaseModel
from gfss.models.calibrators.calibrator import Calibrator
from gfss.models.encoders import build_encoder
from gfss.models.encoders.base import Encoder
from gfss.training.checkpoints import load_base, load_method


@dataclass
class Experiment:
    """What a recipe says about one fold, opened.

    Attributes:
        runs: folder of artefacts.
        device: where to train and evaluate.
    """

    recipe: Recipe
    fold: FoldName = 0
    runs: Path = Path("runs")
    device: torch.device = CPU
    _models: dict[Part | None, BaseModel] = field(default_factory=dict)

    @property
    def fold_name(self) -> int | str:
        """The fold in records: its number, or the novel classes' names."""
        return ",".join(self.recipe.novel_classes) or self.fold

    @cached_property
    def train_set(self) -> Dataset:
        return open_dataset(self.recipe.data, self.recipe.root, "train")

    @cached_property
    def val_set(self) -> Dataset:
        return open_dataset(self.recipe.data, self.recipe.root, "val")

    @cached_property
    def classes(self) -> Fold:
        """Base and novel class ids."""
        names = self.val_set.classes
        if self.recipe.novel_classes or self.fold == "all":
            return fold_of_names(names, self.recipe.novel_classes)
        return open_fold(self.recipe.data, len(names), self.fold, self.recipe.contiguous)

    def classes_without(self, part: Part) -> Fold:
        """A part of the base classes as novel ones, the others as base; true novel classes are void."""
        every = self.classes.base
        if part.count > len(every) // 2:
            most = len(every) // 2
            fewer = f"2 to {most}, or to 0" if most > 1 else "0"
            raise GfssError(
                f"{len(every)} base classes cannot be held out in {part.count} parts; set training.held_out to {fewer}"
            )
        out = tuple(int(c) for c in np.array_split(np.asarray(every), part.count)[part.number - 1])
        return Fold(tuple(c for c in every if c not in out), out)

    def images_of(self, part: Part, others: bool = False) -> np.ndarray:
        """Training images of a part, or all others."""
        numbers = np.arange(len(self.train_set))
        return numbers[(numbers % part.count == part.number - 1) != others]

    def fresh_encoder(self) -> Encoder:
        """A copy of the encoder as it is before stage 1."""
        name, weights = self.recipe.encoder, find_weights(self.recipe.encoder, self.recipe.weights)
        if sentence := missing_weights(name, weights):
            raise GfssError(sentence)
        return build_encoder(name, weights, self.recipe.output_stride).to(self.device)

    @cached_property
    def pretrained(self) -> Encoder:
        """The encoder as it is before stage 1; not to be trained."""
        return self.fresh_encoder()

    def base_artifact(self, part: Part | None = None) -> Artifact:
        return base_artifact(self.recipe, self.fold, part)

    def method_artifact(self, name: str, shots: int, left_out: Part | None = None) -> Artifact:
        return method_artifact(self.recipe, self.fold, name, shots, left_out)

    def base_model(self, part: Part | None = None) -> BaseModel:
        """The trained base model, or one that was trained without a part."""
        if part not in self._models:
            folder = self._finished(self.base_artifact(part))
            own = None if self.recipe.base.changes_encoder else self.pretrained
            self._models[part] = load_base(folder, own).to(self.device)
        return self._models[part]

    @property
    def model(self) -> BaseModel:
        """The trained base model."""
        return self.base_model()

    def _finished(self, artifact: Artifact) -> Path:
        if not artifact.is_complete(self.runs):
            raise GfssError(
                f"{artifact.folder(self.runs)} is not complete; train it first with the same recipe: "
                f"gfss run RECIPE --only {'base' if artifact.kind == 'base' else 'methods'}"
            )
        return artifact.folder(self.runs)

    def bank(self, split: str, encoder: Encoder | None = None) -> Bank:
        """Features of a split; of the base model's encoder unless another is given."""
        dataset = self.train_set if split == "train" else self.val_set
        chosen, recipe = encoder or self.model.encoder, self.recipe
        return build_bank(chosen, dataset, recipe.size, recipe.levels, own_sizes=recipe.base.own_sizes)

    def source(self, part: Part) -> EpisodeSampler:
        """Episodes and tasks of a part of the base classes, on the base model that was trained without it."""
        model, fold = self.base_model(part), self.classes_without(part)
        store = FeatureStore(model, self.bank("train", model.encoder))
        return EpisodeSampler(store, self.train_set, fold, fakes=fold.novel, avoid=self.images_of(part, others=True))

    def held_out_sources(self, count: int, left_out: Part | None = None) -> HeldOutSamplers:
        """Training episodes of all parts but one."""
        return HeldOutSamplers(tuple(self.source(part) for part in parts(count) if part != left_out))

    @cached_property
    def train_source(self) -> EpisodeSampler:
        """Training episodes of the base model itself."""
        return EpisodeSampler(FeatureStore(self.model, self.bank("train")), self.train_set, self.classes)

    @cached_property
    def val_source(self) -> EpisodeSampler:
        """Test tasks."""
        keep = self.device.type == "cpu"  # a GPU computes features again faster than it could hold them all
        return EpisodeSampler(FeatureStore(self.model, self.bank("val"), keep), self.val_set, self.classes)

    @cached_property
    def fitter(self) -> NovelFitter:
        """Fits the novel classifiers of all methods, each task's once."""
        return NovelFitter(self.recipe.novel, form="fast")

    def context(self, name: str = "nsf", part: Part | None = None) -> Context:
        """What a method is built from."""
        model, recipe = self.base_model(part), self.recipe
        diams = {one: options for one in {name, inner_method(name)} if (options := recipe.diam(one))}
        return Context(model, model.map_size, self.fitter, recipe.levels, recipe.is_published(name), diams)

    def method(self, name: str, shots: int, trained: bool = True, left_out: Part | None = None) -> Method:
        """A method, with its trained part unless asked otherwise; what a calibrator stands on is always trained.

        Args:
            left_out: the method as it is tuned on this part of the base classes.
        """
        context = self.context(name, left_out)  # opened before seeding: loading a model draws random numbers too
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.recipe.seed)
            method = self._untrained(name, context)
        if isinstance(method, Calibrated) and method.inner.module is not None:
            method.inner = self.method(method.inner.name, shots)
        if method.module is not None:
            if borrowed := self.recipe.options_of(name).borrowed:
                load_method(borrowed, method, base=self.base_model(left_out).card)
            elif trained:
                load_method(self._finished(self.method_artifact(name, shots, left_out)), method)
            method.module.to(self.device)
        return method

    def _untrained(self, name: str, context: Context) -> Method:
        options = self.recipe.calibrator(name)
        if options is None:
            return build_method(name, context)
        inner = inner_method(name)
        on = build_method(inner, context) if inner != name else NormalisedScoreFusion(context.fitter)
        return Calibrated(on, Calibrator(options, context.map_size, fast=True), name)
