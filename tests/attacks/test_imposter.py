"""A process that takes the port of an ended daemon receives no token (over real sockets)."""

import json
import os
import ssl
import threading
from contextlib import ExitStack
from functools import partial

import pytest

from kit.client.scripted import TOKEN, ScriptedServer, make_answer, make_problem, make_proof, make_raw
from kit.client.shells import open_client, open_scripted
from kit.locations import TESTS
from kit.server.raw import Connection, start_local_daemon
from muniment.client import AsyncClient, Client, exchange, transport
from muniment.client.errors import Unreachable, WaitTimeout

CERTIFICATE = TESTS / "kit" / "agent" / "certificate.pem"


shell = pytest.fixture(params=[Client, AsyncClient])(lambda request: request.param)
SECRET = "Nobody else may read this."


def start_imposter(response, port=0):
    """Start a server that sends `response` to every request, also for a proof."""
    return ScriptedServer(*[response] * 9, prove=lambda *_, **__: response, port=port)


def forward(daemon, host, sent, **_how):
    """Forward a request to a daemon, with another host name if one is given."""
    with Connection(("127.0.0.1", daemon.port)) as line:
        headers = sent.headers | {"host": host or sent.headers["host"]}
        head = [f"{sent.method} {sent.path} HTTP/1.1", *map(": ".join, headers.items()), "", ""]
        line.send("\r\n".join(head).encode() + sent.body)
        found = line.read_answer()
    return make_raw(found.status, found.body, content_type="application/json")


def check_no_fact_is_sent(shell, url, token, match=None):
    """Check that a client sends no fact to `url`."""
    with (
        open_client(shell, url=url, token=token) as client,
        pytest.raises(Unreachable, match=f"did not prove.*{match}" if match else "did not prove"),
    ):
        client.remember(SECRET)


@pytest.mark.threat("T-API-07", control="server_proofs")
def test_imposter_on_the_port_receives_no_token_or_fact(shell, tmp_path):
    state = tmp_path / "home" / "state"
    state.mkdir(parents=True)
    begun = b"HTTP/1.1 200 OK\r\n"
    for response in (
        *(
            make_answer(200, each)
            for each in ({"proof": "0" * 64}, {"proof": None}, ["proof"], {"taskId": "x-1"})
        ),
        *(make_answer(202, {}), make_answer(401, {"code": "token_required", "error": "Send the token"})),
        *(make_raw(307, b"", location="http://127.0.0.1:1/"), b"SSH-2.0-OpenSSH_9.6\r\n\r\n"),
        *(begun + b"x-long: " + b"x" * 9000, begun + b"content-length: 9000\r\n\r\n" + b"x" * 9000),
    ):
        with start_imposter(response) as server:
            announced = json.dumps({"url": server.url, "socket": None})
            for name, text in {"daemon.json": announced, "token": TOKEN}.items():
                (state / name).write_text(text)
                (state / name).chmod(0o600)
            with open_client(shell, home=state.parent) as client:
                with pytest.raises(Unreachable, match="did not prove") as caught:
                    client.remember(SECRET)
                assert TOKEN not in str(caught.value)
                with pytest.raises(Unreachable, match="did not prove"):
                    next(client.events())
                with pytest.raises(WaitTimeout):
                    client.handle("remember-1").wait(timeout=0)
        assert server.proof_requests[0].path.startswith("/hello?token=")
        assert [each for each in (TOKEN, SECRET) if each in server.received_text] == []


def test_new_server_on_the_port_is_detected(shell):
    with ExitStack() as serving:
        server = serving.enter_context(ScriptedServer(make_answer(200, {"v": 1}), make_answer(200, {"v": 2})))
        with open_client(shell, url=server.url, token=TOKEN) as client:
            client.capabilities()
            client.capabilities()
            serving.close()
            with start_imposter(make_answer(200, {"v": 3}), int(server.url.rpartition(":")[2])) as other:
                with pytest.raises(Unreachable, match="did not prove"):
                    client.capabilities()
                assert (bool(other.proof_requests), TOKEN in other.received_text) == (True, False)
    assert [len(server.requests), len(server.proof_requests)] == [2, 1]


