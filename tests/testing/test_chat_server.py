"""The scripted server: what it keeps, what it notices, and that nothing of it is left behind."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from contextlib import suppress
from itertools import repeat
from pathlib import Path

import pytest

from muniment.testing import chat_server as subject
from muniment.testing.chat_server import ChatServer, always, drip, endless, late, raw, words
from testing.raw_client import ask, asking, connect, read_all, read_answer, said, written

CERTIFICATE = Path(__file__).parents[1] / "agent" / "certificate.pem"
FOREVER = float("inf")
NEVER_DONE = {
    "a stall": raw(FOREVER),
    "a stall in the body": raw(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{", FOREVER),
    "a drip": drip(words("Saved."), every=0.01),
    "a flood": endless(),
    "a late answer": late(60, words("Saved.")),
}


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


@pytest.fixture
def thread_errors(monkeypatch):
    """What threads ended with."""
    errors = []
    monkeypatch.setattr(threading, "excepthook", lambda args: errors.append(args.exc_value))
    return errors


# -- requests and answers ------------------------------------------------------------------------------


def test_a_request_is_kept_whole():
    with ChatServer([words("Saved.")]) as server:
        ask(server, {"model": "scripted", "messages": []}, Authorization="Bearer key")
    (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/v1/chat/completions")
    assert request.headers["authorization"] == "Bearer key"
    assert request.raw == b'{"model": "scripted", "messages": []}'
    assert request.body == {"model": "scripted", "messages": []}


@pytest.mark.parametrize("raw_body", [b"", b"{", b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_json_is_kept_as_it_came(raw_body):
    with ChatServer([words("Saved.")]) as server, asking(server, raw_body) as client:
        read_answer(client)
    assert (server.requests[0].raw, server.requests[0].body) == (raw_body, None)


def test_answers_are_given_in_order_and_then_status_500():
    with ChatServer([words("one"), words("two")]) as server:
        assert [said(server)[0]["content"] for _ in range(2)] == ["one", "two"]
        status, _, body = ask(server, {})
    assert status == 500
    assert "no further answer" in json.loads(body)["error"]["message"]


def test_a_function_answers_what_it_is_asked():
    with ChatServer(lambda request: words(request.body["model"])) as server:
        assert said(server, {"model": "this"})[0]["content"] == "this"
        assert said(server, {"model": "that"})[0]["content"] == "that"


def test_a_script_may_be_without_end():
    with ChatServer(repeat(words("again"))) as server:
        assert {said(server)[0]["content"] for _ in range(3)} == {"again"}


def test_any_method_and_path_is_answered():
    with ChatServer([words("Saved.")]) as server:
        assert ask(server, method="GET", path="/v1/models")[0] == 200
    assert [(request.method, request.path) for request in server.requests] == [("GET", "/v1/models")]


def test_one_connection_serves_many_requests_also_when_they_are_sent_together():
    with ChatServer(lambda request: words(request.body["n"])) as server, connect(server) as client:
        client.sendall(written(b'{"n": "one"}') + written(b'{"n": "two"}'))
        data = b""
        while data.count(b"HTTP/1.1 200 OK") < 2 or b"two" not in data:
            data += client.recv(65536)
        client.sendall(written(b'{"n": "three"}'))
        assert b"three" in read_answer(client)[2]
    assert [request.body["n"] for request in server.requests] == ["one", "two", "three"]


def test_a_client_that_asks_for_it_gets_a_closed_connection():
    with ChatServer([words("Saved.")]) as server, connect(server) as client:
        client.sendall(written(b"{}", Connection="close"))
        assert read_all(client).endswith(b"}")


def test_a_stalled_client_holds_up_no_other():
    answers = iter([raw(FOREVER), words("Saved.")])
    with ChatServer(lambda _: next(answers)) as server, asking(server):
        server.wait_for_requests(1)
        assert said(server)[0]["content"] == "Saved."


def test_requests_can_be_waited_for():
    with ChatServer(always(words("Saved."))) as server:
        thread = threading.Timer(0.05, ask, (server, {"model": "late"}))
        thread.start()
        assert server.wait_for_requests(1)[0].body == {"model": "late"}
        thread.join()
        with pytest.raises(TimeoutError, match="1 of 2 requests"):
            server.wait_for_requests(2, seconds=0.01)


def test_only_this_machine_can_reach_it():
    with ChatServer([]) as server:
        assert server.base_url.startswith("http://127.0.0.1:")
        assert server._listener.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 411),
        (b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n", 411),
        (b"POST / HTTP/1.1\r\ncontent-length: \xb2\r\n\r\n", 411),
        (b"POST / HTTP/1.1\r\ncontent-length: " + b"9" * 5000 + b"\r\n\r\n", 413),
        (written(b" " * (subject.MAX_REQUEST_BYTES + 1)), 413),
        (b"POST / HTTP/1.1\r\nx: " + b"a" * 2 * subject.MAX_HEAD_BYTES, 431),
    ],
)
def test_what_it_does_not_read_is_answered_with_a_reason(sent, status):
    with ChatServer(always(words("Saved."))) as server, connect(server) as client:
        client.sendall(sent)
        assert read_all(client).startswith(b"HTTP/1.1 %d " % status)
    assert server.requests == []


def test_a_request_of_the_largest_size_is_read():
    body = b" " * (subject.MAX_REQUEST_BYTES - 2) + b"{}"
    with ChatServer([words("Saved.")]) as server, asking(server, body) as client:
        assert read_answer(client)[0] == 200
    assert server.requests[0].raw == body


def test_what_a_function_raises_ends_the_connection_and_is_reported(thread_errors):
    def answer(_request):
        raise LookupError("a fault of the test")

    with ChatServer(answer) as server, asking(server) as client:
        assert read_all(client) == b""
    assert [str(error) for error in thread_errors] == ["a fault of the test"]


# -- hanging up ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NEVER_DONE)
def test_a_client_that_hangs_up_during_an_answer_is_noticed(name):
    with ChatServer(always(NEVER_DONE[name])) as server:
        client = asking(server)
        (request,) = server.wait_for_requests(1)
        assert not request.hung_up.is_set()
        client.close()
        assert request.hung_up.wait(5)


def test_a_client_that_resets_is_noticed():
    with ChatServer(always(raw(FOREVER))) as server:
        client = asking(server)
        (request,) = server.wait_for_requests(1)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, subject._RESET)
        client.close()
        assert request.hung_up.wait(5)


def test_a_client_that_only_stops_reading_is_waited_for_without_spinning():
    with ChatServer(always(endless())) as server, asking(server) as client:
        (request,) = server.wait_for_requests(1)
        assert not request.hung_up.wait(0.2)
        before = time.process_time()
        assert not request.hung_up.wait(0.2)
        assert time.process_time() - before < 0.1
        client.shutdown(socket.SHUT_WR)
        assert request.hung_up.wait(5)


def test_a_client_that_is_gone_before_the_answer_is_noticed():
    may_answer = threading.Event()

    def answer(_request):
        assert may_answer.wait(10)
        return words("Saved.")

    with ChatServer(answer) as server:
        client = asking(server)
        (request,) = server.wait_for_requests(1)
        client.close()
        may_answer.set()
        assert request.hung_up.wait(5)


def test_a_client_that_has_its_whole_answer_did_not_hang_up():
    with ChatServer([words("Saved.")]) as server:
        ask(server, {})
    assert not server.requests[0].hung_up.is_set()


def test_a_request_that_never_became_whole_is_not_kept():
    with ChatServer(always(words("Saved."))) as server, connect(server) as client:
        client.sendall(written(b"{}")[:-1])
        client.shutdown(socket.SHUT_WR)
        assert read_all(client) == b""
    assert server.requests == []


# -- leaving -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NEVER_DONE)
def test_leaving_ends_an_answer_that_would_not_end(name):
    with ChatServer(always(NEVER_DONE[name])) as server:
        client = asking(server)
        (request,) = server.wait_for_requests(1)
        started = time.monotonic()
    assert time.monotonic() - started < 2
    assert not request.hung_up.is_set()
    with client:
        read_all(client)  # ends


@pytest.mark.parametrize("sent", [b"", b"POST / HT", written(b"{}")[:-1]], ids=["nothing", "head", "body"])
def test_leaving_ends_a_connection_on_which_no_request_came(sent):
    with ChatServer([]) as server:
        client = connect(server)
        client.sendall(sent)
    with client:
        assert client.recv(1) == b""


def test_nothing_listens_any_more_after_leaving():
    with ChatServer([]) as server:
        url = server.base_url
    assert server.base_url == url
    with pytest.raises(ConnectionRefusedError):
        connect(server)


def test_an_answer_that_waits_for_something_else_is_complained_of(monkeypatch):
    monkeypatch.setattr(subject, "LEAVE_SECONDS", 0.05)
    release = threading.Event()
    server = ChatServer(always(lambda _connection: release.wait(10)))
    with pytest.raises(RuntimeError, match="still runs"), server, asking(server):
        server.wait_for_requests(1)
    release.set()
    for thread in server._threads:
        thread.join(5)


# -- TLS -----------------------------------------------------------------------------------------------


def secured(client, *, trusting=True):
    context = ssl.create_default_context(cafile=CERTIFICATE if trusting else None)
    return context.wrap_socket(client, server_hostname="127.0.0.1")


def test_with_a_certificate_it_speaks_tls():
    with ChatServer([words("Saved.")], certificate=CERTIFICATE) as server:
        assert server.base_url.startswith("https://127.0.0.1:")
        with secured(connect(server)) as client:
            client.sendall(written(b'{"model": "scripted"}'))
            assert b"Saved." in read_answer(client)[2]
    assert server.requests[0].body == {"model": "scripted"}


def test_a_client_that_does_not_trust_the_certificate_sends_no_request():
    with ChatServer([words("Saved.")], certificate=CERTIFICATE) as server:
        with connect(server) as client, pytest.raises(ssl.SSLCertVerificationError):
            secured(client, trusting=False)
        with connect(server) as plain, suppress(ConnectionResetError):
            plain.sendall(written())
            assert not read_all(plain).startswith(b"HTTP")
    assert server.requests == []


@pytest.mark.parametrize("name", NEVER_DONE)
def test_a_client_that_hangs_up_under_tls_is_noticed(name):
    with ChatServer(always(NEVER_DONE[name]), certificate=CERTIFICATE) as server:
        with secured(connect(server)) as client:
            client.sendall(written())
            (request,) = server.wait_for_requests(1)
        assert request.hung_up.wait(5)


def test_leaving_ends_a_handshake_that_never_came():
    with ChatServer([], certificate=CERTIFICATE) as server:
        client = connect(server)
    with client:
        assert client.recv(1) == b""
