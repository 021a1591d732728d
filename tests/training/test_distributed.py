"""Two processes against one; they are started once for all tests here."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from tests.conftest import REPOSITORY
from tests.training.runs import train_all
from tests.training.tiny import make_source
from torch import Tensor, nn

from gfss.common.devices import Workers, start_workers
from gfss.common.distributed_layers import (
    DistributedBatchNorm,
    DistributedDropout,
    distribute_batch_norm,
    distribute_dropout,
)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    """What two processes found."""
    folder = tmp_path_factory.mktemp("together")
    make_source(folder)  # both read the same files and bank
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GFSS_CACHE": str(folder)}
    command = [*launcher, "-m", "tests.training.runs", "together", str(folder)]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return load_file(folder / "together.safetensors")


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    return train_all(tmp_path_factory.mktemp("alone"), Workers())


@pytest.mark.parametrize("part", ["base", "head", "calibrator", "attention"])
def test_two_processes_train_the_same_weights_as_one(one: dict[str, Tensor], two: dict[str, Tensor], part: str) -> None:
    names = [name for name in one if name.startswith(part + ".")]
    assert len(names) > 5
    for name in names:
        torch.testing.assert_close(
            two[name], one[name], rtol=1e-5, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_batch_norm_over_processes_is_batch_norm_over_the_whole_batch(two: dict[str, Tensor]) -> None:
    keys = [name.removeprefix("plain.") for name in two if name.startswith("plain.")]
    assert sorted(keys) == ["bias", "gradient", "mean", "output", "variance", "weight"]
    for key in keys:
        torch.testing.assert_close(two[f"synchronised.{key}"], two[f"plain.{key}"], rtol=1e-5, atol=1e-5)


def test_layers_are_turned_in_place() -> None:
    module = nn.Sequential(nn.BatchNorm2d(2), nn.Sequential(nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout2d(0.4)))
    before = module.state_dict()
    distribute_batch_norm(module)
    distribute_dropout(module)
    assert isinstance(module[0], DistributedBatchNorm)
    assert isinstance(module[1][0], DistributedBatchNorm)
    assert isinstance(module[1][2], DistributedDropout)
    assert module[1][2].p == 0.4
    assert module.state_dict().keys() == before.keys()
    images = torch.randn(2, 3, 4, 4)
    assert torch.equal(module[1].eval()(images), nn.BatchNorm2d(3).eval()(images).relu())


def test_one_process_needs_no_others() -> None:
    workers = start_workers()
    assert (workers.rank, workers.world) == (0, 1)
    value = torch.ones(2)
    assert torch.equal(workers.sum(value), value)
    workers.wait()


@pytest.mark.parametrize("shape", [(3, 4, 5, 6), (1, 2, 3, 3), (6, 3, 1, 1)])
def test_shared_batch_norm_alone_is_that_of_torch(shape: tuple[int, int, int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    images, towards = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    results = []
    for kind in (nn.BatchNorm2d, DistributedBatchNorm):
        layer = kind(shape[1]).double()
        layer.weight.data = torch.linspace(-1, 2, shape[1], dtype=torch.float64)
        part = (images * 0.01 + 5).requires_grad_()
        output = layer(part)
        (output * towards).sum().backward()
        results.append([output, part.grad, layer.weight.grad, layer.bias.grad, layer.running_mean, layer.running_var])
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)