@pytest.mark.threat("T-API-08", control="fresh_nonces")
def test_recorded_proof_is_rejected(shell, tmp_path):
    def relay(*_, **__):
        recorded.append(forward(daemon, None, [*listening.proof_requests, *listening.requests][-1]))
        return recorded[-1]

    recorded = []
    with ScriptedServer(relay, prove=relay) as listening:
        host, _, port = listening.url.removeprefix("http://").partition(":")
        with (
            start_local_daemon(tmp_path, allow_hosts=(f"{host}:{port}",)) as daemon,
            open_client(shell, url=listening.url, token=daemon.token) as client,
        ):
            assert client.capabilities()["version"]
    assert (len(recorded), daemon.token in listening.received_text) == (2, True)
    for replayed in recorded[:1], recorded:
        with start_imposter(b"".join(replayed), int(port)) as server:
            check_no_fact_is_sent(shell, server.url, daemon.token)
            assert daemon.token not in server.received_text


@pytest.mark.threat("T-API-08", control="addressed_proofs")
def test_proof_for_another_address_is_rejected(shell, tmp_path):
    """Another process may listen at another address of localhost and forward the requests."""
    with start_local_daemon(tmp_path) as daemon:
        for host in None, daemon.host, f"localhost:{daemon.port}":
            with ScriptedServer(prove=partial(forward, daemon, host)) as server:
                check_no_fact_is_sent(shell, server.url, daemon.token)
                assert [each for each in (daemon.token, SECRET) if each in server.received_text] == []
        for name in ("localhost", "LOCALHOST"):
            with open_client(shell, url=f"http://{name}:{daemon.port}", token=daemon.token) as client:
                assert client.capabilities()["version"]
        for host in f"localhost:{daemon.port}", f"[::1]:{daemon.port}":
            path = f"/hello?token={'0' * 32}&nonce={'0' * 64}"
            hello = daemon.send_request("GET", path, token="", host=host)
            assert hello.code == (421, "misdirected_request")
        token = daemon.add_client("editor", "editor-1")  # A client's own token is proved like the owner's.
        for address in {"url": daemon.daemon.url}, {"socket": daemon.unix}:
            with open_client(shell, token=token, **address) as client:
                assert client.capabilities()["version"]
        daemon.daemon.core.tokens.revoke("editor")
        check_no_fact_is_sent(shell, daemon.daemon.url, token, match="revoked")


def test_socket_of_another_user_receives_nothing(shell, tmp_path, monkeypatch):
    monkeypatch.setattr(transport.os, "geteuid", lambda: os.getuid() + 1)
    other = pytest.raises(Unreachable, match=r"did not prove.*another user")
    with open_scripted(shell, make_answer(200, {}), path=tmp_path / "d.sock") as (server, client), other:
        client.remember(SECRET)
    assert server.requests == []


def test_proof_request_is_retried(shell):
    def send_proof(sent, **how):
        turn = next(turns)
        response = make_proof(sent, **how) if turn in {b"last word", b"proof"} else turn
        return (
            response.replace(b"\r\n", b"\r\nconnection: close\r\n", 1) if turn == b"last word" else response
        )

    turns = iter(
        [None, make_problem(503, "busy", retry_after=1), make_answer(429, {}), b"last word", b"proof"]
    )
    with open_scripted(shell, make_answer(200, {"v": 1}), prove=send_proof, token=TOKEN) as (server, client):
        assert client.capabilities() == {"v": 1}
        assert client.pauses == [0.05, 0.1, 0.2, 0.4]
    assert len({sent.path for sent in server.proof_requests}) == 5


def test_silent_server_receives_no_request(shell, monkeypatch):
    monkeypatch.setattr(exchange, "GRACE_SECONDS", 0.1)
    monkeypatch.setattr(exchange, "ATTEMPT_SECONDS", 0.1)
    monkeypatch.setattr(transport, "CONNECT_SECONDS", 0.05)
    silent = threading.Event()
    terms = {"prove": lambda *_, **__: silent.wait(10) and None, "token": TOKEN, "timeout": 0.05}
    with open_scripted(shell, **terms) as (server, client):
        with pytest.raises(Unreachable) as caught:
            client.remember(SECRET)
        silent.set()
    assert not caught.value.may_have_arrived
    assert server.requests == []


def test_proof_is_requested_after_encryption(shell, monkeypatch):
    trusting = ssl.create_default_context(cafile=CERTIFICATE)
    monkeypatch.setattr(transport, "_choose_tls", lambda _: trusting)
    with open_scripted(shell, make_answer(200, {"v": 1}), certificate=CERTIFICATE, token=TOKEN) as (
        server,
        client,
    ):
        assert client.capabilities() == {"v": 1}
        assert len(server.proof_requests) == 1
    with ScriptedServer(certificate=CERTIFICATE, prove=lambda *_, **__: make_answer(200, {})) as server:
        check_no_fact_is_sent(shell, server.url, TOKEN)
        assert server.requests == []
