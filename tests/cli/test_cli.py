"""The frame of the command: help, version, errors, start-up."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType

import pytest
import typer

import gfss
from gfss.cli import COMMANDS, _mount, main
from gfss.cli._failures import sentence
from gfss.cli._lazy import Entry, LazyCommand
from gfss.common.errors import GfssError

MOUNTED = sorted(_mount().commands)
GROUPS = [name for name in MOUNTED if COMMANDS[name].group]


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Puts a function in as ``gfss probe`` and, as the only command of a group, as ``gfss probes probe``."""

    def mount(function: Callable[[], None]) -> None:
        module = module_from_spec(ModuleSpec("gfss.cli.probe", loader=None))
        vars(module)["app"] = typer.Typer(no_args_is_help=True)
        module.app.command("probe")(function)
        monkeypatch.setitem(sys.modules, "gfss.cli.probe", module)

    monkeypatch.setitem(COMMANDS, "probe", Entry("probe", "Try it.", "Tests"))
    monkeypatch.setitem(COMMANDS, "probes", Entry("probe", "Try it in a group.", "Tests", group=True))
    return mount


def raising(error: BaseException) -> Callable[[], None]:
    def command() -> None:
        raise error

    return command


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"gfss {gfss.__version__}\n"


def test_help_lists_every_command_from_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f" {name} " in shown for name in MOUNTED)
    assert "Teach a segmentation model a new class" in shown


@pytest.mark.parametrize("name", MOUNTED)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    assert f"Usage: gfss {name}" in capsys.readouterr().out


@pytest.mark.parametrize("name", GROUPS)
def test_every_command_of_a_group_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with LazyCommand(name, COMMANDS[name]).make_context(name, [], resilient_parsing=True) as context:
        words = list(context.command.commands)
    assert words
    for word in words:
        assert main([name, word, "--help"]) == 0
        assert f"Usage: gfss {name} {word}" in capsys.readouterr().out


def test_a_command_runs_alone_and_in_a_group(probe: Callable[..., None]) -> None:
    calls: list[int] = []
    probe(lambda: calls.append(1))
    assert main(["probe"]) == 0
    assert main(["probes", "probe"]) == 0
    assert len(calls) == 2


def test_exit_code_of_a_command_is_kept(probe: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    probe(raising(typer.Exit(1)))
    assert main(["probe"]) == 1
    assert capsys.readouterr().err == ""


def test_user_error_is_one_sentence(probe: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    probe(raising(GfssError("fold 4 is out of range;\n take 0 to 3")))
    assert main(["probe"]) == 2
    captured = capsys.readouterr()
    assert captured.err == "gfss: fold 4 is out of range; take 0 to 3\n"
    assert captured.out == ""


@pytest.mark.parametrize("words", [["--debug", "probe"], ["probe", "--debug"]])
def test_debug_shows_the_traceback(
    words: list[str], probe: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    probe(raising(GfssError("no")))
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("Traceback")
    assert error.endswith("\ngfss: no\n")


def test_interrupt(probe: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    probe(raising(KeyboardInterrupt()))
    assert main(["probe"]) == 130
    assert capsys.readouterr().err.startswith("gfss: interrupted")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["evaluat"], "no such command 'evaluat'"),
        (["--colour"], "no such option: --colour"),
        (["probe", "extra"], "got unexpected extra argument"),
    ],
)
def test_wrong_command_line_is_one_sentence(
    words: list[str], expected: str, probe: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    probe(raising(AssertionError("must not run")))
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"gfss: {expected}")
    assert "--help" in error
    assert error.count("\n") == 1


def test_a_mistyped_command_is_answered_with_the_right_one(
    probe: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    probe(raising(AssertionError("must not run")))
    main(["prob"])
    assert "Did you mean 'probe'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "a.png"), "cannot use a.png: permission denied"),
        (OSError(errno.ENOSPC, "No space left on device", "a.png"), "the disk is full"),
        (OSError("broken header"), "broken header"),
        (MemoryError(), "not enough memory"),
        (ModuleNotFoundError("No module named", name="pycocotools.mask"), "pip install 'gfss[coco]'"),
        (ZeroDivisionError("division by zero\nsecond line"), "unexpected ZeroDivisionError (division by zero)"),
    ],
)
def test_other_errors_are_sentences_too(
    error: Exception, expected: str, probe: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    probe(raising(error))
    assert main(["probe"]) == 2
    shown = capsys.readouterr().err
    assert expected in shown
    assert shown.count("\n") == 1


def test_a_missing_part_of_gfss_is_not_blamed_on_an_extra() -> None:
    assert "pip install" not in sentence(ModuleNotFoundError("No module named 'gfss.lost'", name="gfss.lost"))


def imports_torch(words: list[str]) -> bool:
    """Whether a command that succeeds has imported torch on the way."""
    code = f"import sys; from gfss.cli import main; sys.exit(main({words!r}) or 3 * ('torch' in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode in (0, 3), done.stderr
    return done.returncode == 3


@pytest.mark.parametrize("words", [["--help"], ["--version"], *([name, "--help"] for name in MOUNTED)])
def test_help_starts_without_torch(words: list[str]) -> None:
    assert not imports_torch(words)


def test_data_commands_do_without_torch(scenes_root: Path) -> None:
    assert not imports_torch(["data", "check", str(scenes_root)])


def test_segmenter_is_imported_when_used(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("gfss.app.segmenter")
    vars(module)["load"] = "loaded"
    monkeypatch.setitem(sys.modules, "gfss.app.segmenter", module)
    assert gfss.load == "loaded"
    assert {"load", "Segmenter"} <= set(dir(gfss))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = gfss.nothing
