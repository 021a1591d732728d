"""Errors that a client can do something about, each with the HTTP status it is answered with."""

from __future__ import annotations

from gfss.common.errors import GfssError


class NotFound(GfssError):
    """What was asked for is not there."""


class Conflict(GfssError):
    """What was asked for does not go with how things stand now."""


class TooLarge(GfssError):
    """More was sent than the server takes."""


class Busy(GfssError):
    """Too much work is waiting."""


STATUS: dict[type[GfssError], int] = {NotFound: 404, Conflict: 409, TooLarge: 413, Busy: 503}


def status_of(error: GfssError) -> int:
    """The HTTP status of an error: 400 unless it has one of its own."""
    return STATUS.get(type(error), 400)
