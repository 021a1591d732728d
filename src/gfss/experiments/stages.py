"""The training stages of an experiment: base model, held-out base models, methods. What is done is not done again."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from gfss.common.distributed import start_workers
from gfss.common.errors import GfssError, unknown
from gfss.common.files import read_json
from gfss.evaluation.base_model import base_miou
from gfss.experiments.experiment import Experiment
from gfss.features.sampler import HeldOutSamplers
from gfss.methods import training_shots
from gfss.methods.base import Method
from gfss.methods.pcn import Calibrated
from gfss.training import base as base_training
from gfss.training import episodic_options
from gfss.training.base import BaseOptions, train_base
from gfss.training.checkpoints import has_checkpoint
from gfss.training.episode_cache import Source
from gfss.training.episodic import train_calibrator, train_method
from gfss.training.episodic_options import CALIBRATOR_ONLY, EpisodicOptions
from gfss.training.loop import remove_training_state
from gfss.training.method_checkpoints import save_method

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
BASE_RECIPES = {"frozen": BaseOptions(), "paper": base_training.PAPER, "scratch": SCRATCH}
EPISODIC_RECIPES = {"frozen": EpisodicOptions(), "paper": episodic_options.PAPER}


def train_base_stage(
    experiment: Experiment,
    recipe: str = "",
    *,
    epochs: int = 0,
    frozen_until: str = "",
    seed: int = 0,
    resume: bool = False,
    options: BaseOptions | None = None,
) -> dict[str, float | None]:
    """Train the base model of an experiment; returns its IoU on val in percent, ``base`` first."""
    recipe = recipe or ("scratch" if experiment.data == "scenes" else "frozen")
    if recipe not in BASE_RECIPES:
        raise unknown("recipe", recipe, BASE_RECIPES)
    options = options or BASE_RECIPES[recipe]
    if epochs:
        options = replace(options, epochs=epochs)
    if frozen_until:
        options = replace(options, frozen_until=frozen_until)
    workers = start_workers(experiment.device)
    encoder = experiment.pretrained
    train_base(
        experiment.train_set,
        experiment.classes,
        encoder,
        getattr(encoder, "name", experiment.encoder),
        options,
        size=experiment.size,
        fold_number=None if experiment.novel else experiment.fold,
        bank=None if options.train_encoder else experiment.bank("train", encoder),
        seed=seed,
        folder=experiment.base_folder,
        resume=resume,
        workers=workers,
    )
    workers.wait()  # the first process writes the model that all read now
    return measure_base(experiment)


def measure_base(experiment: Experiment) -> dict[str, float | None]:
    """IoU of the trained base model on val in percent, ``base`` first."""
    return base_miou(experiment.model, experiment.bank("val"), experiment.val_set, experiment.classes)


def train_held_out_stage(experiment: Experiment, groups: int, resume: bool = False) -> HeldOutSamplers:
    """One base model without each part of the base classes and of the images, trained where it is missing.

    They are trained like the base model, in two thirds of the epochs; a frozen encoder's bank serves all of them.
    """
    if groups > len(experiment.classes.base) // 2:
        raise GfssError(
            f"{len(experiment.classes.base)} base classes cannot be held out in {groups} parts; take fewer parts"
        )
    training = dict(experiment.model.card.training)
    seed = training.pop("seed", 0)
    levels = tuple(training.pop("levels"))
    options = BaseOptions(levels, **training)
    options = replace(options, epochs=max(1, 2 * options.epochs // 3))
    for group in range(groups):
        folder = experiment.held_out_folder(group, groups)
        if has_checkpoint(folder, "base"):
            _refuse_other_training(folder, {**asdict(options), "seed": seed}, experiment.model.card.files)
            continue
        workers = start_workers(experiment.device)
        encoder = experiment.fresh_encoder() if options.changes_encoder else experiment.model.encoder
        train_base(
            experiment.train_set,
            experiment.held_out_fold(group, groups),
            encoder,
            experiment.model.card.encoder,
            options,
            size=experiment.size,
            bank=None if options.train_encoder else experiment.bank("train", encoder),
            seed=seed,
            folder=folder,
            resume=resume,
            workers=workers,
            avoid=experiment.held_out_images(group, groups),
        )
        workers.wait()
    return HeldOutSamplers(tuple(experiment.held_out_source(group, groups) for group in range(groups)))


def train_method_stage(
    experiment: Experiment,
    name: str,
    shots: int,
    recipe: str = "frozen",
    *,
    iterations: int = 0,
    episodes: int = 0,
    seed: int = 0,
    resume: bool = False,
    options: EpisodicOptions | None = None,
) -> float:
    """Train a method (or a calibrator on one) for a number of shots; returns the mean of the last losses."""
    if recipe not in EPISODIC_RECIPES:
        raise unknown("recipe", recipe, EPISODIC_RECIPES)
    options = replace(options or EPISODIC_RECIPES[recipe], shots=training_shots(name, shots), seed=seed)
    if iterations:
        options = replace(options, iterations=iterations)
    if episodes:
        options = replace(options, episodes=episodes, several=min(options.several, episodes))
    workers = start_workers(experiment.device)
    method = experiment.method(name, shots, seed, trained=False)
    if method.module is None:
        raise GfssError(f"method '{name}' needs no training; evaluate it right away")
    folder = experiment.method_folder(name, shots)
    common = {"folder": folder, "resume": resume, "workers": workers}
    if isinstance(method, Calibrated):
        inner = method.inner
        if inner.module is not None:  # it belongs to its base model, so episodes are that model's own
            options = replace(options, held_out=0)
        source = experiment.train_source
        if options.held_out:
            source = train_held_out_stage(experiment, options.held_out, resume)
        key = episodes_key(experiment, inner, source)
        losses = train_calibrator(method, source, options, key=key, **common)
    else:
        losses = train_method(
            method, experiment.train_source, options, key=_weights_hash(experiment.model.head), **common
        )
    if workers.rank == 0:
        save_method(folder, method, experiment.model.card, training_of(experiment, method, options))
        remove_training_state(folder)
    return sum(losses[-50:]) / max(1, len(losses[-50:]))


def training_of(experiment: Experiment, method: Method, options: EpisodicOptions) -> dict[str, Any]:
    """How a method is trained, as it is written down beside its trained part."""
    training = asdict(options)
    if isinstance(method, Calibrated):
        training |= {"calibrator": asdict(method.calibrator.options), "novel": asdict(experiment.novel_options)}
    else:
        training = {name: value for name, value in training.items() if name not in CALIBRATOR_ONLY}
    return training | method.settings


def episodes_key(experiment: Experiment, inner: Method, source: Source) -> str:
    """What the scores of played episodes depend on: base models, novel classifiers, and the method that gives them."""
    key = json.dumps([inner.name, experiment.model.card.as_json(), asdict(experiment.novel_options)], default=str)
    key += _weights_hash(experiment.model.head)
    if experiment.device.type != "cpu":  # its sums round in another way
        key += experiment.device.type
    if inner.module is not None:
        key += _weights_hash(inner.module)
    elif inner.settings:
        key += json.dumps(inner.settings)
    if isinstance(source, HeldOutSamplers):
        rows = (one.store.rows().cpu().numpy() for one in source.sources)
        key += "".join(hashlib.sha256(each.tobytes()).hexdigest() for each in rows)
    return key


def _refuse_other_training(folder: Path, wanted: dict[str, Any], files: str) -> None:
    """A held-out base model must be trained like the base model, and on the same files where both know theirs."""
    card = read_json(folder / "base.json").get("card", {})
    found = card.get("training", {})
    if files and card.get("files", files) not in ("", files):
        raise GfssError(
            f"{folder} was trained on other images or masks than the base model beside it; move the folder away, it is "
            "then trained anew"
        )
    for key in found.keys() & wanted.keys():
        if found[key] != json.loads(json.dumps(wanted[key])):
            raise GfssError(
                f"{folder} was trained with {key} {found[key]}, but the base model beside it asks for {wanted[key]}; "
                "move the folder away, it is then trained anew"
            )


def _weights_hash(module: torch.nn.Module) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode() + tensor.contiguous().cpu().numpy().tobytes())
    return digest.hexdigest()
