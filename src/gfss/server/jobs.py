"""Long work one after another in a thread of its own, with progress that clients ask for."""

from __future__ import annotations

import itertools
import queue
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gfss.common.errors import GfssError
from gfss.server.errors import Busy, NotFound

MOST_WAITING = 32  # jobs; more is a client gone wild
REMEMBERED = 50  # finished jobs that can still be asked about


@dataclass
class Job:
    """A piece of long work.

    Attributes:
        id: number, from 1.
        kind: teach, suggest, export ...
        title: what it does, in words.
        state: waiting, running, done or failed.
        step: what it does at the moment.
        progress: from 0 to 1.
        seconds: how long it has run.
        result: what came out, where it is done.
        error: one sentence, where it failed.
    """

    id: int
    kind: str
    title: str
    state: str = "waiting"
    step: str = ""
    progress: float = 0.0
    result: dict[str, Any] | None = None
    error: str | None = None
    started: float | None = None
    ended: float | None = None
    finished: threading.Event = field(default_factory=threading.Event)

    def at(self, progress: float, step: str) -> None:
        """Say how far the work is; called by the work itself."""
        self.progress, self.step = progress, step

    def as_json(self) -> dict[str, Any]:
        begin, end = self.started, self.ended or time.monotonic()
        return {
            "id": self.id,
            "kind": self.kind,
            "title": self.title,
            "state": self.state,
            "step": self.step,
            "progress": round(self.progress, 3),
            "seconds": round(end - begin, 1) if begin is not None else 0.0,
            "result": self.result,
            "error": self.error,
        }


Work = Callable[[Job], dict[str, Any]]


class Jobs:
    """One worker thread: whatever changes the model is done in the order it was asked for."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._jobs: dict[int, Job] = {}
        self._waiting: queue.Queue[tuple[Job, Work] | None] = queue.Queue(MOST_WAITING)
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="gfss-jobs", daemon=True)
        self._thread.start()

    def submit(self, kind: str, title: str, work: Work) -> Job:
        """Put work in line."""
        job = Job(next(self._numbers), kind, title)
        with self._lock:
            self._jobs[job.id] = job
            done = [one.id for one in self._jobs.values() if one.finished.is_set()]
            for old in done[:-REMEMBERED]:
                del self._jobs[old]
        try:
            self._waiting.put_nowait((job, work))
        except queue.Full:
            with self._lock:
                del self._jobs[job.id]
            raise Busy(f"{MOST_WAITING} jobs are waiting already; try again when some are done") from None
        return job

    def run(self, kind: str, title: str, work: Work) -> dict[str, Any]:
        """Put short work in line and wait for it; its error is raised here."""
        caught: list[GfssError] = []

        def keep_error(job: Job) -> dict[str, Any]:
            try:
                return work(job)
            except GfssError as error:
                caught.append(error)
                raise

        job = self.submit(kind, title, keep_error)
        job.finished.wait()
        if caught:
            raise caught[0]
        if job.result is None:
            raise GfssError(job.error or "the job ended without a result")
        return job.result

    def get(self, number: int) -> Job:
        """A job by its number."""
        try:
            return self._jobs[number]
        except KeyError:
            raise NotFound(f"there is no job {number}; finished jobs are remembered for a while only") from None

    def all(self) -> list[Job]:
        """Every job that is remembered, oldest first."""
        with self._lock:
            return list(self._jobs.values())

    def active(self) -> Job | None:
        """The job that runs now, else the next in line."""
        jobs = [job for job in self.all() if not job.finished.is_set()]
        return next((job for job in jobs if job.state == "running"), jobs[0] if jobs else None)

    def close(self) -> None:
        """Stop after the job that runs now."""
        self._waiting.put(None)
        self._thread.join(timeout=60)

    def _run(self) -> None:
        while (entry := self._waiting.get()) is not None:
            job, work = entry
            job.state, job.started = "running", time.monotonic()
            try:
                job.result = work(job)
                job.state, job.progress, job.step = "done", 1.0, ""
            except GfssError as error:
                job.state, job.error = "failed", " ".join(str(error).split())
            except Exception as error:  # the thread goes on whatever a job does
                traceback.print_exc()
                job.state = "failed"
                job.error = f"unexpected {type(error).__name__} ({error}); this is a bug in gfss, please report it"
            job.ended = time.monotonic()
            job.finished.set()
