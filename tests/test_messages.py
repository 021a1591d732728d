"""Every sentence that the program can say, collected in one file so that they can be read together.

pytest tests/test_messages.py     writes build/messages.txt
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "gfss"
SPEAKING = {"GfssError", "unknown", "note", "Option", "Argument", "Entry", "echo", "print", "_damaged", "add_typer"}
# words of our own for which the field has one
UNWANTED = {
    r"\bexamin(e|es|ed|ation|ations|ing)\b": "evaluate",
    r"\bpictures?\b": "image",
    r"\bgraphics cards?\b": "GPU",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\banew\b": "again",
    r"(?<!there )\bis no (?!longer)": "invalid",
    r"\btrained parts?\b": "checkpoint",
    r"\bdefect\b": "bug",
    r"\bplayed\b": "cached",
    r"\bchanged hands\b": "changed class",
}


def text_of(node: ast.AST) -> str:
    """A string as it stands in the source; what is filled in stands in braces."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(map(text_of, values))
        case ast.FormattedValue(value=value):
            return f"{{{ast.unparse(value)}}}"
        case ast.BinOp(left=left, right=right):
            return text_of(left) + text_of(right)
        case ast.IfExp(body=body, orelse=other):
            return f"[{text_of(body)} | {text_of(other)}]"
        case _:
            return f"{{{ast.unparse(node)}}}"


def speaks(node: ast.AST) -> bool:
    """Whether a call says something to people."""
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name in SPEAKING


def has_text(node: ast.AST) -> bool:
    return any(isinstance(child, ast.Constant) and isinstance(child.value, str) for child in ast.walk(node))


def messages_of(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every message of a file, in their order; docstrings of commands are their help."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and speaks(node):
            parts = [*node.args, *(keyword.value for keyword in node.keywords)]
            for part in parts:
                if has_text(part) and not isinstance(part, ast.Call | ast.Name):
                    yield part.lineno, " ".join(text_of(part).split())
        if path.parent.name == "cli" and isinstance(node, ast.FunctionDef) and node.decorator_list:
            docstring = ast.get_docstring(node)
            if docstring:
                yield node.lineno, " ".join(docstring.split())


def all_messages() -> list[str]:
    """``file:line  message`` for the whole program."""
    lines: list[str] = []
    for path in sorted(SOURCE.rglob("*.py")):
        for line, text in sorted(set(messages_of(path))):
            if re.search(r"[A-Za-z]{2,} ", text):  # names of options are no sentences
                lines.append(f"{path.relative_to(SOURCE)}:{line}  {text}")
    return lines


def test_messages_are_collected_and_use_the_words_of_the_field() -> None:
    lines = all_messages()
    assert len(lines) > 300
    out = ROOT / "build" / "messages.txt"
    out.parent.mkdir(exist_ok=True)
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = [
        f"{line}  (say: {better})"
        for line in lines
        for word, better in UNWANTED.items()
        if re.search(word, re.sub(r"\{[^}]*\}", "", line.partition("  ")[2]), flags=re.IGNORECASE)
    ]
    assert not found, "\n".join(found)
