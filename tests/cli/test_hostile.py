"""The command line under odd circumstances: option values, terminals, pipes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gfss.cli import main

GFSS = [sys.executable, "-m", "gfss"]


@pytest.mark.parametrize(
    "words",
    [
        ["segment", "scenes-tiny", "x.jpg", "-o", "out", "--balance", "nan"],
        ["segment", "scenes-tiny", "x.jpg", "-o", "out", "--balance", "1e400"],
        ["report", "scenes-tiny", "--guard", "nan"],
        ["report", "scenes-tiny", "--guard", "-1"],
        ["report", "scenes-tiny", "--threads", "-5"],
        ["report", "scenes-tiny", "--threads", "99999999"],
    ],
)
def test_numbers_out_of_range_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    err = capsys.readouterr().err
    assert "invalid value for" in err
    assert len(err.strip().splitlines()) == 1


def test_a_name_that_is_not_known_is_one_plain_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["forget", "scenes-tiny", "zebra", "-o", "x"]) == 2
    err = capsys.readouterr().err
    assert "unknown class 'zebra'; known: none" in err


def test_several_files_behind_one_option(capsys: pytest.CaptureFixture[str]) -> None:
    """What a shell makes of ``--images *.jpg``."""
    assert main(["teach", "scenes-tiny", "--name", "x", "--images", "a.jpg", "b.jpg", "--masks", "m"]) == 2
    assert "an option takes one value: repeat it for every file, or give their folder" in capsys.readouterr().err


def test_a_link_that_leads_to_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert main(["forget", "scenes-tiny", "x", "-o", str(tmp_path / "a")]) == 2
    err = capsys.readouterr().err
    assert "unexpected" not in err
    assert len(err.strip().splitlines()) == 1


def run(words: list[str], **how: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*GFSS, *words], text=True, timeout=120, check=False, **how)  # type: ignore[call-overload]


def test_a_terminal_that_lacks_characters_shows_others(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    folder = tmp_path / "données-見"
    folder.mkdir()
    done = run(["data", "check", str(folder)], env=environment, capture_output=True, encoding="latin-1")
    assert done.returncode == 1
    assert "unexpected" not in done.stderr
    assert "données-?" in done.stdout


def unread() -> int:
    """The end of a pipe whose other end is closed."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def test_a_closed_output_is_no_traceback() -> None:
    script = f"{sys.executable} -m gfss --version >&-"
    done = subprocess.run(script, shell=True, text=True, capture_output=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    done = run(["--version"], stdout=unread(), stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (1, "")


def test_an_error_that_nobody_reads_keeps_its_exit_code() -> None:
    script = f"{sys.executable} -m gfss nonsense 2>&-"
    done = subprocess.run(script, shell=True, text=True, capture_output=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    done = run(["nonsense"], stdout=subprocess.PIPE, stderr=unread())
    assert (done.returncode, done.stdout) == (2, "")


def test_ctrl_c_while_packages_are_imported_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    job = subprocess.Popen(
        GFSS, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert job.stdout is not None
    assert job.stdout.readline() == "importing\n"
    time.sleep(0.1)
    job.send_signal(signal.SIGINT)
    _, err = job.communicate(timeout=30)
    assert job.returncode == 130
    assert err == "gfss: interrupted; the same command starts again\n"
