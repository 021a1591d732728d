"""What mkdocs does not do by itself: links to the repository, model cards, lists of commands and experiments."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\((\.\./[^)\s]*)\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Fill in what a page asks for, and lead links that leave ``docs/`` to the repository."""
    folder = posixpath.dirname(page.file.src_uri)

    def replaced(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", folder, found[1]))
        return found[0] if path.startswith("docs/") else f"]({config.extra['repository']}/blob/main/{path})"

    markdown = re.sub(r"<!-- card: ([\w-]+) -->", lambda found: card(found[1]), markdown)
    if "<!-- commands -->" in markdown:
        markdown = markdown.replace("<!-- commands -->", "\n".join(commands()))
    if "<!-- experiments -->" in markdown:
        markdown = markdown.replace("<!-- experiments -->", "\n".join(experiments()))
    return LINK.sub(replaced, markdown)


def card(model: str) -> str:
    """The card of an embedded model, its headings two levels lower."""
    text = (ROOT / "src" / "gfss" / "assets" / model / "card.md").read_text(encoding="utf-8")
    return re.sub(r"^#", "###", text.partition("\n")[2], flags=re.MULTILINE).strip()


def experiments() -> Iterator[str]:
    """A line for every page of an experiment: its number and its title."""
    yield "| | subject |\n|---|---|"
    for path in sorted((ROOT / "docs" / "experiments").glob("0*.md")):
        number, _, title = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ").partition(" ")
        yield f"| [{number}]({path.name}) | {title} |"


def commands() -> Iterator[str]:
    """Every command with its options, as Markdown."""
    from gfss.cli import COMMANDS
    from gfss.cli._lazy import LazyCommand

    panels = dict.fromkeys(entry.panel for entry in COMMANDS.values())
    for panel in panels:
        yield f"## {panel}\n"
        for name, entry in COMMANDS.items():
            if entry.panel == panel:
                with LazyCommand(name, entry).make_context(name, [], resilient_parsing=True) as context:
                    yield from _described(f"gfss {name}", context.command)


def _described(name: str, command: Any) -> Iterator[str]:
    """A command, or those of a group."""
    inner = getattr(command, "commands", {})
    for word, one in inner.items():
        yield from _described(f"{name} {word}", one)
    if inner:
        return
    yield f"### `{name}`\n"
    for paragraph in (command.help or "").strip().split("\n\n"):
        yield f"{' '.join(paragraph.split())}\n"
    rows = [row for parameter in command.params if (row := _row(parameter))]
    if rows:
        yield "| parameter | meaning | default |\n|---|---|---|"
        yield from rows
        yield ""


def _row(parameter: Any) -> str | None:
    if getattr(parameter, "hidden", False) or "--help" in parameter.opts:
        return None
    names = ", ".join(f"`{word}`" for word in (*parameter.opts, *parameter.secondary_opts))
    if parameter.param_type_name == "argument":
        names = f"`{parameter.metavar or parameter.name.upper()}`"
    default = parameter.default
    shown = "" if default in (None, False, (), []) or callable(default) else f"`{default}`"
    if parameter.required:
        shown = "required"
    text = " ".join((getattr(parameter, "help", None) or "").split()).replace("|", "\\|").replace("<", "&lt;")
    return f"| {names} | {text} | {shown} |"
