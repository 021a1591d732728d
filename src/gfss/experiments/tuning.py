"""Settings compared without a look at novel classes.

The base classes of a fold and its train images are split into parts, with a base model trained without each part of
both (see :class:`gfss.features.sampler.HeldOutSamplers`). A calibrator is trained on episodes of all parts but one and
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

from gfss.common.distributed import started_processes
from gfss.common.errors import GfssError
from gfss.data.episodes import shots_in_words, task
from gfss.evaluation.protocols import examine
from gfss.evaluation.records import Record
from gfss.experiments.evaluator import fold_name, make_record
from gfss.experiments.experiment import Experiment
from gfss.experiments.plan import Plan
from gfss.experiments.recipes import Recipe
from gfss.experiments.requirements import missing
from gfss.experiments.stages import episodes_key, train_base_stage, train_held_out_stage, training_of
from gfss.features.sampler import EpisodeSampler, HeldOutSamplers
from gfss.methods import inner_method
from gfss.methods.base import Method
from gfss.methods.pcn import Calibrated
from gfss.training.checkpoints import has_checkpoint
from gfss.training.episodic import train_calibrator
from gfss.training.loop import remove_training_state
from gfss.training.method_checkpoints import load_method, save_method

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
        inner = inner_method(name)
        if recipe.is_trained(inner) and (inner != name or recipe.calibrator(name) is None):
            raise GfssError(
                f"method '{inner}' is trained on the features of one base model; only methods without training and "
                "calibrators on them can be examined on held-out base classes"
            )
    if started_processes() > 1:
        raise GfssError("settings are compared by one process; start gfss tune without torchrun")
    return list(wanted) or list(range(1, groups + 1))


def comparisons(plan: Plan, wanted: Sequence[int] = ()) -> Iterator[Tuning]:
    """The comparisons of a plan's recipe one after another; base models are trained where they are missing.

    Args:
        wanted: numbers of the parts to leave out, as in :func:`parts_of`.
    """
    recipe = plan.recipe
    parts = parts_of(recipe, wanted)
    if sentence := missing(recipe.data, recipe.encoder, plan.root, plan.weights):
        raise GfssError(sentence)
    for fold in recipe.folds:
        experiment = plan.experiment(fold)
        base_alone = recipe.model_copy(update={"folds": (fold,), "methods": ("nsf",)})
        if replace(plan, recipe=base_alone).todo:
            train_base_stage(experiment, seed=recipe.seed, resume=True, options=recipe.base)
        yield from (Tuning(recipe, experiment, shots, part) for shots in recipe.shots for part in parts)


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

    @property
    def words(self) -> str:
        """The comparison for people."""
        return f"{self._place}, {shots_in_words(self.shots)}"

    @property
    def _place(self) -> str:
        return f"fold {fold_name(self.experiment)}, part {self.part} of {_groups(self.recipe)}"

    def examine(self, tasks: int) -> Iterator[Record]:
        """Train every calibrator without the part and examine all methods on it, for each of the recipe's seeds."""
        sources = train_held_out_stage(self.experiment, _groups(self.recipe), resume=True).sources
        others = HeldOutSamplers(tuple(one for number, one in enumerate(sources, start=1) if number != self.part))
        methods = [self._trained(name, others) for name in self.recipe.methods]
        for seed in self.recipe.seeds:
            yield from self._records(methods, sources[self.part - 1], tasks, seed)

    def _trained(self, name: str, source: HeldOutSamplers) -> Method:
        """A method, its calibrator trained on the episodes of ``source`` unless that is done."""
        experiment = self.experiment
        method = experiment.method(name, self.shots, self.recipe.seed, trained=False)
        if not isinstance(method, Calibrated):
            return method
        options = replace(self.recipe.training(name, self.shots), held_out=_groups(self.recipe))
        training = training_of(experiment, method, options)
        key = episodes_key(experiment, method.inner, source)
        settings = hashlib.sha256(json.dumps([training, key]).encode()).hexdigest()[:10]
        place = experiment.folder / f"tuning-without-part{self.part}of{_groups(self.recipe)}"
        folder = place / f"{name}-{self.shots}shot-{settings}"
        if has_checkpoint(folder, "method"):
            load_method(folder, method, experiment.model.card)
            return method
        train_calibrator(method, source, options, key=key, folder=folder, resume=True)
        save_method(folder, method, experiment.model.card, training)
        remove_training_state(folder)
        return method

    def _records(self, methods: list[Method], source: EpisodeSampler, tasks: int, seed: int) -> Iterator[Record]:
        experiment = self.experiment
        drawn = [task(source.dataset, source.fold, seed, i, self.shots, source.avoid) for i in range(tasks)]
        results = examine(methods, source, drawn)
        about = {"size": experiment.size, **experiment.special, "base": experiment.model.card.training}
        about |= {"novel": asdict(experiment.novel_options)}
        for method in methods:
            settings = self.recipe.settings(method.name, self.shots)
            of_method = {key: settings[key] for key in ("training", "diam") if key in settings}
            if "training" in of_method:
                of_method["training"] |= {"held_out": _groups(self.recipe)}
            yield make_record(
                experiment,
                results[method.name],
                drawn,
                source,
                data=f"{experiment.name}, base classes held out",  # no table mixes them with novel classes
                fold=self._place.removeprefix("fold "),
                shots=self.shots,
                method=method.name,
                protocol="paired",
                seed=seed,
                recipe=about | of_method,
            )

    def record_path(self, out: Path, method: str, seed: int) -> Path:
        """Where a record goes below a folder."""
        place = f"{self.experiment.folder.name}-part{self.part}of{_groups(self.recipe)}"
        return out / self.experiment.folder.parent.name / place / f"{method}-{self.shots}shot-seed{seed}.json"


def _groups(recipe: Recipe) -> int:
    return recipe.episodic.held_out or GROUPS
