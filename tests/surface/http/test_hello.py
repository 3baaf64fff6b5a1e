"""The daemon proves that it knows a token to whoever asks, and tells nothing else by it."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets

import pytest

from kit.daemon.raw import running
from muniment.daemon import guard

NONCE = "5" * 64


def keyed(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256)


def named(token):
    """The name and the key of a token, as the page says."""
    key = keyed(token.encode(), "muniment-hello/1 key").digest()
    return keyed(key, "muniment-hello/1 name").hexdigest()[:32], key


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with running(tmp_path_factory.mktemp("hello"), allow_hosts=("memory.example",)) as made:
        made.client = made.add("editor", "editor-1")
        yield made


@pytest.fixture(autouse=True)
def well(daemon, monkeypatch):
    monkeypatch.setattr(guard, "MAX_HELLOS", 10_000)
    yield
    daemon.check()


def hello(daemon, name, nonce=NONCE, **more):
    return daemon.ask("GET", f"/hello?token={name}&nonce={nonce}", **{"token": "", **more})


def test_each_token_is_proved_for_a_nonce_and_an_address(daemon):
    proofs = set()
    for token in daemon.token, daemon.client:
        name, key = named(token)
        for host, address in (daemon.host, daemon.host), ("Memory.Example", "memory.example"):
            for nonce in NONCE, "a" * 64:
                said = hello(daemon, name, nonce, host=host)
                assert said.status == 200
                text = f"muniment-hello/1 proof\n{nonce}\n{address}"
                assert said.json == {"proof": keyed(key, text).hexdigest()}
                proofs.add(said.json["proof"])
    assert len(proofs) == 8
    name, key = named(daemon.token)
    said = hello(daemon, name, address=daemon.unix)
    assert said.json == {"proof": keyed(key, f"muniment-hello/1 proof\n{NONCE}\nunix").hexdigest()}


@pytest.mark.threat("T-API-10", control="decoys")
def test_who_has_no_token_cannot_tell_which_there_are(daemon):
    """What is said of a token that is none looks the same, each time."""
    names = [named(daemon.token)[0], named(daemon.client)[0], named(secrets.token_urlsafe())[0], "0" * 32]
    shapes, proofs = set(), set()
    for name in names:
        first, second = hello(daemon, name), hello(daemon, name)
        assert first.body == second.body
        headers = tuple(
            (key, re.sub("[0-9a-f]{32}", "…", value)) for key, value in first.headers if key != "date"
        )
        shapes.add((first.status, headers, len(first.body)))
        proofs.add(first.json["proof"])
    assert len(shapes) == 1
    assert len(proofs) == len(names)


def test_nothing_else_is_told_without_a_token(daemon):
    name, _ = named(daemon.token)
    for target in (
        "/hello",
        f"/hello?token={name}",
        f"/hello?token={name}&nonce=5",
        f"/hello?token={name.upper()}x&nonce={NONCE}",
        f"/hello?token={name}&nonce={'g' * 64}",
    ):
        assert daemon.ask("GET", target, token="").code == (400, "invalid_request")
    for method in "POST", "PUT", "HEAD":
        assert daemon.ask(method, f"/hello?token={name}&nonce={NONCE}", token="").status == 401
    for path in "/hello/", "//hello", "/hello/x", "/workspace/hello":
        assert daemon.ask("GET", path, token="").status in {401, 404}
    assert hello(daemon, name, host="elsewhere.example").code == (421, "misdirected_request")
    assert daemon.ask(
        "GET", f"/hello?token={name}&nonce={NONCE}", "Origin: http://evil.example", token=""
    ).code == (403, "foreign_origin")


def test_proofs_are_bounded_by_the_second(daemon, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(guard, "MAX_HELLOS", 3)
    monkeypatch.setattr(guard.time, "monotonic", lambda: now[0])
    name, _ = named(daemon.token)
    said = [hello(daemon, name).code for _ in range(5)]
    assert said == [200, 200, 200, (503, "busy"), (503, "busy")]
    assert daemon.ask("GET", "/healthz").status == 200
    now[0] += 1
    assert hello(daemon, name).code == 200
