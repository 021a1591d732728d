"""Long work in line."""

from __future__ import annotations

import threading

import pytest

from gfss.common.errors import GfssError
from gfss.server.errors import Busy, NotFound
from gfss.server.jobs import MOST_WAITING, REMEMBERED, Job, Jobs


@pytest.fixture
def jobs() -> Jobs:
    return Jobs()


def test_jobs_run_one_after_another_in_order(jobs: Jobs) -> None:
    order: list[int] = []
    made = [jobs.submit("count", str(i), lambda _, i=i: order.append(i) or {}) for i in range(20)]
    for job in made:
        assert job.finished.wait(10)
    assert order == list(range(20))
    assert all(job.state == "done" for job in made)


def test_progress_result_and_errors(jobs: Jobs) -> None:
    going, told = threading.Event(), threading.Event()

    def work(job: Job) -> dict:
        job.at(0.5, "half")
        told.set()
        going.wait(10)
        return {"answer": 42}

    job = jobs.submit("count", "counting", work)
    assert told.wait(10)
    shown = job.as_json()
    assert (shown["state"], shown["progress"], shown["step"]) == ("running", 0.5, "half")
    assert jobs.active() is job
    going.set()
    assert job.finished.wait(10)
    assert jobs.get(job.id).as_json()["result"] == {"answer": 42}
    assert jobs.active() is None

    def refuse(_: Job) -> dict:
        raise GfssError("this\nis wrong")

    def crash(_: Job) -> dict:
        raise ZeroDivisionError("by zero")

    with pytest.raises(GfssError, match="this is wrong"):
        jobs.run("x", "x", refuse)
    crashed = jobs.submit("x", "x", crash)
    assert crashed.finished.wait(10)
    assert "ZeroDivisionError" in (crashed.error or "")
    assert jobs.run("x", "x", lambda _: {"still": "there"}) == {"still": "there"}


def test_too_many_jobs_are_refused_and_old_ones_forgotten(jobs: Jobs) -> None:
    going = threading.Event()
    first = jobs.submit("x", "x", lambda _: {"went": going.wait(10)})
    while first.state != "running":
        pass
    waiting = [jobs.submit("x", "x", lambda _: {}) for _ in range(MOST_WAITING)]
    with pytest.raises(Busy):
        jobs.submit("x", "x", lambda _: {})
    going.set()
    assert waiting[-1].finished.wait(10)
    for _ in range(REMEMBERED + 5):
        jobs.run("x", "x", lambda _: {})
    assert len(jobs.all()) <= REMEMBERED + 1
    with pytest.raises(NotFound):
        jobs.get(first.id)
