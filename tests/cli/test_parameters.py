"""The command line stays small: settings are in recipes, options of every command are said once."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from typer.main import get_command, get_group

from gfss.cli import COMMANDS, app

APART = ("serve",)  # a server has options of its own
TYPERS_OWN = ("help", "install_completion", "show_completion")
MOST = 90


def parameters(name: str, command: Any) -> Iterator[str]:
    for parameter in command.params:
        if parameter.name not in TYPERS_OWN:
            yield f"{name} {parameter.name}"
    for word, inner in getattr(command, "commands", {}).items():
        yield from parameters(f"{name} {word}", inner)


def test_there_are_fewer_than_90_parameters() -> None:
    found = list(parameters("gfss", get_command(app)))
    for word, entry in ((word, entry) for word, entry in COMMANDS.items() if word not in APART):
        group = get_group(importlib.import_module(f"gfss.cli.{entry.module}").app)
        group.params = [p for p in group.params if entry.group]
        found += parameters(f"gfss {word}", group if entry.group else group.commands[word])
    assert len(found) == len(set(found)) > 50
    assert len(found) < MOST, f"{len(found)} parameters: {', '.join(found)}"
