"""Pieces of work on the workers of a Ray cluster, results in order.

A worker computes with one thread, so it gives what a process with one thread gives. A piece whose worker or node dies
is given to another. All nodes have the same gfss and see the same folders under the same paths.
"""

from __future__ import annotations

import os
import platform
import socket
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from gfss.common import devices
from gfss.common.errors import GfssError
from gfss.common.files import program_hash

RETRIES = 5  # of a piece whose worker dies
WAITING = 4  # pieces that are handed out at once, for each worker
LOCAL = "local"
KNOCK_SECONDS = 10
Item = TypeVar("Item")
Output = TypeVar("Output")
Job = Callable[[Item], Output]


@dataclass(frozen=True)
class Start:
    """What a worker needs to begin.

    Attributes:
        make: gives the job of the worker; called once by each.
        folder: working folder of the driver.
        variables: its variables of the environment that gfss reads.
        program: hash of its gfss.
    """

    make: Callable[[], Job[Any, Any]]
    folder: str
    variables: dict[str, str]
    program: str


@dataclass(frozen=True)
class Cluster:
    """A connection to a cluster."""

    ray: Any

    @property
    def workers(self) -> int:
        """How many pieces are worked on at once."""
        return max(1, int(self.ray.cluster_resources().get("CPU", 1)))

    def map(self, make: Callable[[], Job[Item, Output]], items: Iterable[Item]) -> Iterator[Output]:
        """Results of a job in the order of the items.

        Args:
            make: gives the job; each worker calls it once, so what it loads stays in memory between pieces.
            items: pieces of work; a result may not depend on who did it, since a piece may be done twice.
        """
        key = uuid.uuid4().hex
        variables = {name: value for name, value in os.environ.items() if name.startswith("GFSS_")}
        start = self.ray.put(Start(make, os.getcwd(), variables, program_hash("")))
        task = self.ray.remote(num_cpus=1, max_retries=RETRIES)(_work)
        pending: deque[Any] = deque()
        try:
            for item in items:
                pending.append(task.remote(key, [start], item))  # in a list, or every piece would read it again
                if len(pending) >= WAITING * self.workers:
                    yield self._result(pending.popleft())
            while pending:
                yield self._result(pending.popleft())
        finally:
            for one in pending:
                self.ray.cancel(one)

    def _result(self, reference: Any) -> Any:
        try:
            output, sentence = self.ray.get(reference)
        except (self.ray.exceptions.WorkerCrashedError, self.ray.exceptions.OutOfMemoryError) as error:
            raise GfssError(
                f"the worker of one piece died {RETRIES + 1} times ({type(error).__name__}); its node may have too "
                "little memory: give Ray fewer CPUs there, then run the same command again"
            ) from None
        if sentence is not None:
            raise GfssError(sentence)
        return output


_job: tuple[str, Job[Any, Any]] | None = None  # of a worker: the last one, and which it is


def connect(address: str, workers: int | None = None) -> Cluster:
    """Connect this process to a cluster, for everything that it maps from now on.

    Args:
        address: HOST:PORT of the head node, or "local" to start workers on this machine.
        workers: on this machine, one for each core if left out.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray  # pyright: ignore[reportMissingImports]  # an extra that tests do without
    import ray.exceptions  # pyright: ignore[reportMissingImports]

    options: dict[str, Any] = {}
    if address == LOCAL:
        options = {"include_dashboard": False, "num_cpus": workers or os.cpu_count()}
    try:
        _knock(address)
        ray.init(address=address, configure_logging=False, **options)
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise GfssError(
            f"no Ray cluster answers at '{address}' ({reason}); start one with 'ray start --head', or use --ray local"
        ) from None
    devices.cluster = Cluster(ray)
    return devices.cluster


def _knock(address: str) -> None:
    """Raise if nothing listens at an address; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if port.isdecimal():
        socket.create_connection((host, int(port)), KNOCK_SECONDS).close()


def _work(key: str, start: list[Any], item: Any) -> tuple[Any, str | None]:
    """One piece on a worker: its result, or the sentence of an error."""
    global _job
    try:
        if _job is None or _job[0] != key:
            import ray  # pyright: ignore[reportMissingImports]

            _job = None  # frees what the last one holds
            _job = key, _prepared(ray.get(start[0]))
        return _job[1](item), None
    except GfssError as error:
        return None, str(error)


def _prepared(start: Start) -> Job[Any, Any]:
    import torch

    if start.program != program_hash(""):
        raise GfssError(f"the node {platform.node()} has another gfss than the driver; install the same version")
    if not os.path.isdir(start.folder):
        raise GfssError(
            f"the node {platform.node()} does not see the folder {start.folder}; all nodes of a cluster must see "
            "the same folders under the same paths"
        )
    os.chdir(start.folder)
    os.environ.update(start.variables)
    torch.set_num_threads(1)
    return start.make()
