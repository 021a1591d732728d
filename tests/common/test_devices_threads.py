from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch

from gfss.common.devices import CopyPool, parallel_map


@pytest.fixture(params=[1, 3])
def workers(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_outcomes_come_in_order(workers: int) -> None:
    def late_if_early(i: int) -> int:
        time.sleep(0.01 * (3 - i % 4))
        return i * i

    assert list(parallel_map(late_if_early, range(10))) == [i * i for i in range(10)]
    assert torch.get_num_threads() == workers


def test_every_worker_computes_with_one_thread(workers: int) -> None:
    met = threading.Barrier(workers, timeout=30)  # passed only by as many jobs at once

    def job(_: int) -> int:
        met.wait()
        return torch.get_num_threads()

    assert list(parallel_map(job, range(6))) == [1] * 6


def test_an_error_ends_it(workers: int) -> None:
    started: list[int] = []

    def job(i: int) -> int:
        started.append(i)
        time.sleep(0.01)
        return 1 // (i - 2)

    with pytest.raises(ZeroDivisionError):
        list(parallel_map(job, range(1000)))
    assert len(started) <= 3 + 2 * workers + 1
    assert torch.get_num_threads() == workers


def test_no_two_workers_share_a_copy(workers: int) -> None:
    copies = CopyPool([0], jobs=20)

    def count(_: int) -> int:
        with copies.one() as own:
            before = own[0]
            time.sleep(0.002)
            own[0] = before + 1
        return own[0]

    assert len(list(parallel_map(count, range(20)))) == 20
    in_all = 0
    for _ in range(workers):
        with copies.one() as own:
            in_all += own[0]
    assert in_all == 20  # none was lost to another worker
