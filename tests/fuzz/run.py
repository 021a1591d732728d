"""Fuzz by hand: ``python -m tests.fuzz.run --cases 200000``; the same seeds give the same inputs.

Every damaged input must be read, or refused with a :class:`gfss.common.errors.GfssError`, within 5 s and 500 MB more
memory. Anything else is written to ``--out`` with its target and number, and ends the program with exit code 1. Ctrl-C
ends it earlier, with the number of inputs done.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import resource
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from contextlib import redirect_stderr, suppress
from pathlib import Path

import numpy as np
from tests.fuzz.targets import TARGETS, Target

from gfss.common.errors import GfssError

SECONDS, MEGABYTES = 5.0, 500.0


def damaged(target: Target, number: int) -> bytes:
    """Input ``number`` of a target."""
    seed = [number, *target.name.encode()]
    return target.damage(target.good, np.random.default_rng(seed))


def attempt(target: Target, root: Path, number: int) -> str | None:
    """What went wrong with one input, None if nothing did."""
    content = damaged(target, number)
    _forget_peak()
    start, before = time.process_time(), _peak()  # other programs do not count
    try:
        with redirect_stderr(io.StringIO()):
            target.run(root, content)
    except GfssError as error:
        if len(str(error).splitlines()) != 1 or len(str(error)) > 1500:
            return f"not one sentence: {str(error)[:200]!r}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    took, grown = time.process_time() - start, _peak() - before
    if took > SECONDS:
        return f"took {took:.1f} s"
    return f"took {grown:.0f} MB" if grown > MEGABYTES else None


def fuzz(name: str, first: int, cases: int, out: Path | None = None) -> list[str]:
    """What went wrong with inputs ``first`` to ``first + cases`` of a target."""
    warnings.simplefilter("ignore")
    target = TARGETS[name]()
    problems: list[str] = []
    root = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        target.prepare(root)
        for number in range(first, first + cases):
            problem = attempt(target, root, number)
            if problem is not None:
                problems.append(f"{name} {number}: {problem}")
                if out is not None:
                    out.mkdir(parents=True, exist_ok=True)
                    (out / f"{name}-{number}.bin").write_bytes(damaged(target, number))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return problems


def _forget_peak() -> None:
    """Count memory from here on, where the system can (Linux); else a large input hides the ones after it."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak() -> float:
    """Most memory in use since it was forgotten, in MB."""
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1000
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def main() -> int:
    """Run all targets, or those named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(TARGETS)}; all if left out")
    parser.add_argument("--cases", type=int, default=14_000, help="inputs altogether")
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("fuzz-findings"))
    chosen = parser.parse_args()
    names = chosen.targets or list(TARGETS)
    each, chunk = -(-chosen.cases // len(names)), 500
    jobs = [
        (name, chosen.first + start, min(chunk, each - start), chosen.out)
        for start in range(0, each, chunk)
        for name in names
    ]
    done: Counter[str] = Counter()
    found = 0
    start = time.time()
    with multiprocessing.get_context("spawn").Pool(chosen.processes) as pool, suppress(KeyboardInterrupt):
        for (name, _, count, _), problems in zip(jobs, pool.imap(_job, jobs), strict=True):
            done[name] += count
            found += len(problems)
            for problem in problems:
                print(problem, flush=True)
            if len(done) == len(names) and name == names[-1]:
                print(f"{sum(done.values()):,} inputs after {time.time() - start:.0f} s", file=sys.stderr, flush=True)
    print(f"{sum(done.values()):,} inputs ({', '.join(f'{n} {c:,}' for n, c in done.items())}), {found} problem(s)")
    return 1 if found else 0


def _job(words: tuple[str, int, int, Path]) -> list[str]:
    return fuzz(*words)


if __name__ == "__main__":
    sys.exit(main())
