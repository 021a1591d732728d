"""Several processes training as one."""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gfss.common.devices import CPU

T = TypeVar("T")


@dataclass(frozen=True)
class Workers:
    """The processes of a run; one if not started by ``torchrun``."""

    rank: int = 0
    world: int = 1

    def sum(self, value: Tensor) -> Tensor:
        """Sum of a tensor over all processes."""
        if self.world > 1:
            value = value.clone()
            dist.all_reduce(value)
        return value

    def wait(self) -> None:
        """Wait until all processes have reached this point."""
        if self.world > 1:
            dist.barrier()

    def gather(self, value: T) -> list[T]:
        """The values of all processes, in their order."""
        if self.world == 1:
            return [value]
        values: list[T | None] = [None] * self.world
        dist.all_gather_object(values, value)
        return cast(list[T], values)

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Sum the gradients of all processes in one call."""
        if self.world == 1:
            return
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
        flat = torch.cat([g.reshape(-1) for g in grads])
        dist.all_reduce(flat)
        for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            parameter.grad = part.view_as(parameter)


def started_processes() -> int:
    """How many processes ``torchrun`` started together; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_first() -> bool:
    """Whether this process is the one that writes and prints."""
    return os.environ.get("RANK", "0") == "0"


def own_share_first(numbers: Sequence[int]) -> list[int]:
    """Numbers of parts of a job in the order in which this process does them, while others of its machine do theirs.

    First its own share, then those of the others from the end: nothing is waited for, and where the others are as fast,
    at most the last part of each is done twice.

    >>> own_share_first(range(5))
    [0, 1, 2, 3, 4]
    """
    rank, world = (int(os.environ.get(name, usual)) for name, usual in (("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1)))
    others = [number for number in numbers if number % world != rank]
    return [number for number in numbers if number % world == rank] + others[::-1]


def start_workers(device: torch.device = CPU) -> Workers:
    """Connect to the other processes if ``torchrun`` started this one.

    Args:
        device: where this process computes; GPUs communicate in their own way.
    """
    world = started_processes()
    if world == 1:
        return Workers()
    from lightning_fabric import Fabric  # slow to import

    fabric = Fabric(accelerator=device.type, devices=int(os.environ.get("LOCAL_WORLD_SIZE", world)), strategy="ddp")
    fabric.launch()
    atexit.unregister(_leave)
    atexit.register(_leave)
    return Workers(fabric.global_rank, fabric.world_size)


def _leave() -> None:
    """Leave the other processes before the interpreter goes: threads of the back end that still run would abort it."""
    if dist.is_initialized():
        dist.destroy_process_group()
