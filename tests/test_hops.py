"""How many files a reader crosses from a command to its result, counted on the running program."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from tests.conftest import REPOSITORY


def test_commands_enter_few_files_between_their_function_and_the_written_result() -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    command = [sys.executable, "tools/hops.py"]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    counts = re.findall(r"^(\w+): (\d+) files \(at most (\d+)\)", done.stdout, flags=re.MULTILINE)
    assert [verb for verb, *_ in counts] == ["evaluate", "teach", "segment"], done.stderr
    assert all(int(number) <= int(most) for _, number, most in counts), done.stdout
    assert done.returncode == 0
