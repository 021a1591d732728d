"""Training runs that tests start as processes of their own: ``python -m tests.training.runs NAME FOLDER``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from tests.training.tiny import FOLD, SIZE, make_calibrated, make_source
from torch import Tensor, nn

from gfss.common.devices import Workers, start_workers
from gfss.common.distributed_layers import DistributedBatchNorm
from gfss.models.encoders import build_encoder
from gfss.training import base, loop
from gfss.training.base import BaseData, BaseOptions, train_base
from gfss.training.episodic import train_calibrator
from gfss.training.episodic_options import EpisodicOptions

ITERATIONS = 150
STEPS = 20


def small_network() -> nn.Module:
    """Convolution, batch norm and dropout: everything that has a state or draws random numbers."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout2d(0.3), nn.Conv2d(4, 2, 1), nn.Flatten()
    )


def train_small(network: nn.Module, folder: Path | None, pause: float = 0.0, resume: bool = True) -> None:
    """Train on noise, saving at every second iteration."""
    loop.SAVE_EVERY = 2

    def loss(step: loop.Iteration) -> tuple[Tensor, Tensor]:
        time.sleep(pause)
        images = torch.randn(6, 3, 5, 5, generator=torch.Generator().manual_seed(step.number))
        outputs = network(images)
        return (outputs - images.flatten(1)[:, :18]).square().sum(), torch.tensor(outputs.numel())

    loop.train(
        network, loss, loop.Schedule(ITERATIONS, 1e-2, "adamw"), run=loop.TrainingRun(folder=folder, resume=resume)
    )


def to_be_killed(folder: Path) -> None:
    """A slow run with checkpoints."""
    train_small(small_network(), folder, pause=0.02)


def to_be_compared(folder: Path) -> None:
    """Finish the run in a folder, run another one without interruption, and write the weights of both."""
    for name, checkpoints in (("resumed", folder), ("uninterrupted", None)):
        network = small_network()
        train_small(network, checkpoints)
        save_file(network.state_dict(), folder / f"{name}.safetensors")


def together(folder: Path) -> None:
    """Under ``torchrun``: what :func:`train_all` gives, and the batch norm of all processes against the plain one."""
    workers = start_workers()
    weights = train_all(folder, workers)
    compared = batch_norms(workers)
    if workers.rank == 0:
        save_file({**weights, **compared}, folder / "together.safetensors")


def train_all(folder: Path, workers: Workers) -> dict[str, Tensor]:
    """Weights of a base model (end to end, with batch norm), of a head on a frozen encoder and of two calibrators."""
    source = make_source(folder)
    options = BaseOptions(
        levels=("layer4",), pyramid=4, width=8, separable=False, dropout=0.1, epochs=5, batch=8, rate=2.5e-3,
        optimiser="sgd", weight_decay=1e-4, label_stride=2, train_encoder=True,
    )  # fmt: skip
    with double_precision():
        model = train_base(
            BaseData(source.dataset, FOLD),
            build_encoder("tiny"),
            "tiny",
            options,
            size=SIZE,
            run=loop.TrainingRun(workers=workers),
        )
    weights = {f"base.{name}": value for name, value in model.state_dict().items()}
    options = replace(options, separable=True, train_encoder=False)
    store = source.store
    model = train_base(
        BaseData(source.dataset, FOLD, bank=store.bank),
        store.model.encoder,
        "tiny",
        options,
        size=SIZE,
        run=loop.TrainingRun(workers=workers),
    )
    # in float32, as in earnest: a head has few layers, so rounding hardly grows
    weights |= {f"head.{name}": value for name, value in model.head.state_dict().items()}
    episodic = EpisodicOptions(
        iterations=STEPS, batch=4, episodes=6, pairs=2, rate=1e-2, optimiser="sgd", several=3
    )  # fmt: skip
    for part, kind in (("calibrator", "pcn-support"), ("attention", "pcn-support-attention")):
        method = make_calibrated(source, kind)
        train_calibrator(method, source, episodic, key="", workers=workers)
        weights |= {f"{part}.{name}": value for name, value in method.calibrator.state_dict().items()}
    return weights


@contextmanager
def double_precision() -> Iterator[None]:
    """Train a base model in float64: in float32 a ReLU input near zero may be rounded to its other side, which moves
    the weights by more than the error of the method itself."""
    convert = base.to_tensor
    torch.set_default_dtype(torch.float64)
    base.to_tensor = lambda images: convert(images).double()
    try:
        yield
    finally:
        base.to_tensor = convert
        torch.set_default_dtype(torch.float32)


def batch_norms(workers: Workers) -> dict[str, Tensor]:
    """Output, gradients and statistics of both batch norms on one batch; the synchronised one sees it in parts."""
    generator = torch.Generator().manual_seed(3)
    # parts of unequal size, samples that differ little
    images = torch.randn(5, 4, 6, 6, generator=generator) * 0.05 + 2
    towards = torch.randn(5, 4, 6, 6, generator=generator)
    found: dict[str, Tensor] = {}
    for name, kind, share in (
        ("plain", nn.BatchNorm2d, slice(None)),
        ("synchronised", DistributedBatchNorm, slice(workers.rank, None, workers.world)),
    ):
        layer = kind(4)
        layer.weight.data = torch.tensor([0.5, 1.0, 1.5, -1.0])
        part = images[share].clone().requires_grad_()
        (layer(part) * towards[share]).sum().backward()
        assert part.grad is not None
        assert layer.weight.grad is not None
        assert layer.bias.grad is not None
        results = {"weight": layer.weight.grad, "bias": layer.bias.grad}
        with torch.no_grad():
            maps = {"output": layer.train()(part), "gradient": part.grad}
        for key, value in maps.items():
            results[key] = torch.zeros_like(images)
            results[key][share] = value
        if name == "synchronised":
            results = {key: workers.sum(value) for key, value in results.items()}
        statistics = {"mean": layer.running_mean, "variance": layer.running_var}
        found |= {f"{name}.{key}": value.clone() for key, value in (results | statistics).items() if value is not None}
    return found


if __name__ == "__main__":
    {"to_be_killed": to_be_killed, "to_be_compared": to_be_compared, "together": together}[sys.argv[1]](
        Path(sys.argv[2])
    )
