"""Options of a computation: frozen dataclasses that a recipe is checked against, unknown names included."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, dataclass_transform

from pydantic import ConfigDict

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Cls = TypeVar("Cls")


@dataclass_transform(frozen_default=True)
def options(cls: type[Cls]) -> type[Cls]:
    """A frozen dataclass; where pydantic reads one (as part of a recipe), it refuses names that are not fields."""
    cls.__pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[attr-defined]
    return dataclass(frozen=True)(cls)


def mistake(error: ErrorDetails, place: str) -> str:
    """What came and what was expected, for a value that a model of pydantic does not take.

    >>> mistake({"type": "int_type", "loc": (), "msg": "", "input": [1]}, "size")
    "'size' is [1]; expected a whole number"
    """
    limits = error.get("ctx", {})
    kind = error["type"]
    if kind in EXPECTED:
        expected = EXPECTED[kind]
    elif kind == "greater_than":
        expected = f"more than {limits['gt']}"
    elif kind == "greater_than_equal":
        expected = f"at least {limits['ge']}"
    elif kind == "less_than_equal":
        expected = f"at most {limits['le']}"
    elif kind == "literal_error":
        expected = limits["expected"]
    else:
        return f"'{place}' is {reprlib.repr(error['input'])[:60]}, but {error['msg'][0].lower()}{error['msg'][1:]}"
    return f"'{place}' is {reprlib.repr(error['input'])[:60]}; expected {expected}"


EXPECTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "a text",
    "dict_type": "a table of keys and values",
    "model_type": "a table of options",
    "dataclass_type": "a table of options or the name of a preset",
    "list_type": "a list",
    "tuple_type": "a list",
    "too_short": "at least one entry",
}
