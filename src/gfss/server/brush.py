"""Label Studio's brush masks: run lengths of RGBA bytes, packed into bits.

The stream starts with the number of bytes (32 bits), the bits of a value less one (5) and four bit widths of lengths
less one (4 each). Blocks follow: one bit (1: one value repeated, 0: values one by one), two bits that choose a width,
the length less one in that width, then the value or values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gfss.common.errors import GfssError
from gfss.data.images import MAX_PIXELS

WORD = 8  # bits of a value
WIDTHS = (3, 4, 8, 16)  # of lengths, as Label Studio writes them
CHANNELS = 4


def encode_brush(mask: np.ndarray) -> list[int]:
    """Bytes of a mask (height, width) bool: opaque white where it is true.

    >>> decode_brush(encode_brush(np.eye(3, dtype=bool)), 3, 3).astype(int).tolist()
    [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    """
    flat = np.repeat(mask.ravel(), CHANNELS)
    edges = np.flatnonzero(np.diff(flat)) + 1
    starts = [0, *edges.tolist()]
    lengths = np.diff([*starts, len(flat)]).tolist()
    bits = [f"{len(flat):032b}", f"{WORD - 1:05b}", *(f"{width - 1:04b}" for width in WIDTHS)]
    for start, length in zip(starts, lengths, strict=True):
        value = "1" * WORD if flat[start] else "0" * WORD
        while length > 0:
            part = min(length, 2 ** WIDTHS[-1])
            choice = next(i for i, width in enumerate(WIDTHS) if part <= 2**width)
            bits.append(f"1{choice:02b}{part - 1:0{WIDTHS[choice]}b}{value}")
            length -= part
    text = "".join(bits)
    text += "0" * (-len(text) % 8)
    return list(int(text, 2).to_bytes(len(text) // 8, "big"))


def decode_brush(code: Sequence[int], height: int, width: int) -> np.ndarray:
    """The mask (height, width) bool of Label Studio's bytes: where something was painted."""
    try:
        stream = _Bits(bytes(code))
        count = stream.read(32)
        if not 0 < height * width <= MAX_PIXELS or count != height * width * CHANNELS:
            raise ValueError(f"{count} values for an image of {width} x {height}")
        word = stream.read(5) + 1
        widths = [stream.read(4) + 1 for _ in WIDTHS]
        values = np.zeros(count, dtype=np.uint8)
        at = 0
        while at < count:
            repeated = stream.read(1)
            end = at + 1 + stream.read(widths[stream.read(2)])
            if end > count:
                raise ValueError("a run beyond the end")
            if repeated:
                values[at:end] = min(255, stream.read(word))
            else:
                values[at:end] = [min(255, stream.read(word)) for _ in range(end - at)]
            at = end
    except (ValueError, TypeError, OverflowError) as error:
        raise GfssError(f"the brush mask is damaged ({error}); paint the region again in Label Studio") from None
    return values.reshape(height, width, CHANNELS)[..., 3] > 0


class _Bits:
    """Reads numbers of any width from bytes."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 0

    def read(self, width: int) -> int:
        first, last = self._at // 8, (self._at + width + 7) // 8
        if last > len(self._content):
            raise ValueError("it ends too early")
        value = int.from_bytes(self._content[first:last], "big") >> (last * 8 - self._at - width)
        self._at += width
        return value & ((1 << width) - 1)
