"""The scripted server: what it keeps, what it notices, and that nothing of it is left behind."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from contextlib import suppress

import pytest

from kit.testing.raw_client import ask, asking, connect, read_all, said, written
from kit.where import TESTS
from muniment.testing import chat_server as subject
from muniment.testing.chat_server import ChatServer, always, drip, endless, late, raw, words

CERTIFICATE = TESTS / "kit" / "agent" / "certificate.pem"
SAVED = words("Saved.")


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def test_answers_are_given_in_order_to_any_method_and_path_and_then_status_500():
    with ChatServer([words("one"), words("two"), SAVED]) as server:
        assert [said(server)[0]["content"] for _ in range(2)] == ["one", "two"]
        assert ask(server, method="GET", path="/v1/models")[0] == 200
        status, _, body = ask(server, {})
    assert [(request.method, request.path) for request in server.requests][2] == ("GET", "/v1/models")
    assert status == 500
    assert "no further answer" in json.loads(body)["error"]["message"]


def test_requests_can_be_waited_for():
    with ChatServer(always(SAVED)) as server:
        thread = threading.Timer(0.05, ask, (server, {"model": "late"}))
        thread.start()
        assert server.wait_for_requests(1)[0].body == {"model": "late"}
        thread.join()
        with pytest.raises(TimeoutError, match="1 of 2 requests"):
            server.wait_for_requests(2, seconds=0.01)


def test_what_it_does_not_read_is_answered_with_a_reason_or_not_and_a_connection_closed_on_demand():
    head = b"POST / HTTP/1.1\r\n"
    with ChatServer(always(SAVED)) as server:
        for sent, status in (
            (b"GET\r\n\r\n", 400),
            (head + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n", 411),
            (head + b"content-length: -1\r\n\r\n", 411),
            (head + b"content-length: \xb2\r\n\r\n", 411),
            (head + b"content-length: " + b"9" * 5000 + b"\r\n\r\n", 413),
            (written(b" " * (subject.MAX_REQUEST_BYTES + 1)), 413),
            (head + b"x: " + b"a" * 2 * subject.MAX_HEAD_BYTES, 431),
        ):
            with connect(server) as client:
                client.sendall(sent)
                assert read_all(client).startswith(b"HTTP/1.1 %d " % status)
        with connect(server) as client:
            client.sendall(written(b"{}")[:-1])  # It never becomes whole.
            client.shutdown(socket.SHUT_WR)
            assert read_all(client) == b""
        assert server.requests == []
        with connect(server) as client:
            client.sendall(written(b"{}", Connection="close"))
            assert read_all(client).endswith(b"}")


def test_an_answer_that_waits_for_something_else_is_complained_of(monkeypatch):
    monkeypatch.setattr(subject, "LEAVE_SECONDS", 0.05)
    release = threading.Event()
    server = ChatServer(always(lambda _connection: release.wait(10)))
    with pytest.raises(RuntimeError, match="still runs"), server, asking(server):
        server.wait_for_requests(1)
    release.set()
    for thread in server._threads:
        thread.join(5)


def secured(client, *, trusting=True):
    context = ssl.create_default_context(cafile=CERTIFICATE if trusting else None)
    return context.wrap_socket(client, server_hostname="127.0.0.1")


def test_a_client_that_does_not_trust_the_certificate_sends_no_request():
    with ChatServer([SAVED], certificate=CERTIFICATE) as server:
        with connect(server) as client, pytest.raises(ssl.SSLCertVerificationError):
            secured(client, trusting=False)
        with connect(server) as plain, suppress(ConnectionResetError):
            plain.sendall(written())
            assert not read_all(plain).startswith(b"HTTP")
    assert server.requests == []


@pytest.mark.parametrize(
    "never_done",
    [
        raw(float("inf")),
        raw(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{", float("inf")),
        drip(SAVED, every=0.01),
        endless(),
        late(60, SAVED),
    ],
    ids=["stall", "stall in the body", "drip", "flood", "late"],
)
def test_a_client_that_hangs_up_under_tls_is_noticed(never_done):
    with ChatServer(always(never_done), certificate=CERTIFICATE) as server:
        with secured(connect(server)) as client:
            client.sendall(written())
            (request,) = server.wait_for_requests(1)
        assert request.hung_up.wait(5)
