"""The one training loop: stage 1, the calibrator and the trained methods all run through it.

Everything an iteration does is a function of its number: which samples, which random numbers. So a
resumed run equals an uninterrupted one, and several processes equal one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from gfss.common.devices import Workers
from gfss.common.distributed_layers import distribute_batch_norm
from gfss.common.errors import GfssError, unknown
from gfss.common.progress import Bar
from gfss.training.checkpoints import (
    has_checkpoint,
    load_checkpoint,
    optimiser_tensors,
    restore_optimiser,
    save_checkpoint,
)

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

SAVE_EVERY = 200  # iterations between checkpoints
SHARE = "share"  # of the learning rate, in a group of an optimiser's parameters
Slower = tuple[Sequence[nn.Parameter], float]
"""Parameters and the share of the learning rate that they have."""


@dataclass(frozen=True)
class Schedule:
    """How to optimise; the defaults are the paper's.

    Attributes:
        iterations: number of steps.
        rate: highest learning rate.
        optimiser: ``sgd`` (nesterov momentum 0.9) or ``adamw``.
        weight_decay: weight decay.
        final_rate: learning rate at the end of the cosine.
        warmup: iterations of linear growth before the cosine.
    """

    iterations: int
    rate: float = 2.5e-3
    optimiser: Literal["sgd", "adamw"] = "sgd"
    weight_decay: float = 1e-4
    final_rate: float = 1e-6
    warmup: int = 0

    def rate_at(self, iteration: int) -> float:
        """Cosine from ``rate`` to ``final_rate``, per iteration, after the warm-up."""
        if iteration < self.warmup:
            return self.rate * (iteration + 1) / self.warmup
        done = (iteration - self.warmup) / max(1, self.iterations - self.warmup)
        return self.final_rate + (self.rate - self.final_rate) * 0.5 * (1 + math.cos(math.pi * done))

    def make(self, parameters: Sequence[nn.Parameter], slower: Slower | None = None) -> torch.optim.Optimizer:
        """A fresh optimiser; ``slower`` of the parameters have a share of the rate."""
        if slower is None:
            return self._make(parameters)
        names = {id(p) for p in slower[0]}
        groups = [
            {"params": [p for p in parameters if (id(p) in names) == is_slow], SHARE: share}
            for is_slow, share in ((False, 1.0), (True, slower[1]))
        ]
        return self._make([group for group in groups if group["params"]])

    def _make(self, parameters: Sequence[nn.Parameter] | list[dict[str, Any]]) -> torch.optim.Optimizer:
        if self.optimiser == "sgd":
            options = {"momentum": 0.9, "nesterov": True, "weight_decay": self.weight_decay}
            return torch.optim.SGD(parameters, self.rate, fused=True, **options)
        if self.optimiser == "adamw":
            return torch.optim.AdamW(parameters, self.rate, weight_decay=self.weight_decay, fused=True)
        raise unknown("optimiser", self.optimiser, ("sgd", "adamw"))


@dataclass(frozen=True)
class Iteration:
    """One iteration as a loss function sees it.

    Attributes:
        number: iteration, from 0.
        rank: this process.
        world: number of processes; process ``rank`` takes samples rank, rank + world, ...
    """

    number: int
    rank: int = 0
    world: int = 1

    def share(self, samples: Sequence[Any]) -> list[Any]:
        """This process's part of the samples of an iteration."""
        return list(samples)[self.rank :: self.world]


Loss = Callable[[Iteration], tuple[Tensor, Tensor]]
"""The loss of an iteration as (sum over pixels, number of pixels) of this process's samples."""


@dataclass(frozen=True)
class TrainingRun:
    """Where and how a training runs, whatever is trained.

    Attributes:
        seed: of samples and random numbers.
        folder: where checkpoints and TensorBoard scalars go; none if left out.
        resume: continue from the checkpoint in ``folder``.
        workers: processes that train together.
    """

    seed: int = 0
    folder: Path | None = None
    resume: bool = False
    workers: Workers = field(default_factory=Workers)

    @property
    def output(self) -> Path | None:
        """Where this process writes: the folder in the first one, nowhere in others."""
        return self.folder if self.workers.rank == 0 else None

    @property
    def unfinished(self) -> Path | None:
        """The folder of an interrupted training that is to be continued."""
        return self.folder if self.resume and self.folder and has_checkpoint(self.folder, "train") else None


