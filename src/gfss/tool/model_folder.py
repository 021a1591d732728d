"""A model on disk: a folder with ``model.safetensors``, ``model.json`` and ``card.md``.

The folder is written aside and then takes the place of the old one, so a crash leaves the old model as it was; what
else lies in it (a report, segmented images) stays. ``model.json`` holds checksums of everything, itself included, and
of each part of the tensor file.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from gfss.errors import GfssError
from gfss.files import make_folder, read_json, write_atomically

FORMAT = "gfss model 1"
TENSORS, ABOUT, CARD = "model.safetensors", "model.json", "card.md"
Parts = dict[str, dict[str, Tensor]]  # part (head, calibrator ...) -> tensor name -> tensor
SEPARATOR = "/"  # between the part and the name of a tensor


def write_model(folder: Path, parts: Parts, about: Mapping[str, Any], card: str) -> None:
    """Write a model folder in one step, in place of an older one."""
    refuse_foreign(folder)
    tensors = save_tensors(
        {
            f"{part}{SEPARATOR}{name}": t.detach().contiguous()
            for part, group in parts.items()
            for name, t in group.items()
        }
    )
    content = {
        "format": FORMAT,
        **about,
        "sha256": {
            TENSORS: _digest(tensors),
            CARD: _digest(card.encode()),
            "parts": {part: _part_digest(group) for part, group in parts.items()},
        },
    }
    content["sha256"][ABOUT] = _about_digest(content)
    with _replacing(folder) as work:
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        for name, data in ((TENSORS, tensors), (CARD, card.encode()), (ABOUT, text.encode())):
            with write_atomically(work / name) as file:
                file.write(data)


def read_model(folder: Path) -> tuple[Parts, dict[str, Any]]:
    """Read a model folder; refuses a damaged one and names what is damaged."""
    _recover(folder)
    about = read_json(folder / ABOUT)
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        came = about.get("format") if isinstance(about, dict) else None
        raise GfssError(f"{folder / ABOUT} is not of this version of gfss ('{FORMAT}' expected, '{came}' came)")
    sums = about.get("sha256")
    if not isinstance(sums, dict) or sums.get(ABOUT) != _about_digest(about):
        raise _damaged(folder / ABOUT, "its checksum differs")
    card = _read(folder / CARD)
    if _digest(card) != sums[CARD]:
        raise _damaged(folder / CARD, "its checksum differs")
    content = _read(folder / TENSORS)
    try:
        parts = _split(load_tensors(content))
    except SafetensorError as error:
        raise _damaged(folder / TENSORS, f"it is cut off or no safetensors file: {error}") from None
    for part, digest in sums["parts"].items():
        if _part_digest(parts.get(part, {})) != digest:
            raise _damaged(folder / TENSORS, f"the part '{part}' differs from its checksum")
    if _digest(content) != sums[TENSORS]:
        raise _damaged(folder / TENSORS, "its header differs from its checksum")
    return parts, about


def refuse_foreign(folder: Path) -> None:
    """Raise if a model written here would take the place of something else than a model."""
    empty = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    if not empty and not (is_model(folder) and _is_ours(folder)):
        raise GfssError(f"{folder} holds something else than a model; name a new or empty folder")


def taught_names(folder: Path) -> list[str]:
    """Names of the classes that a saved model was taught; none where there is no readable one."""
    _recover(folder)
    try:
        return [str(one["name"]) for one in read_json(folder / ABOUT)["taught"]]
    except (GfssError, KeyError, TypeError):
        return []


def _is_ours(folder: Path) -> bool:
    """Whether the ``model.json`` of a folder, be it damaged, is one of gfss: other programs use that name too."""
    try:
        about = read_json(folder / ABOUT)
    except GfssError:
        return (folder / TENSORS).is_file() and (folder / CARD).is_file()
    return isinstance(about, dict) and str(about.get("format")).startswith(FORMAT.rpartition(" ")[0])


def is_model(folder: Path) -> bool:
    """Whether a folder holds a saved model, also one whose replacement was interrupted."""
    return (folder / ABOUT).is_file() or (_aside(folder) / ABOUT).is_file()


@contextmanager
def _replacing(folder: Path) -> Iterator[Path]:
    """A folder to fill, which takes the place of ``folder`` when all went well."""
    _recover(folder)
    real = folder.resolve()  # where a link leads to
    make_folder(real.parent)
    try:
        work = Path(tempfile.mkdtemp(dir=real.parent, prefix=f".{real.name}.part-"))
    except OSError as error:
        raise GfssError(f"cannot write {folder}: {error.strerror}") from None
    try:
        yield work
        os.chmod(work, 0o755)
        if real.exists():
            os.rename(real, _aside(folder))
        os.rename(work, real)
        _recover(folder)
    except OSError as error:
        _recover(folder)
        raise GfssError(f"cannot write {folder}: {error.strerror}") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _recover(folder: Path) -> None:
    """Put the old model back where a crash came between the two renames, or drop it where the new one is there.

    What else lay beside the old model moves over to the new one.
    """
    aside, real = _aside(folder), folder.resolve()
    if not aside.exists():
        return
    if not real.exists():
        os.rename(aside, real)
        return
    for path in aside.iterdir():
        if path.name not in (TENSORS, ABOUT, CARD) and not (real / path.name).exists():
            os.rename(path, real / path.name)
    shutil.rmtree(aside, ignore_errors=True)


def _aside(folder: Path) -> Path:
    """Where the old model lies while the new one takes its place."""
    real = folder.resolve()
    return real.with_name(f".{real.name}.old")


def _split(tensors: Mapping[str, Tensor]) -> Parts:
    parts: Parts = {}
    for key, tensor in tensors.items():
        part, _, name = key.rpartition(SEPARATOR)
        parts.setdefault(part, {})[name] = tensor
    return parts


def _part_digest(group: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(group.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(tensor.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _about_digest(about: Mapping[str, Any]) -> str:
    """Checksum of ``model.json`` without this very checksum."""
    sums = {key: value for key, value in about["sha256"].items() if key != ABOUT}
    return _digest(json.dumps({**about, "sha256": sums}, sort_keys=True, ensure_ascii=False).encode())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise GfssError(
            f"{path} belongs to the model but cannot be read ({error.strerror}); copy the folder again"
        ) from None


def _damaged(path: Path, reason: str) -> GfssError:
    return GfssError(f"{path} is damaged or was altered ({reason}); copy the model again from where it came")
