"""Who is let in, and how much is taken."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from gfss.server.api import create_app
from gfss.server.security import Access, Guard, access_for, is_loopback
from gfss.server.studio import Studio


def client_for(studio: Studio, access: Access, base: str = "http://127.0.0.1") -> TestClient:
    return TestClient(create_app(studio, access), base_url=base)


@pytest.fixture
def guarded(studio: Studio) -> TestClient:
    return client_for(studio, access_for("0.0.0.0", "secret token"), "http://gpu-box:8008")


def test_only_loopback_goes_without_a_token() -> None:
    for host in ("127.0.0.1", "localhost", "::1", "127.3.4.5"):
        assert access_for(host, None).token is None
        assert is_loopback(host)
    for host in ("0.0.0.0", "192.168.1.4", "::", "gpu-box", ""):
        token = access_for(host, None).token
        assert token is not None
        assert len(token) >= 32
    assert access_for("0.0.0.0", None).token != access_for("0.0.0.0", None).token


def test_the_token_is_needed_for_everything(guarded: TestClient) -> None:
    for path in ("/", "/api/state", "/static/app.js", "/openapi.json", "/label-studio/health"):
        answer = guarded.get(path)
        assert answer.status_code == 401
        assert "token" in answer.json()["error"]
    assert guarded.get("/api/state", headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert guarded.get("/api/state", headers={"Authorization": "Bearer secret token"}).status_code == 200
    assert guarded.get("/api/state", auth=("any", "secret token")).status_code == 200
    assert guarded.get("/api/state", headers={"Authorization": "Basic %%%"}).status_code == 401
    guarded.cookies.set("gfss-token", "wrong")
    assert guarded.get("/api/state").status_code == 401


def test_a_browser_shows_the_token_once_and_keeps_a_cookie(guarded: TestClient) -> None:
    answer = guarded.get("/", params={"token": "secret token"})
    assert answer.status_code == 200
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie


def test_other_sites_cannot_use_a_browser_to_change_things(studio: Studio) -> None:
    client = client_for(studio, Access())
    foreign = {"Origin": "https://evil.example"}
    assert client.post("/api/classes", json={"name": "x"}, headers=foreign).status_code == 403
    assert client.post("/api/classes", json={"name": "x"}, headers={"Origin": "null"}).status_code == 403
    assert studio.project.classes == []
    own = {"Origin": "http://127.0.0.1"}
    assert client.post("/api/classes", json={"name": "x"}, headers=own).status_code == 201
    # a name that was made to point to this machine
    assert client.get("/api/state", headers={"Host": "evil.example:8008"}).status_code == 403
    assert client.get("/api/state", headers={"Host": "localhost:8008"}).status_code == 200
    assert client.get("/api/state", headers={"Host": "[::1]:8008"}).status_code == 200
    assert "access-control-allow-origin" not in client.get("/api/state", headers=foreign).headers


def test_answers_carry_a_policy(studio: Studio) -> None:
    headers = client_for(studio, Access()).get("/").headers
    assert "default-src 'self'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


def test_large_bodies_are_refused_whatever_they_say(studio: Studio) -> None:
    guard = create_app(studio, Access())
    assert isinstance(guard, Guard)
    client = TestClient(Guard(guard.app, Access(), largest=10_000), base_url="http://127.0.0.1")
    answer = client.post("/api/segment", content=b"x" * 10_001)
    assert answer.status_code == 413
    assert "at most" in answer.json()["error"]

    def pieces() -> Iterator[bytes]:
        for _ in range(11):
            yield b"x" * 1000

    assert client.post("/api/segment", content=pieces()).status_code == 413  # no length was given
    assert client.post("/api/segment", content=b"x" * 9000).status_code == 400
    assert client.post("/api/classes", content=b'{"name": "' + b"x" * 20_000 + b'"}').status_code == 413
