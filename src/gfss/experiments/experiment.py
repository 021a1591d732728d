"""An experiment: data, fold, encoder, bank, base model and trained methods, each opened when first asked for.

Everything an experiment makes lies below one folder:

    runs/<data>-<encoder>[-<tag>]/fold<n>/base/               base model
    runs/<data>-<encoder>[-<tag>]/fold<n>/<method>-<K>shot/   trained method or calibrator
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gfss.common.devices import CPU
from gfss.common.errors import GfssError
from gfss.data import open_dataset, open_fold
from gfss.data.catalog import Fold, fold_of_names
from gfss.data.datasets.base import Dataset
from gfss.data.episodes import shots_in_words
from gfss.experiments.requirements import find_weights, missing_weights
from gfss.features.bank import Bank, build_bank
from gfss.features.label_only import LabelOnlyStore
from gfss.features.sampler import EpisodeSampler, FeatureStore
from gfss.methods import LABEL_ONLY, Context, build_method, inner_method, training_shots
from gfss.methods.base import Method
from gfss.methods.diam_options import DiamOptions
from gfss.methods.pcn import Calibrated
from gfss.methods.score_fusion import NormalisedScoreFusion, NovelFitter
from gfss.models.base_model import BaseModel
from gfss.models.calibrators.calibrator import Calibrator
from gfss.models.calibrators.options import CalibratorOptions
from gfss.models.encoders import build_encoder, usual_stride
from gfss.models.encoders.base import Encoder
from gfss.models.novel.classifier import NovelOptions
from gfss.training.base_checkpoints import load_base
from gfss.training.checkpoints import has_checkpoint
from gfss.training.method_checkpoints import load_method

PUBLIC = ("scenes", "pascal", "coco")
SCENES_SIZE, PHOTO_SIZE = 113, 417


def special_settings(encoder: str, output_stride: int | None, contiguous: bool) -> dict[str, Any]:
    """What is not as usual about features and folds.

    >>> special_settings("lite0", 16, False), special_settings("resnet50", 16, False)
    ({}, {'output_stride': 16})
    """
    special: dict[str, Any] = {"contiguous": True} if contiguous else {}
    if output_stride not in (None, usual_stride(encoder)):
        special["output_stride"] = output_stride
    return special


def _usual_size(data: str) -> int:
    return SCENES_SIZE if data == "scenes" else PHOTO_SIZE


@dataclass
class Experiment:
    """Where everything of one data set, encoder and fold is.

    Attributes:
        data: ``scenes``, ``pascal``, ``coco`` or a folder of own data.
        fold: which classes are novel; None if all are base classes (a model to be shipped).
        root: folder of the data set, where it is not found by itself.
        encoder: name of the encoder; ``tiny`` on scenes and ``lite0`` elsewhere if left out.
        weights: file with the encoder's weights, where they do not come with a package.
        output_stride: of the encoder; its usual one if left out.
        size: side of the square input.
        novel: names of the novel classes of own data, instead of a fold number.
        contiguous: COCO folds as blocks of ids instead of interleaved.
        levels: encoder levels kept in the bank.
        novel_options: how novel classifiers are fitted.
        calibrators: method name -> calibrator, for further methods on NSF (or on NAME, as ``NAME+T``) and in place of
            the usual ones.
        diams: method name -> DIaM with other options.
        published: DENet and PFENet in their published width, DIaM with its published weights.
        trained_shots: one trained part for any number of shots, trained on so many supports; one for each number if 0.
        tag: word in the folder's name, which keeps apart what is trained in another way.
        runs: folder below which trained parts lie.
        device: where to train and evaluate.
    """

    data: str = "scenes"
    fold: int | None = 0
    root: Path | None = None
    encoder: str = ""
    weights: Path | None = None
    output_stride: int | None = None
    size: int = 0
    novel: tuple[str, ...] = ()
    contiguous: bool = False
    levels: tuple[str, ...] = ("layer2", "layer3", "layer4")
    novel_options: NovelOptions = field(default_factory=NovelOptions)
    calibrators: dict[str, CalibratorOptions] = field(default_factory=dict)
    diams: dict[str, DiamOptions] = field(default_factory=dict)
    published: bool = False
    trained_shots: int = 0
    tag: str = ""
    runs: Path = Path("runs")
    device: torch.device = CPU

    def __post_init__(self) -> None:
        self.encoder = self.encoder or ("tiny" if self.data == "scenes" else "lite0")
        self.weights = find_weights(self.encoder, self.weights)
        self.size = self.size or _usual_size(self.data)

    @property
    def name(self) -> str:
        """Name of the data set in records and folders."""
        return self.data if self.data in PUBLIC else Path(self.data).resolve().name

    @property
    def own(self) -> bool:
        """Whether the data set is one of the user's own: another one may have the same name."""
        return self.data not in PUBLIC

    @property
    def folder(self) -> Path:
        """Where the parts trained for this fold lie."""
        fold = "-".join(self.novel) if self.novel else "all" if self.fold is None else f"fold{self.fold}"
        fold += "-contiguous" if self.contiguous else ""
        system = f"{self.name}-{self.encoder.replace(':', '-').replace('/', '-')}"
        return self.runs / (f"{system}-{self.tag}" if self.tag else system) / fold

    @property
    def special(self) -> dict[str, Any]:
        """What is not as usual about this experiment's features and folds, for its records."""
        return special_settings(self.encoder, self.output_stride, self.contiguous)

    @property
    def _in_words(self) -> str:
        """Options of a command that is about this experiment."""
        words = [f"--data {self.data}", f"--novel {','.join(self.novel)}" if self.novel else f"--fold {self.fold}"]
        words += [f"--encoder {self.encoder}", f"--runs {self.runs}"]
        words += [f"--size {self.size}"] if self.size != _usual_size(self.data) else []
        words += [f"--output-stride {self.output_stride}"] if "output_stride" in self.special else []
        return " ".join([*words, *(["--contiguous"] if self.contiguous else [])])

    @cached_property
    def train_set(self) -> Dataset:
        return open_dataset(self.data, self.root, "train")

    @cached_property
    def val_set(self) -> Dataset:
        return open_dataset(self.data, self.root, "val")

    @cached_property
    def classes(self) -> Fold:
        """Base and novel class ids."""
        names = self.val_set.classes
        if self.novel or self.fold is None:
            return fold_of_names(names, self.novel)
        return open_fold(self.data, len(names), self.fold, self.contiguous)

    @cached_property
    def pretrained(self) -> Encoder:
        """The encoder as it is before stage 1."""
        return self.fresh_encoder()

    def fresh_encoder(self) -> Encoder:
        """Another copy of the encoder as it is before stage 1."""
        if sentence := missing_weights(self.encoder, self.weights):
            raise GfssError(sentence)
        return build_encoder(self.encoder, self.weights, self.output_stride).to(self.device)

    @property
    def base_folder(self) -> Path:
        return self.folder / "base"

    @cached_property
    def model(self) -> BaseModel:
        """The trained base model."""
        expected = tuple(self.val_set.classes[c - 1] for c in self.classes.base)
        if not has_checkpoint(self.base_folder, "base"):
            raise GfssError(
                f"there is no base model in {self.base_folder}; train it first: gfss train base {self._in_words}"
            )
        model = load_base(self.base_folder, weights=self.weights)
        if self.output_stride not in (None, model.card.output_stride):
            raise GfssError(
                f"the base model in {self.base_folder} was trained at output stride {model.card.output_stride}, not "
                f"{self.output_stride}; leave --output-stride out or train another one"
            )
        if model.card.classes != expected:
            raise GfssError(
                f"the base model in {self.base_folder} knows other classes than fold {self.fold}; train it anew"
            )
        return model.to(self.device)

    def bank(self, split: str, encoder: Encoder | None = None) -> Bank:
        """Features of a split; of the base model's encoder unless another is given."""
        dataset = self.train_set if split == "train" else self.val_set
        return build_bank(encoder or self.model.encoder, dataset, self.size, self.levels)

    @cached_property
    def train_source(self) -> EpisodeSampler:
        """Training episodes."""
        return EpisodeSampler(FeatureStore(self.model, self.bank("train")), self.train_set, self.classes)

    def held_out_fold(self, group: int, groups: int) -> Fold:
        """A part of the base classes as novel ones, the other base classes as base; true novel classes are void."""
        parts = np.array_split(np.asarray(self.classes.base), groups)
        out = tuple(int(c) for c in parts[group])
        return Fold(tuple(c for c in self.classes.base if c not in out), out)

    def held_out_images(self, group: int, groups: int, among: bool = True) -> np.ndarray:
        """Train images of a part, or (``among=False``) all others."""
        numbers = np.arange(len(self.train_set))
        return numbers[(numbers % groups == group) == among]

    def held_out_folder(self, group: int, groups: int) -> Path:
        return self.folder / f"base-without-part{group + 1}of{groups}"

    def held_out_source(self, group: int, groups: int) -> EpisodeSampler:
        """Training episodes on a base model that was trained without a part of the base classes."""
        own = None if self.model.card.trained_encoder else self.model.encoder
        model = load_base(self.held_out_folder(group, groups), own).to(self.device)
        fold = self.held_out_fold(group, groups)
        store = FeatureStore(model, self.bank("train", model.encoder))
        avoid = self.held_out_images(group, groups, among=False)
        return EpisodeSampler(store, self.train_set, fold, fakes=fold.novel, avoid=avoid)

    @cached_property
    def val_source(self) -> EpisodeSampler:
        """Test tasks."""
        keep = self.device.type == "cpu"  # a graphics card computes them anew faster than it could hold them all
        return EpisodeSampler(FeatureStore(self.model, self.bank("val"), keep), self.val_set, self.classes)

    def blind_source(self, split: str = "val") -> EpisodeSampler:
        """Tasks without features, for methods that look at none."""
        dataset = self.train_set if split == "train" else self.val_set
        return EpisodeSampler(LabelOnlyStore(dataset, len(self.classes.base), self.size), dataset, self.classes)

    @cached_property
    def context(self) -> Context:
        """What methods are built from."""
        side = self.model.encoder.map_size(self.size)
        return Context(
            self.model,
            (side, side),
            NovelFitter(self.novel_options, form="fast"),
            self.levels,
            self.published,
            self.diams,
        )

    def method_folder(self, method: str, shots: int) -> Path:
        """Where the part of a method lies that serves a number of shots."""
        return self.folder / f"{method}-{self.trained_shots or training_shots(method, shots)}shot"

    def method(self, name: str, shots: int, seed: int = 0, trained: bool = True) -> Method:
        """A method, with its trained part unless asked otherwise; what a calibrator stands on is always trained."""
        if name in LABEL_ONLY:
            return LABEL_ONLY[name]()
        _ = self.context  # opened before seeding: loading a model draws random numbers too
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            method = self._untrained(name)
        if isinstance(method, Calibrated) and method.inner.module is not None:
            method.inner = self.method(method.inner.name, shots, seed)
        if method.module is not None and trained:
            folder = self.method_folder(name, shots)
            if not has_checkpoint(folder, "method"):
                raise GfssError(
                    f"method '{name}' is not trained for {shots_in_words(shots)}: no checkpoint in {folder}; train it "
                    f"first: gfss train method --method {name} --shots {shots} {self._in_words}"
                )
            load_method(folder, method, self.model.card)
        if method.module is not None:
            method.module.to(self.device)
        return method

    def _untrained(self, name: str) -> Method:
        """A method by name, with the experiment's own calibrator if there is one of that name."""
        options = self.calibrators.get(name)
        if options is None:
            return build_method(name, self.context)
        inner = inner_method(name)
        on = build_method(inner, self.context) if inner != name else NormalisedScoreFusion(self.context.fitter)
        return Calibrated(on, Calibrator(options, self.context.map_size, fast=True), name)
