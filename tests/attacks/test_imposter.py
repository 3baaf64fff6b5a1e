"""A process that takes the port of an ended daemon receives no token (over real sockets)."""

import json
import os
import ssl
import threading
from contextlib import ExitStack
from functools import partial

import pytest

from kit.client.driving import opened, talking
from kit.client.scripted import TOKEN, Scripted, answer, problem, proof, raw
from kit.server.raw import Line, running
from kit.where import TESTS
from muniment.client import AsyncClient, Client, exchange, transport
from muniment.client.errors import Unreachable, WaitTimeout

CERTIFICATE = TESTS / "kit" / "agent" / "certificate.pem"


shell = pytest.fixture(params=[Client, AsyncClient])(lambda request: request.param)
SECRET = "Nobody else may read this."


def start_imposter(response, port=0):
    """Start a server that sends `response` to every request, also for a proof."""
    return Scripted(*[response] * 9, greet=lambda *_, **__: response, port=port)


def forward(daemon, host, sent, **_how):
    """Forward a request to a daemon, with another host name if one is given."""
    with Line(("127.0.0.1", daemon.port)) as line:
        headers = sent.headers | {"host": host or sent.headers["host"]}
        head = [f"{sent.method} {sent.path} HTTP/1.1", *map(": ".join, headers.items()), "", ""]
        line.send("\r\n".join(head).encode() + sent.body)
        found = line.answer()
    return raw(found.status, found.body, content_type="application/json")


def check_no_fact_is_sent(shell, url, token, match=None):
    """Check that a client sends no fact to `url`."""
    with (
        opened(shell, url=url, token=token) as client,
        pytest.raises(Unreachable, match=f"did not prove.*{match}" if match else "did not prove"),
    ):
        client.remember(SECRET)


@pytest.mark.threat("T-API-07", control="server_proofs")
def test_imposter_on_the_port_receives_no_token_or_fact(shell, tmp_path):
    state = tmp_path / "home" / "state"
    state.mkdir(parents=True)
    begun = b"HTTP/1.1 200 OK\r\n"
    for response in (
        *(answer(200, each) for each in ({"proof": "0" * 64}, {"proof": None}, ["proof"], {"taskId": "x-1"})),
        *(answer(202, {}), answer(401, {"code": "token_required", "error": "Send the token"})),
        *(raw(307, b"", location="http://127.0.0.1:1/"), b"SSH-2.0-OpenSSH_9.6\r\n\r\n"),
        *(begun + b"x-long: " + b"x" * 9000, begun + b"content-length: 9000\r\n\r\n" + b"x" * 9000),
    ):
        with start_imposter(response) as server:
            announced = json.dumps({"url": server.url, "socket": None})
            for name, text in {"daemon.json": announced, "token": TOKEN}.items():
                (state / name).write_text(text)
                (state / name).chmod(0o600)
            with opened(shell, home=state.parent) as client:
                with pytest.raises(Unreachable, match="did not prove") as caught:
                    client.remember(SECRET)
                assert TOKEN not in str(caught.value)
                with pytest.raises(Unreachable, match="did not prove"):
                    next(client.events())
                with pytest.raises(WaitTimeout):
                    client.handle("remember-1").wait(timeout=0)
        assert server.greeted[0].path.startswith("/hello?token=")
        assert [each for each in (TOKEN, SECRET) if each in server.heard] == []


def test_new_server_on_the_port_is_detected(shell):
    with ExitStack() as serving:
        server = serving.enter_context(Scripted(answer(200, {"v": 1}), answer(200, {"v": 2})))
        with opened(shell, url=server.url, token=TOKEN) as client:
            client.capabilities()
            client.capabilities()
            serving.close()
            with start_imposter(answer(200, {"v": 3}), int(server.url.rpartition(":")[2])) as other:
                with pytest.raises(Unreachable, match="did not prove"):
                    client.capabilities()
                assert (bool(other.greeted), TOKEN in other.heard) == (True, False)
    assert [len(server.sent), len(server.greeted)] == [2, 1]


