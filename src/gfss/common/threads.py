"""The same job for many items at once, in threads.

Most operations here are too small to be split between cores; several items side by side use them better. Every worker
computes with one torch thread, so that results do not depend on the number of workers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from queue import SimpleQueue
from typing import Generic, TypeVar

import torch

from gfss.common.devices import CPU

Item = TypeVar("Item")
Output = TypeVar("Output")
Thing = TypeVar("Thing")


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
