"""Seeded damage to good input: bytes, JSON values, lines."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import numpy as np

NUMBERS: list[Any] = [
    0, -1, 1, 255, 256, 65535, 2**31, 2**63, 10**30, -(10**9), 0.5, -0.0, 1e-300, 1e300, float("nan"), float("inf"),
    float("-inf"),
]  # fmt: skip
TEXTS: list[Any] = [
    "", " ", "..", "/", "../../x", "a" * 5000, "\x00", "\x1b[2J", "\n", "é", "名", "<b>", "%s", "{}", "NaN", "1e999",
    "-", "con", "a/b", "\\", "\ud7ff", "C:\\x.jpg",
]  # fmt: skip
OTHERS: list[Any] = [None, True, False, [], {}, [[]], [None], {"": ""}, [0] * 50, {"a": {"a": {"a": []}}}]
BYTES = [b"", b"\x00", b"\xff" * 8, b"\x89PNG", b"[" * 2000, b"9" * 5000, b"\\ud800", b'"', b"}", b",,", b"\n", b"nan"]


def pick(rng: np.random.Generator, options: list[Any]) -> Any:
    """One of some things, of any types."""
    return options[int(rng.integers(len(options)))]


def any_value(rng: np.random.Generator) -> Any:
    """A value that no program expects."""
    return copy.deepcopy(pick(rng, pick(rng, [NUMBERS, TEXTS, OTHERS])))


def places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to every value inside a JSON value."""
    found = [here]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += places(inner, (*here, key))
    return found


def damage_json(content: Any, rng: np.random.Generator) -> bytes:
    """A JSON file with one to three values replaced, left out, doubled or moved, or its text damaged."""
    content = copy.deepcopy(content)
    for _ in range(int(rng.integers(1, 4))):
        path = pick(rng, places(content))
        if not path:
            content = any_value(rng) if rng.random() < 0.05 else content
            continue
        holder = content
        for key in path[:-1]:
            holder = holder[key]
        action = rng.random()
        if action < 0.7:
            holder[path[-1]] = any_value(rng)
        elif action < 0.85:
            del holder[path[-1]]
        elif isinstance(holder, list):
            holder.append(copy.deepcopy(holder[path[-1]]))
        else:
            holder[str(any_value(rng))[:50]] = holder.pop(path[-1])
    text = json.dumps(content).encode()
    return damage_bytes(text, rng) if rng.random() < 0.1 else text


def damage_bytes(data: bytes, rng: np.random.Generator) -> bytes:
    """A file with a piece changed, cut out, doubled or put in, or its end missing."""
    for _ in range(int(rng.integers(1, 4))):
        if not data:
            return data
        start = int(rng.integers(len(data)))
        stop = min(len(data), start + int(rng.integers(1, 20)))
        match int(rng.integers(5)):
            case 0:
                data = data[:start] + rng.bytes(stop - start) + data[stop:]
            case 1:
                data = data[:start] + data[stop:]
            case 2:
                data = data[:stop] + data[start:]
            case 3:
                data = data[:start] + pick(rng, BYTES) + data[start:]
            case _:
                data = data[:start]
    return data


def damage_text(text: str, rng: np.random.Generator) -> bytes:
    """A text file with words replaced, or its bytes damaged."""
    if rng.random() < 0.3:
        return damage_bytes(text.encode(), rng)
    lines = [line.split(" ") for line in text.split("\n")]
    for _ in range(int(rng.integers(1, 4))):
        line = lines[int(rng.integers(len(lines)))]
        line[int(rng.integers(len(line)))] = str(any_value(rng))
    return "\n".join(" ".join(line) for line in lines).encode("utf-8", "surrogatepass")


Damage = Callable[[Any, np.random.Generator], bytes]
