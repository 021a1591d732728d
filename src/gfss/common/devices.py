"""Where the work is done: on the CPU or a GPU, in several threads, in several processes that train as one.

Most operations here are too small to be split between cores; several items side by side use them better. Every thread
computes with one torch thread, so that results do not depend on their number.
"""

from __future__ import annotations

import atexit
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Generic, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gfss.common.errors import GfssError, unknown

if TYPE_CHECKING:
    from gfss.common.cluster import Cluster

CPU = torch.device("cpu")
KINDS = ("cpu", "cuda")
Item = TypeVar("Item")
Output = TypeVar("Output")
Thing = TypeVar("Thing")
T = TypeVar("T")
cluster: Cluster | None = None  # set by :func:`gfss.common.cluster.connect`


def device_name(device: torch.device) -> str:
    """A device for people and records."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def peak_memory_mb(device: torch.device) -> float | None:
    """Largest memory that tensors on a GPU have used so far; None on the CPU."""
    return torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else None


def find_device(name: str) -> torch.device:
    """A device by name; processes started together by ``torchrun`` use one GPU each.

    >>> find_device("cpu")
    device(type='cpu')
    """
    kind, _, number = name.partition(":")
    if kind not in KINDS:
        raise unknown("device", name, KINDS)
    if kind == "cpu":
        return CPU
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if number and os.environ.get("WORLD_SIZE", "1") != "1":
        raise GfssError(f"every process needs its own GPU, but '{name}' names a single one; use --device cuda")
    place = number or os.environ.get("LOCAL_RANK", "0")
    if not place.isdecimal() or int(place) >= gpus:
        raise GfssError(
            f"device '{kind}:{place}' is not available: torch {torch.__version__} sees {gpus} CUDA GPU(s); "
            "install a CUDA build of torch, start at most one process per GPU, or omit --device"
        )
    return torch.device(kind, int(place))


def workers_on(device: torch.device) -> int:
    """How many items are worked on at once: as many as torch may use threads, one on a GPU."""
    return torch.get_num_threads() if device.type == "cpu" else 1


def parallel_map(job: Callable[[Item], Output], items: Iterable[Item], device: torch.device = CPU) -> Iterator[Output]:
    """Results of a job in the order of the items, several at once (see :func:`workers_on`)."""
    workers = workers_on(device)
    if workers == 1:
        yield from map(job, items)
        return
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))
    pending: deque[Future[Output]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(job, item))
            if len(pending) > 2 * workers:  # few wait, so that an interruption ends soon
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(workers)  # new threads take the number that was set last


class CopyPool(Generic[Thing]):
    """A thing that can do one job at a time, and copies of it: as many as there are workers or jobs."""

    def __init__(self, thing: Thing, jobs: int, device: torch.device = CPU) -> None:
        self._free: SimpleQueue[Thing] = SimpleQueue()
        self._free.put(thing)
        for _ in range(1, min(workers_on(device), jobs)):
            self._free.put(deepcopy(thing))

    @contextmanager
    def one(self) -> Iterator[Thing]:
        """A copy that no other worker uses in the meantime."""
        thing = self._free.get()
        try:
            yield thing
        finally:
            self._free.put(thing)


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


def connected_cluster() -> Cluster | None:
    """The cluster that this process is connected to, None if it works alone."""
    return cluster


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

    local = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    fabric = Fabric(accelerator=device.type, devices=local, num_nodes=world // local, strategy="ddp")
    fabric.launch()
    atexit.unregister(_leave)
    atexit.register(_leave)
    return Workers(fabric.global_rank, fabric.world_size)


def _leave() -> None:
    """Leave the other processes before the interpreter goes: threads of the back end that still run would abort it."""
    if dist.is_initialized():
        dist.destroy_process_group()
