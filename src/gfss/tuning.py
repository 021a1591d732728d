"""Settings compared without a look at novel classes.

The base classes of a fold and its train images are split into parts, with a base model trained without each part of
both (see :class:`gfss.training.source.HeldOutSources`). A calibrator is trained on episodes of all parts but one and
examined on paired tasks of the part left out: classes that neither it nor its base model has seen, and none of them
novel in the fold. The records look like those of other examinations, with the part in place of the fold.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from gfss.data.episodes import task
from gfss.devices import device_name
from gfss.errors import GfssError
from gfss.evaluation.protocols import examine
from gfss.evaluation.records import MetricName, Record, Run, peak_memory_mb, versions
from gfss.experiment import Experiment
from gfss.methods.base import Method
from gfss.methods.fitted import Calibrated
from gfss.recipe_options import CALIBRATOR_SUFFIX
from gfss.recipes import Recipe
from gfss.stages import episodes_key, train_held_out_stage
from gfss.training.checkpoint import has_checkpoint
from gfss.training.episodic import train_calibrator
from gfss.training.loop import finish
from gfss.training.source import EpisodeSource, HeldOutSources
from gfss.training.trained import load_method, save_method

GROUPS = 3  # parts where the recipe's episodes are those of the base model itself


def examine_part(recipe: Recipe, experiment: Experiment, shots: int, part: int, tasks: int) -> Iterator[Record]:
    """Train every calibrator of a recipe without a part of the base classes and examine all methods on that part.

    Args:
        experiment: of one of the recipe's folds, with a trained base model.
        part: number of the part left out, from 0.
        tasks: with one class each.
    """
    groups = recipe.episodic.held_out or GROUPS
    if not 0 <= part < groups:
        raise GfssError(f"there is no part {part + 1}; the base classes are held out in {groups} parts, 1 to {groups}")
    for name in recipe.methods:
        inner = name.removesuffix(CALIBRATOR_SUFFIX)
        if recipe.is_trained(inner) and recipe.calibrator(inner) is None:
            raise GfssError(
                f"method '{inner}' is trained on the features of one base model; only calibrators and methods without "
                "training can be examined on held-out base classes"
            )
    sources = train_held_out_stage(experiment, groups, resume=True).sources
    others = HeldOutSources(tuple(source for number, source in enumerate(sources) if number != part))
    trained = {name: _trained(recipe, experiment, name, shots, others, part, groups) for name in recipe.methods}
    yield from _examined(recipe, experiment, trained, shots, sources[part], f"part {part + 1} of {groups}", tasks)


def _trained(
    recipe: Recipe, experiment: Experiment, name: str, shots: int, source: HeldOutSources, part: int, groups: int
) -> Method:
    """A method, its calibrator trained on the episodes of ``source`` unless that is done."""
    method = experiment.method(name, shots, recipe.seed, trained=False)
    if not isinstance(method, Calibrated):
        return method
    options = recipe.training(name, shots)
    training: dict[str, Any] = {**asdict(options), "calibrator": asdict(method.calibrator.options)}
    training["novel"] = asdict(experiment.novel_options)
    key = episodes_key(experiment, method.inner, source)
    settings = hashlib.sha256(json.dumps([training, key]).encode()).hexdigest()[:10]
    folder = experiment.folder / f"tuning-without-part{part + 1}of{groups}" / f"{name}-{shots}shot-{settings}"
    if has_checkpoint(folder, "method"):
        load_method(folder, method, experiment.model.card)
        return method
    train_calibrator(method, source, options, key=key, folder=folder, resume=True)
    save_method(folder, method, experiment.model.card, training)
    finish(folder)
    return method


def _examined(
    recipe: Recipe,
    experiment: Experiment,
    methods: dict[str, Method],
    shots: int,
    source: EpisodeSource,
    part: str,
    tasks: int,
) -> Iterator[Record]:
    drawn = [task(source.dataset, source.fold, recipe.seed, i, shots, source.avoid) for i in range(tasks)]
    results = examine(list(methods.values()), source, drawn)
    ids, names = source.dataset.ids, source.dataset.classes
    about = {"size": experiment.size, **experiment.special, "base": experiment.model.card.training}
    about |= {"novel": asdict(experiment.novel_options)}
    for name in methods:
        settings = recipe.settings(name, shots)
        of_method = {"training": settings["training"]} if "training" in settings else {}
        yield Record(
            data=f"{experiment.name}, base classes held out",  # no table mixes them with novel classes
            fold=f"{experiment.folder.name.removeprefix('fold')}, {part}",
            shots=shots,
            encoder=experiment.encoder,
            method=name,
            protocol="paired",
            tasks=tasks,
            seed=recipe.seed,
            recipe=json.loads(json.dumps(about | of_method)),
            base_classes=[names[c - 1] for c in source.fold.base],
            novel_classes=[names[c - 1] for c in source.fold.novel],
            supports=[[ids[i] for group in one.supports for i in group] for one in drawn],
            figures={cast(MetricName, key): metric.summary() for key, metric in results[name].metrics.items()},
            run=Run(
                seconds=results[name].seconds,
                peak_memory_mb=peak_memory_mb(),
                versions=versions(device_name(experiment.device)),
            ),
        )


def tuning_record_path(out: Path, experiment: Experiment, record: Record) -> Path:
    """Where a record goes below a folder."""
    folder = out / experiment.folder.parent.name / f"fold{record.fold}".replace(", ", "-").replace(" ", "")
    return folder / f"{record.method}-{record.shots}shot-seed{record.seed}.json"
