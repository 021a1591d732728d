"""The one exception that users are meant to read."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LONGEST = 1200  # characters of a sentence


class GfssError(Exception):
    """Something the user can fix: what came, what was expected, what to do, in one sentence.

    The command line prints the message alone and ends with exit code 2. A message may quote what a file holds, however
    long that is; the middle of a long one is left out.
    """

    def __init__(self, message: object = "") -> None:
        text = " ".join(str(message).split())
        super().__init__(text if len(text) <= LONGEST else f"{text[: LONGEST * 2 // 3]} ... {text[-LONGEST // 3 :]}")


def unknown(kind: str, name: object, valid: Iterable[object]) -> GfssError:
    """An error for a name that is not among the valid ones, with the nearest valid one.

    >>> str(unknown("method", "pcm", ["nsf", "pcn"]))
    "unknown method 'pcm'; did you mean 'pcn'? known: nsf, pcn"
    """
    names = [str(item) for item in valid]
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.4)
    hint = f"did you mean '{close[0]}'? " if close else ""
    return GfssError(f"unknown {kind} '{name}'; {hint}known: {', '.join(names) or 'none'}")


def quoted(text: object, longest: int = 80) -> str:
    """A text in quotes for a sentence, its end left out if it is long.

    >>> quoted("cat"), quoted("a" * 500, 10)
    ("'cat'", "'aaaaaaaaaa...'")
    """
    words = str(text)
    return repr(words if len(words) <= longest else f"{words[:longest]}...")


def printable(text: str) -> str:
    """A text for a terminal: control characters, which could move the cursor or rename the window, as question marks.

    >>> printable("a\\x1b[2Jb")
    'a?[2Jb'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)
