"""A model on disk: a folder with ``model-HASH.safetensors``, ``model.json`` and ``card.md``.

``model.json`` names the tensor file and holds checksums: of itself, of the tensor file and of each of its parts. A new
model comes into the folder in one step, when its ``model.json`` takes the place of the old one: a crash at any moment
leaves one of the two, whole. What else lies in the folder (a report, segmented images) stays. ``card.md`` is for people
and may be edited.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from gfss.common.errors import GfssError
from gfss.common.files import UMASK, read_json, refuse_unwritable, write_atomically

FORMAT = "gfss model 1"
TENSORS, ABOUT, CARD = "model.safetensors", "model.json", "card.md"  # embedded models have the tensors under this name
LOCK = ".lock"
OWN = (TENSORS, "model-*.safetensors", CARD, LOCK, ".model*.part", f".{CARD}*.part")  # what a crash may leave
Parts = dict[str, dict[str, Tensor]]  # part (head, calibrator ...) -> tensor name -> tensor
SEPARATOR = "/"  # between the part and the name of a tensor


def write_model(
    folder: Path,
    parts: Parts,
    about: Mapping[str, Any],
    card: str,
    *,
    expected: str | None = None,
    check: Callable[[], None] = lambda: None,
) -> str:
    """Write a model into a folder in one step, in place of an older one.

    Args:
        check: raises if the model must not take the place of what lies in the folder; asked when no other program can
            write there any more.
        expected: checksum of the model that this one was made of and replaces; refused if another lies there by now.

    Returns:
        The checksum of the model.
    """
    refuse_foreign(folder)
    tensors = save_tensors(
        {
            f"{part}{SEPARATOR}{name}": t.detach().contiguous()
            for part, group in parts.items()
            for name, t in group.items()
        }
    )
    digest = _digest(tensors)
    file = f"model-{digest[:12]}.safetensors"
    sums: dict[str, Any] = {TENSORS: digest, "parts": {part: _part_digest(group) for part, group in parts.items()}}
    content = {"format": FORMAT, **about, "tensors": file, "sha256": sums}
    sums[ABOUT] = _about_digest(content)
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    refuse_unwritable(folder)
    with FileLock(folder / LOCK, mode=0o666 & ~UMASK):  # one program at a time
        refuse_foreign(folder)
        check()
        if expected is not None and checksum(folder) != expected:
            raise GfssError(
                f"the model in {folder} was changed by another program in the meantime; nothing was written: repeat "
                "the command, or give another folder"
            )
        for name, data in ((file, tensors), (ABOUT, text.encode()), (CARD, card.encode())):
            with write_atomically(folder / name) as out:
                out.write(data)
        for pattern in OWN:
            for path in folder.glob(pattern):
                if path.name not in (file, CARD, LOCK):
                    path.unlink(missing_ok=True)
    return sums[ABOUT]


def read_model(folder: Path) -> tuple[Parts, dict[str, Any]]:
    """Read a model folder; refuses a damaged one and names what is damaged."""
    about = _read_about(folder)
    try:
        content = _read(folder / _tensor_file(about))
    except GfssError:  # another program may have replaced the model after its model.json was read
        about = _read_about(folder)
        content = _read(folder / _tensor_file(about))
    path, sums = folder / _tensor_file(about), about["sha256"]
    try:
        parts = _split(load_tensors(content))
    except SafetensorError as error:
        raise _damaged(path, f"it is truncated or not a safetensors file: {error}") from None
    if not isinstance(sums.get("parts"), dict):
        raise _damaged(folder / ABOUT, "it has no checksums of the parts")
    for part, digest in sums["parts"].items():
        if _part_digest(parts.get(part, {})) != digest:
            raise _damaged(path, f"the part '{part}' differs from its checksum")
    if _digest(content) != sums.get(TENSORS):
        raise _damaged(path, "its header differs from its checksum")
    return parts, about


def checksum(folder: Path) -> str | None:
    """Checksum of the model in a folder, None where there is no readable one."""
    try:
        return _read_about(folder)["sha256"][ABOUT]
    except GfssError:
        return None


def _read_about(folder: Path) -> dict[str, Any]:
    about = read_json(folder / ABOUT)
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        came = about.get("format") if isinstance(about, dict) else None
        raise GfssError(f"{folder / ABOUT} was not written by this version of gfss (expected '{FORMAT}', got '{came}')")
    sums = about.get("sha256")
    if not isinstance(sums, dict) or sums.get(ABOUT) != _about_digest(about):
        raise _damaged(folder / ABOUT, "its checksum differs")
    return about


def _tensor_file(about: Mapping[str, Any]) -> str:
    """Name of the tensor file, which lies in the same folder."""
    return Path(str(about.get("tensors", TENSORS))).name


def refuse_foreign(folder: Path) -> None:
    """Raise if a folder holds something else than a model."""
    if not folder.exists() or (is_model(folder) and _is_ours(folder)):
        return
    if not folder.is_dir() or any(not any(path.match(own) for own in OWN) for path in folder.iterdir()):
        raise GfssError(f"{folder} is not empty and not a model folder; give a new or empty folder")


def lessons(folder: Path) -> dict[str, int]:
    """Classes that a saved model was taught, with the number of images; none where there is no readable one."""
    try:
        return {str(one["name"]): len(one.get("supports", ())) for one in read_json(folder / ABOUT)["taught"]}
    except (GfssError, KeyError, TypeError, AttributeError):
        return {}


def is_model(folder: Path) -> bool:
    """Whether a folder holds a saved model."""
    return (folder / ABOUT).is_file()


def _is_ours(folder: Path) -> bool:
    """Whether the ``model.json`` of a folder, be it damaged, is one of gfss: other programs use that name too."""
    try:
        about = read_json(folder / ABOUT)
    except GfssError:
        return any(folder.glob("model*.safetensors")) and (folder / CARD).is_file()
    return isinstance(about, dict) and str(about.get("format")).startswith(FORMAT.rpartition(" ")[0])


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
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise GfssError(f"{path} belongs to the model but cannot be read ({reason}); copy the folder again") from None


def _damaged(path: Path, reason: str) -> GfssError:
    return GfssError(f"{path} is damaged or was modified ({reason}); copy the model again from its source")
