"""Teach a segmentation model a new class from a few labelled images, and keep the classes it knows."""

from __future__ import annotations

from typing import Any

__version__ = "0.2.0"

_FROM_SEGMENTER = ("Segmenter", "load")


def __getattr__(name: str) -> Any:
    """Import the segmenter, and torch with it, only when one of its names is used."""
    if name in _FROM_SEGMENTER:
        from importlib import import_module

        return getattr(import_module("gfss.app.segmenter"), name)
    raise AttributeError(f"module 'gfss' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *_FROM_SEGMENTER])
