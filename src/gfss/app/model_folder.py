"""Where models are found, and a model on disk: a folder with ``model-HASH.safetensors``, ``model.json``, ``card.md``.

``model.json`` names the tensor file and holds checksums: of itself, of the tensor file and of each of its parts. A new
model comes into the folder in one step, when its ``model.json`` takes the place of the old one: a crash at any moment
leaves one of the two, whole. What else lies in the folder (a report, segmented images) stays. ``card.md`` is for people
and may be edited. Models embedded in the package are such folders; ``gfss run`` leaves others.
"""

from __future__ import annotations

import hashlib
import html
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from gfss.app.network import Network
from gfss.common.errors import GfssError, quoted, unknown
from gfss.common.files import UMASK, read_json, refuse_unwritable, write_atomically
from gfss.data.catalog import VOID
from gfss.models.base_model import BaseCard
from gfss.training.checkpoints import has_checkpoint, load_base, load_checkpoint

FORMAT = "gfss model 1"
TENSORS, ABOUT, CARD = "model.safetensors", "model.json", "card.md"  # embedded models have the tensors under this name
LOCK = ".lock"
OWN = (TENSORS, "model-*.safetensors", CARD, LOCK, ".model*.part", f".{CARD}*.part")  # what a crash may leave
Parts = dict[str, dict[str, Tensor]]  # part (head, calibrator ...) -> tensor name -> tensor
SEPARATOR = "/"  # between the part and the name of a tensor
ASSETS = Path(__file__).resolve().parents[1] / "assets"
BACKGROUND_NAME = "background"
LARGEST_INPUT = 4096  # pixels of a side of the square input


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
    if not is_model(folder):
        return {}
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


def embedded_models() -> list[str]:
    """Names of the models inside the package."""
    return sorted(path.name for path in ASSETS.glob("*") if is_model(path))


def find_model(name: str | Path) -> Path:
    """The folder of a model: a path, or a name of an embedded one."""
    if not str(name).strip():
        raise GfssError(f"the name of the model is empty; known: {', '.join(embedded_models())}, or a folder")
    path = Path(name)
    if path.is_dir() and (is_model(path) or has_training(path)):
        return path
    if str(name) in embedded_models():
        return ASSETS / str(name)
    if path.exists():
        raise GfssError(
            f"{name} is not a model; expected a folder written by gfss teach or gfss run, "
            f"or the name of an embedded model ({', '.join(embedded_models()) or 'none'})"
        )
    raise unknown("model", name, embedded_models())


def is_embedded(name: str | Path) -> bool:
    """Whether a name means a model inside the package."""
    return find_model(name).parent == ASSETS


def has_training(folder: Path) -> bool:
    """Whether a folder is a base model that ``gfss run`` trained, or a method on one."""
    return has_checkpoint(folder, "base") or has_checkpoint(folder, "method")


def read_training(folder: Path, weights: Path | None = None) -> Network:
    """The network of a trained base model.

    Args:
        folder: of the base model, or of a method that was trained on it.
        weights: file with the encoder's weights, where they do not come with a package.
    """
    return Network(load_base(_base_folder(folder), weights=weights))


def describe_classes(model: str | Path) -> list[str]:
    """A line for every class of a model: mask value, name, and what a taught one was taught from."""
    folder = find_model(model)
    if is_model(folder):
        about = read_model(folder)[1]
        with one_sentence(str(model)):
            check_words(about, str(model))
        base, taught = about["base"]["classes"], about["taught"]
    else:
        base, taught = load_checkpoint(_base_folder(folder), "base")[1]["card"]["classes"], []
    lines = [f"{value:>3}  {name}" for value, name in enumerate(["background", *base])]
    for value, one in enumerate(taught, start=len(lines)):
        images = ", ".join(support["id"] for support in one["supports"])
        lines.append(f"{value:>3}  {one['name']}  (taught from {len(one['supports'])}: {images})")
    return lines


