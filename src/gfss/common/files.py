"""Files of this program: the cache folder, atomic writes, JSON, and what they are written with."""

from __future__ import annotations

import contextlib
import errno
import functools
import glob
import hashlib
import json
import os
import platform
import stat
import tempfile
import time
import unicodedata
from collections.abc import Collection, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from platformdirs import user_cache_path

import gfss
from gfss.common.errors import GfssError

ABANDONED = 3600  # seconds after which a part that nobody writes to is one that a killed program left
DISK_FULL = "the disk is full"
UMASK = os.umask(0)  # can only be read by setting it
os.umask(UMASK)


def cache_folder(name: str) -> Path:
    """A folder for things that can be made again, in ``$GFSS_CACHE`` or the system's folder for caches."""
    given = os.environ.get("GFSS_CACHE")
    folder = (Path(given) if given else default_cache()) / name
    make_folder(folder)
    return folder


def default_cache() -> Path:
    """Where the system keeps caches of programs; ``~/.cache/gfss``, an earlier place of ours, if it exists."""
    try:
        early = Path.home() / ".cache" / "gfss"
    except RuntimeError:
        raise GfssError("this account has no home folder; say where gfss may cache files: GFSS_CACHE=FOLDER") from None
    if early.is_dir() and not os.environ.get("XDG_CACHE_HOME"):
        return early
    return user_cache_path("gfss", appauthor=False)


def refuse_special(path: Path) -> None:
    """Raise if a path is there but neither file nor folder: reading a pipe or device may never end."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # whoever opens it says what is wrong
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise GfssError(f"{path} is a pipe or a device, not a file; save its content to a file first")


def is_file(path: Path) -> bool:
    """Whether a path, which may come out of a file and be anything, is that of a file."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long a name, a zero in it
        return False


def make_folder(folder: Path) -> None:
    """Create a folder with its parents; raise in one sentence if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GfssError(f"cannot create the folder {folder}: {error.strerror}") from None


def refuse_unwritable(folder: Path) -> None:
    """Raise if a folder, which is created if needed, is not writable: better before long work."""
    make_folder(folder)
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise GfssError(f"cannot write to {folder}: {error.strerror}") from None


@contextlib.contextmanager
def write_atomically(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file beside ``path``; on success it takes its place, on failure nothing changes."""
    make_folder(path.parent)
    try:
        number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.", suffix=".part")
    except OSError as error:
        raise GfssError(f"cannot write {path}: {error.strerror}") from None
    temporary = Path(name)
    _remove_abandoned(path, temporary)
    try:
        with os.fdopen(number, "wb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        os.chmod(temporary, 0o666 & ~UMASK)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        reason = DISK_FULL if error.errno == errno.ENOSPC else error.strerror or error
        raise GfssError(f"cannot write {path}: {reason}") from None
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _remove_abandoned(path: Path, own: Path) -> None:
    """Delete what killed programs left of earlier attempts to write a file: parts that nobody wrote to for an hour."""
    for part in path.parent.glob(f".{glob.escape(path.name[:40])}.*.part"):
        with contextlib.suppress(OSError):
            if part != own and time.time() - part.stat().st_mtime > ABANDONED:
                part.unlink()


def write_json(path: Path, content: Any) -> None:
    """Write JSON atomically, indented, keys in the order given."""
    with write_atomically(path) as file:
        file.write((json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read JSON; say in one sentence what is wrong with the file."""
    refuse_special(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise GfssError(f"{path} does not exist") from None
    except UnicodeDecodeError as error:
        place = f"byte {error.start + 1} is no UTF-8"
        raise GfssError(f"{path} is not a text file ({place}); expected JSON, export it again") from None
    except OSError as error:
        raise GfssError(f"cannot read {path}: {error.strerror}") from None
    if not text.strip():
        raise GfssError(f"{path} is empty; expected JSON, export it again")
    try:
        content = json.loads(text)
        if "\\ud" in text or "\\uD" in text:  # half a character could neither be printed nor written
            json.dumps(content, ensure_ascii=False).encode()
        return content
    except UnicodeEncodeError:
        raise GfssError(f"{path} has half a character in a text (a lone surrogate); write the file again") from None
    except RecursionError:
        raise GfssError(f"{path} is not valid JSON (nested too deeply); export it again") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise GfssError(f"{path} is not valid JSON (the mistake is at {place}); export it again") from None
    except ValueError:
        raise GfssError(f"{path} holds a number of thousands of digits; export it again") from None


@functools.cache
def program_hash(*folders: str) -> str:
    """Changes with every line of code in some folders of this package, so that nothing of an older version is used."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted((package / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def read_lines(path: Path) -> list[str]:
    """Lines of a text file without blank ones; says in one sentence what is wrong with the file."""
    refuse_special(path)
    try:
        return [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except FileNotFoundError:
        raise GfssError(f"{path} does not exist") from None
    except UnicodeDecodeError as error:
        raise GfssError(f"{path} is not UTF-8 text (byte {error.start + 1}); save it as UTF-8") from None
    except OSError as error:
        raise GfssError(f"{path} cannot be read ({(error.strerror or 'no reason given').lower()})") from None


def composed(name: str) -> str:
    """A name with accents in their short form: some systems write "é" as two characters, others as one."""
    return unicodedata.normalize("NFC", name)


def files_by_name(folder: Path, suffixes: Collection[str]) -> dict[str, Path]:
    """Files of a folder with some suffixes, by name without suffix; empty if there is no such folder."""
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*")):
        if path.suffix.lower() not in suffixes or path.name.startswith("."):
            continue
        name = composed(path.stem)
        if name in found:
            raise GfssError(f"{folder} holds {found[name].name} and {path.name}; rename one of them")
        found[name] = path
    return found


def versions(device: str = "cpu") -> dict[str, str]:
    """Python, torch, gfss and the processor that a run is made with, and the device if it is not the processor."""
    found = {
        "python": platform.python_version(),
        "torch": version("torch"),
        "gfss": gfss.__version__,
        "cpu": _processor(),
    }
    return found if device == "cpu" else {**found, "device": device}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
