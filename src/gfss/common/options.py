"""Options of a computation: frozen dataclasses that a recipe is checked against, unknown names included."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

from pydantic import ConfigDict

Cls = TypeVar("Cls")


@dataclass_transform(frozen_default=True)
def options(cls: type[Cls]) -> type[Cls]:
    """A frozen dataclass; where pydantic reads one (as part of a recipe), it refuses names that are not fields."""
    cls.__pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[attr-defined]
    return dataclass(frozen=True)(cls)
