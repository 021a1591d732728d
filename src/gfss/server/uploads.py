"""What clients send: read with a bound, checked like files."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from fastapi import Request

from gfss.common.errors import GfssError


async def read_body(request: Request) -> bytes:
    """The body of a request; how large it may be is checked by the guard while it comes in."""
    content = await request.body()
    if not content:
        raise GfssError("the request has no body; send the file itself, as curl --data-binary @FILE does")
    return content


def decode(content: bytes, what: str, read: Callable[[Path], np.ndarray]) -> np.ndarray:
    """Pixels of an image file that came over the network, read as any file is.

    Args:
        what: what to call it in an error.
        read: reads a file.
    """
    with tempfile.NamedTemporaryFile(suffix=".upload") as file:
        file.write(content)
        file.flush()
        try:
            return read(Path(file.name))
        except GfssError as error:
            raise GfssError(str(error).replace(file.name, what)) from None
        except MemoryError:
            raise GfssError(f"{what} is too large for the memory of the server; send a smaller one") from None
