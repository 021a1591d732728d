"""Teach a segmentation model a new class from a few labelled images, and keep the classes it knows."""

from __future__ import annotations

from typing import Any

__version__ = "0.2.0"

_LAZY = {"Segmenter": "app.segmenter", "load": "app.segmenter", "results": "reporting.frame"}
_MODULES = ("metrics", "protocols")


def __getattr__(name: str) -> Any:
    """Import what a name stands for, and torch with it, only when it is used."""
    from importlib import import_module

    if name in _LAZY:
        return getattr(import_module(f"gfss.{_LAZY[name]}"), name)
    if name in _MODULES:
        return import_module(f"gfss.{name}")
    raise AttributeError(f"module 'gfss' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY, *_MODULES])
