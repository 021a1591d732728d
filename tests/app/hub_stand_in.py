"""A stand-in for the HTTP interface of a Hugging Face hub, on loopback: enough to fetch and push a model."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_stand_in"


@dataclass
class Hub:
    """Repositories by name; each has commits (files by path) and branches or tags that point to one."""

    commits: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    refs: dict[str, dict[str, str]] = field(default_factory=dict)
    private: dict[str, bool] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    address: str = ""

    def create(self, name: str, private: bool) -> bool:
        """Make a repository; False if it is there."""
        if name in self.commits:
            return False
        self.commits[name], self.refs[name], self.private[name] = {}, {}, private
        self.commit(name, "main", {".gitattributes": b""})
        return True

    def commit(self, name: str, branch: str, files: dict[str, bytes]) -> str:
        """Add files to a branch; returns the commit."""
        before = self.commits[name].get(self.refs[name].get(branch, ""), {})
        whole = {**before, **files}
        digest = hashlib.sha1(repr(sorted(whole.items())).encode()).hexdigest()
        self.commits[name][digest] = whole
        self.refs[name][branch] = digest
        return digest

    def resolve(self, name: str, revision: str) -> str | None:
        """The commit that a revision means."""
        return self.refs[name].get(revision, revision if revision in self.commits[name] else None)


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    hub: Hub

    def log_message(self, *words: Any) -> None:
        """Say nothing."""

    def answer(self, content: Any, status: int = 200, **headers: str) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for key, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def refuse(self, code: str, status: int = 404) -> None:
        self.answer({"error": code}, status, X_Error_Code=code, X_Error_Message=code)

    def body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            data = b""
            while size := int(self.rfile.readline(), 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return data
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def do_GET(self) -> None:
        """Information, the list of files, a file."""
        self.hub.asked.append(self.path)
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        api = parts[:2] == ["api", "models"]
        name, rest = "/".join(parts[2:4] if api else parts[:2]), parts[4:] if api else parts[2:]
        if name not in self.hub.commits:
            return self.refuse("RepoNotFound")
        commit = self.hub.resolve(name, rest[1] if len(rest) > 1 else "main")
        if commit is None:
            return self.refuse("RevisionNotFound")
        files = self.hub.commits[name][commit]
        if api and rest[:1] == ["tree"]:
            ids = {path: hashlib.sha1(data).hexdigest() for path, data in files.items()}
            return self.answer([{"type": "file", "path": p, "size": len(files[p]), "oid": ids[p]} for p in files])
        if api:
            return self.answer({"id": name, "sha": commit, "siblings": [{"rfilename": path} for path in files]})
        path = "/".join(rest[2:])
        if path not in files:
            return self.refuse("EntryNotFound")
        return self.answer(files[path], X_Repo_Commit=commit, ETag=f'"{hashlib.sha1(files[path]).hexdigest()}"')

    do_HEAD = do_GET

    def do_POST(self) -> None:
        """Make a repository, ask how to upload, commit."""
        self.hub.asked.append(self.path)
        data, path = self.body(), urlsplit(self.path).path
        if path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.refuse("Unauthorized", 401)
        if path == "/api/repos/create":
            given = json.loads(data)
            name = f"{given['organization']}/{given['name']}"
            private = given.get("visibility") == "private" or bool(given.get("private"))
            made = self.hub.create(name, private)
            return self.answer({"url": f"{self.hub.address}/{name}", "name": name}, 200 if made else 409)
        _, _, owner, short, verb, revision = path.strip("/").split("/")
        name = f"{owner}/{short}"
        if self.hub.resolve(name, unquote(revision)) is None:
            return self.refuse("RevisionNotFound")
        if verb == "preupload":
            listed = json.loads(data)["files"]
            modes = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in listed]
            return self.answer({"files": modes})
        lines = [json.loads(line) for line in data.splitlines() if line.strip()]
        files = {x["value"]["path"]: base64.b64decode(x["value"]["content"]) for x in lines if x["key"] == "file"}
        commit = self.hub.commit(name, unquote(revision), files)
        return self.answer({"commitUrl": f"{self.hub.address}/{name}/commit/{commit}", "commitOid": commit})


@contextlib.contextmanager
def running() -> Iterator[Hub]:
    """A hub on a free port of loopback."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
