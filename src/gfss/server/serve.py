"""Starting the server: opens the project and the model, listens, says where."""

from __future__ import annotations

import socket
import webbrowser
from collections.abc import Callable
from pathlib import Path

import uvicorn

from gfss.common.errors import GfssError
from gfss.server.api import create_app
from gfss.server.label_studio import Source
from gfss.server.model import Model, choose_folders
from gfss.server.project import Project
from gfss.server.security import Access, access_for
from gfss.server.studio import Studio


def open_studio(
    model: str | None,
    folder: Path,
    labels: Path | None = None,
    out: Path | None = None,
    encoder_weights: Path | None = None,
) -> Studio:
    """The project and the model that a command line names."""
    project = Project(folder, labels)
    project.clear_exports()
    source, target = choose_folders(model, out, project.root)
    return Studio(project, Model(source, target, project.root / "history", encoder_weights))


def run(
    model: str | None,
    folder: Path,
    *,
    labels: Path | None = None,
    out: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 8008,
    token: str | None = None,
    browser: bool = False,
    encoder_weights: Path | None = None,
    label_studio: str | None = None,
    label_studio_token: str | None = None,
    say: Callable[[str], object] = print,
) -> None:
    """Serve until interrupted; arguments as ``gfss serve`` has them.

    Args:
        say: prints a line for the user.
    """
    access = access_for(host, token)
    if label_studio is not None and not label_studio.startswith(("http://", "https://")):
        raise GfssError(f"{label_studio} is not an address of Label Studio; expected http://HOST:PORT")
    source = Source(label_studio, label_studio_token) if label_studio else None
    listener = _listen(host, port)
    studio = open_studio(model, folder, labels, out, encoder_weights)
    address = _address(listener, access)
    say(f"{len(studio.project.images)} images in {studio.project.folder}, labels in {studio.project.root}")
    for name, reason in studio.project.left_out.items():
        say(f"left out: {name}: {reason}")
    say(f"open {address}   (stop with Ctrl-C)")
    if browser:
        webbrowser.open(address)
    config = uvicorn.Config(create_app(studio, access, source), log_level="warning", timeout_graceful_shutdown=5)
    try:
        uvicorn.Server(config).run([listener])
    finally:
        studio.close()


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens, before anything slow is done."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(512)
    except OSError as error:
        raise GfssError(f"cannot listen on {host}:{port} ({error.strerror}); choose another with --port") from None
    return listener


def _address(listener: socket.socket, access: Access) -> str:
    name = access.host if ":" not in access.host else f"[{access.host.strip('[]')}]"
    query = f"/?token={access.token}" if access.token else "/"
    return f"http://{name}:{listener.getsockname()[1]}{query}"
