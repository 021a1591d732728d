"""The pages of the docs as data: their headings, and the code in them."""

from __future__ import annotations

import re
import shlex
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in sorted(DOCS.rglob("*.md"))}
PAGES["README.md"] = (ROOT / "README.md").read_text(encoding="utf-8")
RUN = ("sh", "python")
SHOWN = ("text", "toml", "yaml")  # trees, installations and settings: not run

# what cannot run in a test without data, network or a second program, by the beginning of the command
NOT_RUN = {
    "pip install": "installs",
    "gfss serve": "runs until it is stopped; test_the_page starts it",
    "curl ": "needs that server; test_the_page runs it",
    "gfss run frozen/pascal-lite0": "needs PASCAL",
    "gfss run scenes": "an hour",
    "gfss run RECIPE": "a placeholder",
    "gfss evaluate frozen/pascal-lite0": "needs PASCAL",
    "gfss tune tuning/": "needs PASCAL",
    "gfss tables records": "of the line before it, which needs PASCAL",
    "ray ": "starts a cluster",
    "gfss segment yard-model archive --ray": "needs the extra ray; tests/experiments/test_cluster.py runs it",
    "gfss run RECIPE --ray": "a placeholder",
    "torchrun ": "needs several machines; tests/training runs it on one",
    "gfss runs": "lists and removes what is in the checkout",
    "gfss data check PATH": "a placeholder",
    "python benchmarks/": "needs data sets of others",
}


NEEDS_PASCAL = 'paired("pascal"'  # in Python


@dataclass(frozen=True)
class Block:
    """A fenced piece of a page."""

    page: str
    language: str
    code: str
    before: str

    @property
    def commands(self) -> list[list[str]]:
        """The commands of a shell block, without comments."""
        joined = self.code.replace("\\\n", " ")
        lines = [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]
        return [shlex.split(line, comments=True) for line in lines]


def blocks(page: str) -> list[Block]:
    """Every fenced block of a page; those in tabs are indented."""
    text = PAGES[page]
    found = re.finditer(r"^( *)```(\w*)\n(.*?)^\1```", text, flags=re.DOTALL | re.MULTILINE)
    return [Block(page, one[2], textwrap.dedent(one[3]), text[: one.start()].rstrip()) for one in found]


def left_out(words: list[str]) -> bool:
    """Whether a command is among those that cannot run here."""
    return any(shlex.join(words).startswith(start) for start in NOT_RUN)


def headings(page: str) -> list[tuple[int, str]]:
    """Level and text of every heading."""
    outside = re.sub(r"^( *)```.*?^\1```", "", PAGES[page], flags=re.DOTALL | re.MULTILINE)
    return [(len(one[1]), one[2]) for one in re.finditer(r"^(#+) (.+)$", outside, flags=re.MULTILINE)]
