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

Item = TypeVar("Item")
Answer = TypeVar("Answer")
Thing = TypeVar("Thing")


def side_by_side(job: Callable[[Item], Answer], items: Iterable[Item]) -> Iterator[Answer]:
    """Answers of a job in the order of the items, as many at once as torch may use threads."""
    workers = torch.get_num_threads()
    if workers == 1:
        yield from map(job, items)
        return
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))
    begun: deque[Future[Answer]] = deque()
    try:
        for item in items:
            begun.append(pool.submit(job, item))
            if len(begun) > 2 * workers:  # few wait, so that an interruption ends soon
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(workers)  # new threads take the number that was set last


class Copies(Generic[Thing]):
    """A thing that can do one job at a time, and copies of it, as many as there are workers or jobs."""

    def __init__(self, thing: Thing, jobs: int) -> None:
        self._free: SimpleQueue[Thing] = SimpleQueue()
        self._free.put(thing)
        for _ in range(1, min(torch.get_num_threads(), jobs)):
            self._free.put(deepcopy(thing))

    @contextmanager
    def one(self) -> Iterator[Thing]:
        """One that no other worker uses meanwhile."""
        thing = self._free.get()
        try:
            yield thing
        finally:
            self._free.put(thing)
