"""Methods from outside the package: a Python file (``--plugin``) or the entry points ``gfss.methods``."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from gfss.common.errors import GfssError
from gfss.methods import TRAINED, UNTRAINED
from gfss.methods.base import Method

GROUP = "gfss.methods"
LOADED: list[Path] = []  # files of plugins, for the workers of a cluster
SOURCES: dict[str, str] = {}  # name of a method from outside -> hash of its source, part of what it is known by


def register(method: type[Method]) -> None:
    """Make a method known under its name, as if it were in the package.

    Args:
        method: its :meth:`Method.build` makes one; with a :meth:`Method.loss` of its own, ``gfss run`` trains it.
    """
    name = getattr(method, "name", None)
    if not isinstance(name, str) or not name or "+" in name or "," in name:
        raise GfssError(
            f"{method.__name__} has the name {name!r}; set its class attribute 'name' to a word such as 'mine'"
        )
    trained = method.loss is not Method.loss
    if trained and method.reads_images is True:
        raise GfssError(
            f"method '{name}' reads images, which gfss run does not train; train it in a script of your own "
            "(gfss.protocols.episodes), load its weights in 'build', and leave 'loss' out"
        )
    source = hashlib.sha256(_source(method).encode()).hexdigest()[:12]
    if name in {**UNTRAINED, **TRAINED} and SOURCES.get(name) != source:
        raise GfssError(f"there is a method '{name}' already; give {method.__name__} another name")
    (TRAINED if trained else UNTRAINED)[name] = method.build
    SOURCES[name] = source


def load_plugin(path: Path) -> list[str]:
    """Register every method that a Python file defines; returns their names."""
    if not path.is_file():
        raise GfssError(f"{path} is not a file; --plugin takes a Python file that defines a method")
    own = [one for one in vars(_run(path)).values() if _is_method(one) and one.__module__ == _module_name(path)]
    if not own:
        raise GfssError(f"{path} defines no method; write a class of gfss.methods.base.Method with learn and scores")
    for method in own:
        register(method)
    LOADED.append(path.absolute())
    return [method.name for method in own]


def load_installed() -> list[str]:
    """Register the methods of installed packages that name them under ``gfss.methods``; returns their names."""
    names: list[str] = []
    for entry in entry_points(group=GROUP):
        try:
            method = entry.load()
        except Exception as error:  # whatever a package does when it is imported
            raise GfssError(
                f"the installed method '{entry.name}' ({entry.value}) cannot be imported: {error}"
            ) from error
        if not _is_method(method):
            raise GfssError(
                f"the entry point '{entry.name}' ({entry.value}) is not a class of gfss.methods.base.Method"
            )
        register(method)
        names.append(method.name)
    return names


def _run(path: Path) -> ModuleType:
    """A Python file as a module."""
    name = _module_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise GfssError(f"{path} is not a Python file; its name should end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where pickling and dataclasses look for it
    try:
        spec.loader.exec_module(module)
    except GfssError:
        raise
    except Exception as error:  # whatever someone else's file does
        raise GfssError(f"the plugin {path} cannot be run: {type(error).__name__}: {error}") from error
    return module


def _module_name(path: Path) -> str:
    return f"gfss_plugin_{path.stem}"


def _is_method(one: object) -> bool:
    return isinstance(one, type) and issubclass(one, Method) and not inspect.isabstract(one)


def _source(method: type[Method]) -> str:
    """Text of the file of a method, of its class where there is none."""
    file = inspect.getsourcefile(method)
    return Path(file).read_text(encoding="utf-8") if file and Path(file).is_file() else method.__qualname__
