"""Every error as one sentence on stderr and an exit code."""

from __future__ import annotations

import contextlib
import errno
import sys
import traceback

import typer

from gfss.common.errors import GfssError, printable

FAILED = 2
INTERRUPTED = 130

# packages that come with an extra of pyproject.toml, not with the plain installation
EXTRAS = {
    "av": "video",
    "pandas": "pandas",
    "pycocotools": "coco",
    "huggingface_hub": "hf",
    "transformers": "hf",
    "onnx": "export",
    "onnxscript": "export",
    "onnxruntime": "export",
    "openvino": "openvino",
    "ray": "ray",
    "scipy": "sbd",
    "sklearn": "sklearn",
    "fastapi": "serve",
    "starlette": "serve",
    "uvicorn": "serve",
}


def report(error: BaseException, debug: bool) -> int:
    """Print an error, after its traceback if wanted, and return the exit code."""
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    message = sentence(error)
    if message and sys.stderr is not None:
        with contextlib.suppress(OSError):  # nobody listens any more
            print(f"gfss: {printable(message)}", file=sys.stderr)
    return INTERRUPTED if isinstance(error, KeyboardInterrupt | typer.Abort) else FAILED


def sentence(error: BaseException) -> str:
    """What a user should read about an error; nothing if it was only the missing command of ``gfss`` alone."""
    match error:
        case GfssError():
            return " ".join(str(error).split())
        case _ if isinstance(error, KeyboardInterrupt | typer.Abort) or isinstance(error.__cause__, KeyboardInterrupt):
            return "interrupted; run the same command again to continue"
        case typer.TyperException():
            return _usage(error)
        case MemoryError():
            return "not enough memory; use smaller images or a smaller batch"
        case ModuleNotFoundError() if (error.name or "").partition(".")[0] in EXTRAS:
            package = (error.name or "").partition(".")[0]
            return f"this needs the package {package}; run: pip install 'gfss[{EXTRAS[package]}]'"
        case OSError():
            return _system(error)
        case RuntimeError() if "Symlink loop" in str(error):  # from Path.resolve
            return f"{_line(error)[0].lower()}{_line(error)[1:]}: the link points to itself; give another path"
        case _:
            what = f"unexpected {type(error).__name__} ({_line(error)})"
            return f"{what}; this is a bug in gfss; please report it (--debug shows the traceback)"


def _usage(error: typer.TyperException) -> str:
    """A wrong command line, with the place to read about the right one."""
    message = " ".join(error.format_message().split()).rstrip(".")
    context = getattr(error, "ctx", None)
    if not message or context is None:
        return message
    words = f"{message[0].lower()}{message[1:]}"
    if words.startswith("got unexpected extra argument"):
        words += "; an option takes one value: repeat it for every file, or give their folder"
    return (
        f"{words} See {context.command_path} --help"
        if words[-1] == "?"
        else f"{words}; see {context.command_path} --help"
    )


def _system(error: OSError) -> str:
    """What the operating system refused, and for which file."""
    if error.errno == errno.ENOSPC:
        return "the disk is full; make room and run the same command again"
    reason = (error.strerror or _line(error) or type(error).__name__).lower()
    return f"cannot use {error.filename}: {reason}" if error.filename else reason


def _line(error: BaseException) -> str:
    """The first line of an error's own message."""
    return (str(error).strip().splitlines() or [""])[0]