@pytest.mark.threat("T-API-08", control="fresh_nonces")
def test_recorded_proof_is_rejected(shell, tmp_path):
    def relay(*_, **__):
        recorded.append(forward(daemon, None, [*listening.greeted, *listening.sent][-1]))
        return recorded[-1]

    recorded = []
    with Scripted(relay, greet=relay) as listening:
        host, _, port = listening.url.removeprefix("http://").partition(":")
        with (
            running(tmp_path, allow_hosts=(f"{host}:{port}",)) as daemon,
            opened(shell, url=listening.url, token=daemon.token) as client,
        ):
            assert client.capabilities()["version"]
    assert (len(recorded), daemon.token in listening.heard) == (2, True)
    for replayed in recorded[:1], recorded:
        with start_imposter(b"".join(replayed), int(port)) as server:
            check_no_fact_is_sent(shell, server.url, daemon.token)
            assert daemon.token not in server.heard


@pytest.mark.threat("T-API-08", control="addressed_proofs")
def test_proof_for_another_address_is_rejected(shell, tmp_path):
    """Another process may listen at another address of localhost and forward the requests."""
    with running(tmp_path) as daemon:
        for host in None, daemon.host, f"localhost:{daemon.port}":
            with Scripted(greet=partial(forward, daemon, host)) as server:
                check_no_fact_is_sent(shell, server.url, daemon.token)
                assert [each for each in (daemon.token, SECRET) if each in server.heard] == []
        for name in ("localhost", "LOCALHOST"):
            with opened(shell, url=f"http://{name}:{daemon.port}", token=daemon.token) as client:
                assert client.capabilities()["version"]
        for host in f"localhost:{daemon.port}", f"[::1]:{daemon.port}":
            path = f"/hello?token={'0' * 32}&nonce={'0' * 64}"
            hello = daemon.ask("GET", path, token="", host=host)
            assert hello.code == (421, "misdirected_request")
        token = daemon.add("editor", "editor-1")  # A client's own token is proved like the owner's.
        for address in {"url": daemon.daemon.url}, {"socket": daemon.unix}:
            with opened(shell, token=token, **address) as client:
                assert client.capabilities()["version"]
        daemon.daemon.core.tokens.revoke("editor")
        check_no_fact_is_sent(shell, daemon.daemon.url, token, match="revoked")


def test_socket_of_another_user_receives_nothing(shell, tmp_path, monkeypatch):
    monkeypatch.setattr(transport.os, "geteuid", lambda: os.getuid() + 1)
    other = pytest.raises(Unreachable, match=r"did not prove.*another user")
    with talking(shell, answer(200, {}), path=tmp_path / "d.sock") as (server, client), other:
        client.remember(SECRET)
    assert server.sent == []


def test_proof_request_is_retried(shell):
    def send_proof(sent, **how):
        turn = next(turns)
        response = proof(sent, **how) if turn in {b"last word", b"proof"} else turn
        return (
            response.replace(b"\r\n", b"\r\nconnection: close\r\n", 1) if turn == b"last word" else response
        )

    turns = iter([None, problem(503, "busy", retry_after=1), answer(429, {}), b"last word", b"proof"])
    with talking(shell, answer(200, {"v": 1}), greet=send_proof, token=TOKEN) as (server, client):
        assert client.capabilities() == {"v": 1}
        assert client.pauses == [0.05, 0.1, 0.2, 0.4]
    assert len({sent.path for sent in server.greeted}) == 5


def test_silent_server_receives_no_request(shell, monkeypatch):
    monkeypatch.setattr(exchange, "GRACE_SECONDS", 0.1)
    monkeypatch.setattr(exchange, "TRY_SECONDS", 0.1)
    monkeypatch.setattr(transport, "CONNECT_SECONDS", 0.05)
    silent = threading.Event()
    terms = {"greet": lambda *_, **__: silent.wait(10) and None, "token": TOKEN, "timeout": 0.05}
    with talking(shell, **terms) as (server, client):
        with pytest.raises(Unreachable) as caught:
            client.remember(SECRET)
        silent.set()
    assert not caught.value.may_have_arrived
    assert server.sent == []


def test_proof_is_requested_after_encryption(shell, monkeypatch):
    trusting = ssl.create_default_context(cafile=CERTIFICATE)
    monkeypatch.setattr(transport, "_tls", lambda _: trusting)
    with talking(shell, answer(200, {"v": 1}), certificate=CERTIFICATE, token=TOKEN) as (server, client):
        assert client.capabilities() == {"v": 1}
        assert len(server.greeted) == 1
    with Scripted(certificate=CERTIFICATE, greet=lambda *_, **__: answer(200, {})) as server:
        check_no_fact_is_sent(shell, server.url, TOKEN)
        assert server.sent == []