def train(
    module: nn.Module,
    loss: Loss,
    schedule: Schedule,
    run: TrainingRun | None = None,
    *,
    name: str = "training",
    describe: Callable[[int], str] = lambda number: "",
    settings: Any = None,
    slower: Slower | None = None,
) -> list[float]:
    """Optimise the parameters of ``module`` that require gradients.

    Args:
        module: what to train; left in evaluation mode.
        loss: loss of one iteration.
        describe: images of an iteration, for the message about a loss that is not a number.
        settings: whatever else the training depends on, as JSON; an unfinished run of others is not continued.
        slower: parameters with a lower learning rate.

    Returns:
        The loss of every iteration of this call.
    """
    run = run or TrainingRun()
    if run.workers.world > 1:
        distribute_batch_norm(module)
    optimiser = schedule.make([p for p in module.parameters() if p.requires_grad], slower)
    plan = json.loads(json.dumps({**asdict(schedule), "seed": run.seed, "settings": settings}, default=str))
    start = _resume(run.unfinished, module, optimiser, plan) if run.unfinished else 0
    writer = _writer(run.output) if run.output else None
    losses: list[float] = []
    module.train()
    with Bar(name, schedule.iterations, start) as bar:
        for number in range(start, schedule.iterations):
            value = _optimise(number, loss, optimiser, schedule, run, describe)
            losses.append(value)
            bar.advance(loss=value)
            if writer and number % 10 == 0:
                writer.add_scalar("loss", value, number)
                writer.add_scalar("learning rate", schedule.rate_at(number), number)
            if run.output and (number + 1) % SAVE_EVERY == 0 and number + 1 < schedule.iterations:
                _save(run.output, module, optimiser, plan, number + 1)
    if writer:
        writer.close()
    module.eval()
    return losses


def _optimise(
    number: int,
    loss: Loss,
    optimiser: torch.optim.Optimizer,
    schedule: Schedule,
    run: TrainingRun,
    describe: Callable[[int], str],
) -> float:
    """One iteration; returns its loss."""
    rate, workers = schedule.rate_at(number), run.workers
    for group in optimiser.param_groups:
        group["lr"] = rate * group.get(SHARE, 1)
    torch.manual_seed(mixed_seed(run.seed, number))  # dropout of this iteration, whatever came before
    total, count = loss(Iteration(number, workers.rank, workers.world))
    count = workers.sum(count.detach().float()).clamp_min(1)
    optimiser.zero_grad(set_to_none=True)
    (total / count).backward()
    value = float(workers.sum(total.detach()) / count)
    if not math.isfinite(value):
        samples = f", {text}" if (text := describe(number)) else ""
        raise GfssError(
            f"the loss became {value} at iteration {number} (learning rate {rate:.2g}{samples}); "
            "lower the learning rate or look at these images"
        )
    workers.sum_gradients([p for group in optimiser.param_groups for p in group["params"]])
    optimiser.step()
    return value


def mixed_seed(seed: int, number: int) -> int:
    """One seed out of two numbers; within 32 bits, since the CPU's generator looks at no more."""
    return (seed * 1_000_003 + number) % 2**32


def _save(folder: Path, module: nn.Module, optimiser: torch.optim.Optimizer, plan: dict[str, Any], done: int) -> None:
    tensors = {f"module.{k}": v for k, v in module.state_dict().items()}
    tensors |= {f"optimiser.{k}": v for k, v in optimiser_tensors(optimiser).items()}
    save_checkpoint(folder, tensors, {"iteration": done, "schedule": plan}, "train")


def _resume(folder: Path, module: nn.Module, optimiser: torch.optim.Optimizer, plan: dict[str, Any]) -> int:
    tensors, about = load_checkpoint(folder, "train")
    if about["schedule"] != plan:
        differing = ", ".join(key for key in plan if about["schedule"].get(key) != plan[key])
        raise GfssError(
            f"{folder} holds an unfinished run with another schedule or other options ({differing}); "
            "give the same options or another folder, or move this one away"
        )
    module.load_state_dict({k.removeprefix("module."): v for k, v in tensors.items() if k.startswith("module.")})
    restore_optimiser(
        optimiser, {k.removeprefix("optimiser."): v for k, v in tensors.items() if k.startswith("optimiser.")}
    )
    return int(about["iteration"])


def _writer(folder: Path) -> SummaryWriter:
    from torch.utils.tensorboard import SummaryWriter  # slow to import, and only needed here

    return SummaryWriter(str(folder / "tensorboard"))


def remove_training_state(folder: Path) -> None:
    """Remove the intermediate checkpoint of a run that is complete."""
    for path in folder.glob("train*"):
        if path.suffix in (".json", ".safetensors"):
            path.unlink()
