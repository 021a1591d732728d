"""Commands that are imported when they are called."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from typer.core import TyperCommand
from typer.main import get_group


@dataclass(frozen=True)
class Entry:
    """Where a command is found and what ``gfss --help`` says about it.

    Args:
        module: name of the file under ``gfss/cli``.
        help: one line for the list of commands.
        panel: heading that the command stands under.
        group: the module's whole ``app`` is mounted, not one command of it.
    """

    module: str
    help: str
    panel: str
    group: bool = False


class LazyCommand(TyperCommand):
    """A name and a help line that step aside for the real command as soon as it is called."""

    def __init__(self, name: str, entry: Entry) -> None:
        super().__init__(name, help=entry.help, rich_help_panel=entry.panel)
        self.entry = entry

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Parse the arguments with the real command, which then also runs them."""
        app = get_group(importlib.import_module(f"gfss.cli.{self.entry.module}").app)
        command = app if self.entry.group else app.commands[self.name or ""]
        return command.make_context(info_name, args, parent, **extra)
