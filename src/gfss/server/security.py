"""Who may talk to the server, and how much may be sent: checked before anything else looks at a request."""

from __future__ import annotations

import base64
import binascii
import contextlib
import ipaddress
import json
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

LARGEST_BODY = 64 * 2**20  # bytes of one request
COOKIE = "gfss-token"
READING = ("GET", "HEAD", "OPTIONS")
LOOPBACK = ("localhost", "127.0.0.1", "[::1]", "::1")
HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' blob: data:; style-src 'self'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


@dataclass(frozen=True)
class Access:
    """Who is let in.

    Attributes:
        host: address that the server listens on.
        token: what every request must carry; None on loopback.
        names: further host names that clients may call the server by; any if it has a token.
    """

    host: str = "127.0.0.1"
    token: str | None = None
    names: tuple[str, ...] = field(default=LOOPBACK)


def access_for(host: str, token: str | None) -> Access:
    """Loopback needs no token; any other address gets one, made up here if none was given."""
    if is_loopback(host):
        return Access(host, token)
    return Access(host, token or secrets.token_urlsafe(24))


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """ASGI middleware: refuses foreign pages, missing tokens and bodies that are too large, each with a sentence."""

    def __init__(self, app: App, access: Access, largest: int = LARGEST_BODY) -> None:
        self.app, self.access, self.largest = app, access, largest

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await _answer(send, *refusal)
            return
        body = _Body(receive, self.largest)
        answer = _Answer(send, self._cookie(scope, headers), body)
        with contextlib.suppress(_TooLarge):
            await self.app(scope, body.receive, answer.send)
        if body.exceeded:
            await _answer(send, 413, f"the request is larger than {self.largest // 2**20} MB; send less at once")

    def _refusal(self, scope: MutableMapping[str, Any], headers: dict[str, str]) -> tuple[int, str] | None:
        host = _host_name(headers.get("host", ""))
        if self.access.token is None and host not in self.access.names:
            return 403, f"the server is called {self.access.host}, not '{host[:100]}'; use that address"
        origin = headers.get("origin")
        if scope["method"] not in READING and origin and urlsplit(origin).netloc != headers.get("host", ""):
            return 403, "another page may not change anything here; open the page of this server itself"
        if self.access.token is not None and not self._has_token(scope, headers):
            return (
                401,
                "a token is needed; open the address that gfss serve printed, or send 'Authorization: Bearer TOKEN'",
            )
        try:
            length = int(headers.get("content-length", "0"))
        except ValueError:
            return 400, "the header Content-Length is not a number"
        if length > self.largest:
            return 413, f"the request has {length:,} bytes; at most {self.largest // 2**20} MB are taken"
        return None

    def _has_token(self, scope: MutableMapping[str, Any], headers: dict[str, str]) -> bool:
        given = [_query_token(scope), _cookie_token(headers), *_authorization(headers)]
        wanted = (self.access.token or "").encode()
        return any(secrets.compare_digest(one.encode(), wanted) for one in given if one)

    def _cookie(self, scope: MutableMapping[str, Any], headers: dict[str, str]) -> str | None:
        """Cookie to set: a browser that came with the token in the address need not show it there again."""
        token = _query_token(scope)
        if self.access.token is None or token != self.access.token or _cookie_token(headers) == token:
            return None
        return f"{COOKIE}={token}; HttpOnly; SameSite=Strict; Path=/"


class _TooLarge(Exception):
    pass


class _Body:
    """Counts what a client sends, whatever it said before."""

    def __init__(self, receive: Receive, largest: int) -> None:
        self._receive, self._left, self.exceeded = receive, largest, False

    async def receive(self) -> Message:
        message = await self._receive()
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            self.exceeded = True
            raise _TooLarge
        return message


class _Answer:
    """Adds headers to the answer; drops what was answered to a body that was too large."""

    def __init__(self, send: Send, cookie: str | None, body: _Body) -> None:
        self._send, self._cookie, self._body = send, cookie, body

    async def send(self, message: Message) -> None:
        if self._body.exceeded:
            return
        if message["type"] == "http.response.start":
            extra = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            if self._cookie:
                extra.append((b"set-cookie", self._cookie.encode()))
            message = {**message, "headers": [*message.get("headers", []), *extra]}
        await self._send(message)


def _host_name(value: str) -> str:
    """Host of a Host header without its port."""
    if value.startswith("["):
        return value.partition("]")[0] + "]"
    return value.rpartition(":")[0] if ":" in value else value


def _query_token(scope: MutableMapping[str, Any]) -> str | None:
    return next(iter(parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [])), None)


def _cookie_token(headers: dict[str, str]) -> str | None:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return None
    return found.value if found else None


def _authorization(headers: dict[str, str]) -> list[str]:
    """Tokens of an Authorization header: Bearer TOKEN, Token TOKEN, or the password of Basic."""
    kind, _, value = headers.get("authorization", "").partition(" ")
    if kind.lower() in ("bearer", "token"):
        return [value.strip()]
    if kind.lower() == "basic":
        try:
            return [base64.b64decode(value, validate=True).decode().partition(":")[2]]
        except (binascii.Error, UnicodeDecodeError):
            return []
    return []


async def _answer(send: Send, status: int, sentence: str) -> None:
    body = json.dumps({"error": sentence}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
