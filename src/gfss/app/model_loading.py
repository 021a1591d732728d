"""Where models come from: embedded in the package, saved folders, what ``gfss run`` trained."""

from __future__ import annotations

from pathlib import Path

from gfss.app.model_checks import check_words, one_sentence
from gfss.app.model_folder import is_model, read_model
from gfss.app.network import Network
from gfss.common.errors import GfssError, unknown
from gfss.common.files import read_json
from gfss.training.checkpoints import has_checkpoint, load_base, load_checkpoint

ASSETS = Path(__file__).resolve().parents[1] / "assets"


def embedded_models() -> list[str]:
    """Names of the models inside the package."""
    return sorted(path.name for path in ASSETS.glob("*") if is_model(path))


def find_model(name: str | Path) -> Path:
    """The folder of a model: a path, or a name of an embedded one."""
    if not str(name).strip():
        raise GfssError(f"the name of the model is empty; known: {', '.join(embedded_models())}, or a folder")
    path = Path(name)
    if is_model(path) or has_training(path):
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
