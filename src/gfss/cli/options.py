"""Options that several commands share: those of every command, and how a recipe is named and changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gfss.common.errors import GfssError

if TYPE_CHECKING:
    import torch

    from gfss.experiments.spec import Recipe


def within(low: float, high: float) -> Callable[[float], float]:
    """A check of an option: a number in a range, which NaN is not."""

    def check(value: float) -> float:
        if not low <= value <= high:
            raise typer.BadParameter(f"{value} is not in the range {low:g} to {high:g}.")
        return value

    return check


RecipeName = Annotated[
    str, typer.Argument(help="Recipe file, or a name such as frozen/pascal-lite0.", metavar="RECIPE")
]
Changes = Annotated[list[str] | None, typer.Option("--set", help="Change a setting, such as folds=0 or base.epochs=2.")]
RUNS = Path("runs")


@dataclass
class Common:
    """Options of every command; they are accepted anywhere on the command line.

    Attributes:
        runs: folder of artefacts.
        device: where to train and evaluate.
        weights: file with the encoder's weights.
        plugin: file that defines methods.
        label: name or mask value of the class in labels that are read.
        void: mask value in labels that are read that is neither class nor background.
    """

    runs: Path = RUNS
    device: str = "cpu"
    weights: Path | None = None
    plugin: Path | None = None
    label: str | None = None
    void: int | None = None

    @property
    def place(self) -> torch.device:
        """Where to train and evaluate."""
        from gfss.common.devices import find_device

        return find_device(self.device)


common = Common()
WITH_VALUE = ("--threads", "--device", "--runs", "--encoder-weights", "--plugin", "--ray", "--label", "--void")


def common_first(words: Sequence[str]) -> list[str]:
    """A command line with the options of every command in front.

    >>> common_first(["teach", "model", "--threads", "2", "--add"])
    ['--threads', '2', 'teach', 'model', '--add']
    """
    first: list[str] = []
    rest: list[str] = []
    left = iter(words)
    for word in left:
        if word in WITH_VALUE:
            first += [word, *([value] if (value := next(left, None)) is not None else [])]
        elif word.partition("=")[0] in WITH_VALUE:
            first.append(word)
        else:
            rest.append(word)
    return first + rest


def use(given: Common, threads: int, ray: str | None = None) -> None:
    """Take over the options of every command."""
    vars(common).update(vars(given))
    if threads > 0:
        import torch

        torch.set_num_threads(threads)
    if ray:
        from gfss.common.cluster import connect

        if given.device != "cpu":
            raise GfssError(
                f"the workers of a Ray cluster compute on CPUs; leave out --device {given.device}, or --ray"
            )
        connect(ray, threads or None)


def open_recipe(name: str, changes: Sequence[str] | None) -> Recipe:
    """The recipe that a command line describes; methods of plugins are known from here on."""
    from gfss.experiments.recipes import read_recipe
    from gfss.methods import load_installed, load_plugin

    load_installed()
    if common.plugin:
        load_plugin(common.plugin)
    recipe = read_recipe(name, changes or ())
    return recipe.only(weights=common.weights) if common.weights else recipe
