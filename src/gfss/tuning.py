"""Settings compared without a look at novel classes.

The base classes of a fold and its train images are split into parts, with a base model trained without each part of
both (see :class:`gfss.training.source.HeldOutSources`). A calibrator is trained on episodes of all parts but one and
examined on paired tasks of the part left out, on the base model that has seen neither its classes nor its images. The
calibrator has never met these classes as new ones (as base classes of the other models it has), and none of them is
novel in the fold. The records look like those of other examinations, with the part beside the fold.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from gfss.data.episodes import task
from gfss.devices import device_name
from gfss.errors import GfssError
from gfss.evaluation.protocols import examine
from gfss.evaluation.records import MetricName, Record, Run, peak_memory_mb, versions
from gfss.examination import fold_name
from gfss.experiment import Experiment
from gfss.methods.base import Method
from gfss.methods.fitted import Calibrated
from gfss.recipe_options import CALIBRATOR_SUFFIX
from gfss.recipes import Recipe
from gfss.stages import episodes_key, train_held_out_stage
from gfss.training.checkpoint import has_checkpoint
from gfss.training.episodic import train_calibrator
from gfss.training.loop import finish
from gfss.training.parallel import started_processes
from gfss.training.source import EpisodeSource, HeldOutSources
from gfss.training.trained import load_method, save_method

GROUPS = 3  # parts where the recipe's episodes are those of the base model itself


def parts_of(recipe: Recipe, wanted: Sequence[int] = ()) -> list[int]:
    """Numbers, from 1, of the parts to leave out, all if none is wanted; refuses what cannot be compared."""
    groups = _groups(recipe)
    if groups < 2:
        raise GfssError("with 'episodic.held_out: 1' nothing is left to train on; take two parts or more")
    for part in wanted:
        if not 1 <= part <= groups:
            raise GfssError(f"there is no part {part}; the base classes are held out in {groups} parts, 1 to {groups}")
    for name in recipe.methods:
        inner = name.removesuffix(CALIBRATOR_SUFFIX)
        if recipe.is_trained(inner) and (inner != name or recipe.calibrator(name) is None):
            raise GfssError(
                f"method '{inner}' is trained on the features of one base model; only methods without training and "
                "calibrators on them can be examined on held-out base classes"
            )
    if started_processes() > 1:
        raise GfssError("settings are compared by one process; start gfss tune without torchrun")
    return list(wanted) or list(range(1, groups + 1))


@dataclass(frozen=True)
class Tuning:
    """A comparison of a recipe's methods with a part of the base classes left out.

    Attributes:
        experiment: of one of the recipe's folds, with a trained base model.
        part: number of the part left out, from 1.
    """

    recipe: Recipe
    experiment: Experiment
    shots: int
    part: int

    def examine(self, tasks: int) -> Iterator[Record]:
        """Train every calibrator without the part and examine all methods on it, for each of the recipe's seeds."""
        sources = train_held_out_stage(self.experiment, _groups(self.recipe), resume=True).sources
        others = HeldOutSources(tuple(one for number, one in enumerate(sources, start=1) if number != self.part))
        methods = [self._trained(name, others) for name in self.recipe.methods]
        for seed in self.recipe.seeds:
            yield from self._records(methods, sources[self.part - 1], tasks, seed)

    def _trained(self, name: str, source: HeldOutSources) -> Method:
        """A method, its calibrator trained on the episodes of ``source`` unless that is done."""
        experiment = self.experiment
        method = experiment.method(name, self.shots, self.recipe.seed, trained=False)
        if not isinstance(method, Calibrated):
            return method
        options = replace(self.recipe.training(name, self.shots), held_out=_groups(self.recipe))
        training: dict[str, Any] = {**asdict(options), "calibrator": asdict(method.calibrator.options)}
        training["novel"] = asdict(experiment.novel_options)
        key = episodes_key(experiment, method.inner, source)
        settings = hashlib.sha256(json.dumps([training, key]).encode()).hexdigest()[:10]
        place = experiment.folder / f"tuning-without-part{self.part}of{_groups(self.recipe)}"
        folder = place / f"{name}-{self.shots}shot-{settings}"
        if has_checkpoint(folder, "method"):
            load_method(folder, method, experiment.model.card)
            return method
        train_calibrator(method, source, options, key=key, folder=folder, resume=True)
        save_method(folder, method, experiment.model.card, training)
        finish(folder)
        return method

    def _records(self, methods: list[Method], source: EpisodeSource, tasks: int, seed: int) -> Iterator[Record]:
        experiment = self.experiment
        drawn = [task(source.dataset, source.fold, seed, i, self.shots, source.avoid) for i in range(tasks)]
        results = examine(methods, source, drawn)
        ids, names = source.dataset.ids, source.dataset.classes
        about = {"size": experiment.size, **experiment.special, "base": experiment.model.card.training}
        about |= {"novel": asdict(experiment.novel_options)}
        for method in methods:
            found, settings = results[method.name], self.recipe.settings(method.name, self.shots)
            of_method = {}
            if "training" in settings:
                of_method = {"training": settings["training"] | {"held_out": _groups(self.recipe)}}
            yield Record(
                data=f"{experiment.name}, base classes held out",  # no table mixes them with novel classes
                fold=f"{fold_name(experiment)}, part {self.part} of {_groups(self.recipe)}",
                shots=self.shots,
                encoder=experiment.encoder,
                method=method.name,
                protocol="paired",
                tasks=tasks,
                seed=seed,
                recipe=json.loads(json.dumps(about | of_method)),
                base_classes=[names[c - 1] for c in source.fold.base],
                novel_classes=[names[c - 1] for c in source.fold.novel],
                supports=[[ids[i] for group in one.supports for i in group] for one in drawn],
                figures={cast(MetricName, key): metric.summary() for key, metric in found.metrics.items()},
                run=Run(
                    seconds=found.seconds,
                    peak_memory_mb=peak_memory_mb(),
                    versions=versions(device_name(experiment.device)),
                ),
            )

    def record_path(self, out: Path, record: Record) -> Path:
        """Where a record goes below a folder."""
        place = f"{self.experiment.folder.name}-part{self.part}of{_groups(self.recipe)}"
        name = f"{record.method}-{record.shots}shot-seed{record.seed}.json"
        return out / self.experiment.folder.parent.name / place / name


def _groups(recipe: Recipe) -> int:
    return recipe.episodic.held_out or GROUPS
