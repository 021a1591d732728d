"""Files of this program: the cache folder, atomic writes, JSON."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from platformdirs import user_cache_path

from gfss.common.errors import GfssError

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
    """Where the system keeps caches of programs; ``~/.cache/gfss``, where gfss kept its own at first, if it exists."""
    early = Path.home() / ".cache" / "gfss"
    if early.is_dir() and not os.environ.get("XDG_CACHE_HOME"):
        return early
    return user_cache_path("gfss", appauthor=False)


def make_folder(folder: Path) -> None:
    """Create a folder with its parents; say in one sentence why that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GfssError(f"cannot create the folder {folder}: {error.strerror}") from None


def refuse_unwritable(folder: Path) -> None:
    """Raise if nothing can be written to a folder, which is made if it is not there: better before long work."""
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


def write_json(path: Path, content: Any) -> None:
    """Write JSON atomically, indented, keys in the order given."""
    with write_atomically(path) as file:
        file.write((json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read JSON; say in one sentence what is wrong with the file."""
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise GfssError(f"{path} does not exist") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise GfssError(f"{path} is not valid JSON ({error})") from None
    except OSError as error:
        raise GfssError(f"cannot read {path}: {error.strerror}") from None


@functools.cache
def program_hash(*folders: str) -> str:
    """Changes with every line of code in some folders of this package, so that nothing of an older program is taken."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted((package / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()