def _base_folder(folder: Path) -> Path:
    """The folder of a base model, seen from itself or from a method that was trained on it."""
    if has_checkpoint(folder, "base"):
        return folder
    identities = read_json(folder / "spec.json").get("parents", [])
    found = [path for one in identities for path in (folder.parents[1] / "base").glob(f"*-{one}")]
    whole = [path for path in found if read_json(path / "spec.json")["spec"]["without"] is None]
    if not whole:
        raise GfssError(f"the base model of {folder} is not in {folder.parents[1] / 'base'}; copy it there too")
    return whole[0]


def model_card(
    base: BaseCard,
    taught: Sequence[Mapping[str, Any]],
    versions: Mapping[str, str],
    changes: Mapping[str, Any] | None,
) -> str:
    """The card as Markdown; names that look like HTML are written so that they are text.

    Args:
        taught: as written to ``model.json``: name and supports of every taught class.
        versions: of the programs that made the model.
        changes: the last report in figures.
    """
    encoder = "trained with the model" if base.trained_encoder else f"pretrained, frozen (hash {base.encoder_hash})"
    lines = [
        "# Model card",
        "",
        f"- Encoder: {base.encoder}, {encoder}",
        f"- Input: {base.size} x {base.size} pixels, aspect ratio kept",
        f"- Base model trained on: {base.data}" + ("" if base.fold is None else f", fold {base.fold}"),
        "- New classes: logistic regression on encoder levels and descriptors, threshold from the support images",
        f"- Made with: {', '.join(f'{name} {version}' for name, version in versions.items())}",
        "",
        f"## Base classes ({len(base.classes)})",
        "",
        ", ".join(map(_cell, base.classes)),
        "",
        f"## Added classes ({len(taught)})",
        "",
    ]
    for one in taught:
        estimate = one["verdict"]["estimate"]
        lines += [f"### {_cell(one['name'])}", ""]
        lines += [f"Estimated IoU {estimate['iou']:.0f} (from {estimate['images']} images), balance {one['balance']:g}"]
        lines += ["", "| lesson | image | sha256 of its pixels |", "|---|---|---|"]
        lines += [f"| {s['lesson']} | {_cell(s['id'])} | {s['sha256'][:16]} |" for s in one["supports"]]
        lines.append("")
    if not taught:
        lines += ["none", ""]
    if changes:
        lines += _changes(changes)
    return "\n".join(lines)


def _changes(changes: Mapping[str, Any]) -> list[str]:
    lines = ["## Before and after the last lesson", ""]
    for section in changes["sections"]:
        lines += [f"On {_cell(section['title'])} ({section['images']} images), IoU in percent:", ""]
        lines += ["| class | before | after |", "|---|---|---|"]
        lines += [f"| {_cell(r['name'])} | {_figure(r['before'])} | {_figure(r['after'])} |" for r in section["rows"]]
        lines.append("")
    return lines


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _cell(text: str) -> str:
    return html.escape(text, quote=False).replace("|", "\\|")


@contextmanager
def one_sentence(source: str) -> Iterator[None]:
    """Whatever goes wrong while a model is built from what its folder says becomes one sentence."""
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError, OverflowError) as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        raise GfssError(
            f"the model {source} does not fit together ({type(error).__name__}: {reason:.120}); copy it again from "
            "where it came, or make it again"
        ) from None


def check_words(about: Mapping[str, Any], source: str) -> None:
    """Raise if class names or the input size of ``model.json`` are not possible ones."""
    names = [*about["base"]["classes"], *(one["name"] for one in about["taught"])]
    for name in names:
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise GfssError(f"the model {source} has a class called {quoted(name)}; class names are printable text")
    if len(set(names)) != len(names) or not 0 < len(names) < VOID:
        raise GfssError(f"the model {source} names {len(names)} classes; expected 1 to {VOID - 1}, each once")
    size = about["base"]["size"]
    if type(size) is not int or not 0 < size <= LARGEST_INPUT:
        raise GfssError(f"the model {source} has an input of {size!r:.40} pixels; expected 1 to {LARGEST_INPUT}")
