"""Whoever takes the daemon's port, once it has ended, is sent no token: over real sockets."""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
import threading
from contextlib import ExitStack, suppress

import pytest

from kit.client.driving import opened, talking
from kit.client.scripted import TOKEN, Scripted, answer, problem, proof, raw
from kit.daemon.raw import Line, running
from kit.where import TESTS
from muniment.client import AsyncClient, Client, core, transport
from muniment.client.errors import Unproven, Unreachable, WaitTimeout

CERTIFICATE = TESTS / "kit" / "agent" / "certificate.pem"


shell = pytest.fixture(params=[Client, AsyncClient])(lambda request: request.param)
SECRET = "Nobody else may read this."


class Port:
    """Takes a port, and does with each connection what `act` does; `heard` is all that it was sent."""

    def __init__(self, act, port=0):
        self.heard = b""
        self._act = act
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_exc):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def hear(self, connection):
        """The next request of a connection, up to its first empty line; b"": there is none."""
        sent = b""
        while b"\r\n\r\n" not in sent and (piece := connection.recv(65_536)):
            sent += piece
        self.heard += sent
        return sent

    def _serve(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                connection.settimeout(10)
                self._act(self, connection)


def saying(*pieces):
    """Says this, and hears on for as long as the client speaks."""

    def act(port, connection):
        while port.hear(connection):
            for piece in pieces:
                connection.sendall(piece)

    return act


def passing_on(to, *, host=None, said=None):
    """Passes everything on to a daemon, whose name it may put into the request; notes what that said."""

    def act(port, connection):
        while sent := port.hear(connection):
            with Line(("127.0.0.1", to().port)) as line:
                line.send(re.sub(rb"host: \S+", b"host: " + host.encode(), sent) if host else sent)
                found = line.answer()
            found = raw(found.status, found.body, content_type="application/json")
            connection.sendall(found)
            if said is not None:
                said.append(found)

    return act


def refused(shell, url, token, match=None):
    """That a client there sends no fact."""
    with opened(shell, url=url, token=token) as client, pytest.raises(Unproven, match=match):
        client.remember(SECRET)


@pytest.mark.threat("T-API-07", control="greetings")
def test_whoever_takes_the_port_is_sent_neither_token_nor_fact(shell, tmp_path):
    state = tmp_path / "home" / "state"
    state.mkdir(parents=True)
    begun = b"HTTP/1.1 200 OK\r\n"
    for said in (
        *(answer(200, each) for each in ({"proof": "0" * 64}, {"proof": None}, ["proof"], {"taskId": "x-1"})),
        *(answer(202, {}), answer(401, {"code": "token_required", "error": "Send the token"})),
        *(raw(307, b"", location="http://127.0.0.1:1/"), b"SSH-2.0-OpenSSH_9.6\r\n\r\n"),
        *(begun + b"x-long: " + b"x" * 9000, begun + b"content-length: 9000\r\n\r\n" + b"x" * 9000),
    ):
        with Port(saying(said)) as imposter:
            announced = json.dumps({"url": imposter.url, "socket": None})
            for name, text in {"daemon.json": announced, "token": TOKEN}.items():
                (state / name).write_text(text)
                (state / name).chmod(0o600)
            with opened(shell, home=state.parent) as client:
                with pytest.raises(Unproven) as caught:
                    client.remember(SECRET)
                assert TOKEN not in str(caught.value)
                with pytest.raises(Unproven):
                    next(client.events())
                with pytest.raises(WaitTimeout):
                    client.handle("remember-1").wait(timeout=0)
        assert b"GET /hello?token=" in imposter.heard
        assert [each for each in (TOKEN, SECRET) if each.encode() in imposter.heard] == []


def test_a_port_that_changes_hands_between_two_calls_is_noticed(shell):
    with ExitStack() as serving:
        server = serving.enter_context(Scripted(answer(200, {"v": 1}), answer(200, {"v": 2})))
        with opened(shell, url=server.url, token=TOKEN) as client:
            client.capabilities()
            client.capabilities()
            serving.close()
            with Port(saying(answer(200, {"v": 3})), int(server.url.rpartition(":")[2])) as imposter:
                with pytest.raises(Unproven):
                    client.capabilities()
                assert TOKEN.encode() not in imposter.heard
    assert [len(server.sent), len(server.greeted)] == [2, 1]


@pytest.mark.threat("T-API-08", control="fresh_nonces")
def test_a_recorded_proof_is_worth_nothing_the_next_time(shell, tmp_path):
    said = []
    with Port(passing_on(lambda: daemon, said=said)) as listening:
        with (
            running(tmp_path, allow_hosts=(f"127.0.0.1:{listening.port}",)) as daemon,
            opened(shell, url=listening.url, token=daemon.token) as client,
        ):
            assert client.capabilities()["version"]
        assert daemon.token.encode() in listening.heard
    assert len(said) == 2
    for replayed in said[:1], said:
        with Port(saying(*replayed), listening.port) as imposter:
            refused(shell, imposter.url, daemon.token)
            assert daemon.token.encode() not in imposter.heard


@pytest.mark.threat("T-API-08", control="addressed_proofs")
def test_a_proof_that_a_daemon_gave_at_another_port_is_worth_nothing(shell, tmp_path):
    """At the other addresses of localhost somebody else may listen, who passes on what he is asked."""
    with running(tmp_path) as daemon:
        for host in None, daemon.host, f"localhost:{daemon.port}":
            with Port(passing_on(lambda: daemon, host=host)) as imposter:
                refused(shell, imposter.url, daemon.token)
                assert daemon.token.encode() not in imposter.heard
                assert b"Nobody else" not in imposter.heard
        for name in ("localhost", "LOCALHOST"):
            with opened(shell, url=f"http://{name}:{daemon.port}", token=daemon.token) as client:
                assert client.capabilities()["version"]
        for host in f"localhost:{daemon.port}", f"[::1]:{daemon.port}":
            path = f"/hello?token={'0' * 32}&nonce={'0' * 64}"
            asked = daemon.ask("GET", path, token="", host=host)
            assert asked.code == (421, "misdirected_request")
        token = daemon.add("editor", "editor-1")  # A client's own is proved like the owner's.
        for place in {"url": daemon.daemon.url}, {"socket": daemon.unix}:
            with opened(shell, token=token, **place) as client:
                assert client.capabilities()["version"]
        daemon.daemon.core.tokens.revoke("editor")
        refused(shell, daemon.daemon.url, token, match="revoked")


def test_a_socket_of_another_user_is_sent_nothing(shell, tmp_path, monkeypatch):
    monkeypatch.setattr(transport.os, "geteuid", lambda: os.getuid() + 1)
    other = pytest.raises(Unproven, match="another user")
    with talking(shell, answer(200, {}), path=tmp_path / "d.sock") as (server, client), other:
        client.remember(SECRET)
    assert server.sent == []


def test_who_ends_the_connection_or_is_busy_is_asked_again(shell):
    def greet(sent, **how):
        turn = next(turns)
        said = proof(sent, **how) if turn in {b"last word", b"proof"} else turn
        return said.replace(b"\r\n", b"\r\nconnection: close\r\n", 1) if turn == b"last word" else said

    turns = iter([None, problem(503, "busy", retry_after=1), answer(429, {}), b"last word", b"proof"])
    with talking(shell, answer(200, {"v": 1}), greet=greet, token=TOKEN) as (server, client):
        assert client.capabilities() == {"v": 1}
        assert client.pauses == [0.05, 0.1, 0.2, 0.4]
    assert len({sent.path for sent in server.greeted}) == 5


def test_who_says_nothing_was_sent_nothing_that_could_have_arrived(shell, monkeypatch):
    monkeypatch.setattr(core, "GRACE_SECONDS", 0.1)
    monkeypatch.setattr(core, "TRY_SECONDS", 0.1)
    monkeypatch.setattr(transport, "CONNECT_SECONDS", 0.05)
    silent = threading.Event()
    terms = {"greet": lambda *_, **__: silent.wait(10) and None, "token": TOKEN, "timeout": 0.05}
    with talking(shell, **terms) as (server, client):
        with pytest.raises(Unreachable) as caught:
            client.remember(SECRET)
        silent.set()
    assert not caught.value.may_have_arrived
    assert server.sent == []


def test_it_is_asked_once_the_connection_is_encrypted(shell, monkeypatch):
    trusting = ssl.create_default_context(cafile=CERTIFICATE)
    monkeypatch.setattr(transport, "_tls", lambda _: trusting)
    with talking(shell, answer(200, {"v": 1}), certificate=CERTIFICATE, token=TOKEN) as (server, client):
        assert client.capabilities() == {"v": 1}
        assert len(server.greeted) == 1
    with Scripted(certificate=CERTIFICATE, greet=lambda *_, **__: answer(200, {})) as server:
        refused(shell, server.url, TOKEN)
        assert server.sent == []
