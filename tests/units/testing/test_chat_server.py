"""The scripted chat server: its records and its behaviour, without a thread that is left."""

import json
import re
import socket
import ssl
import threading
from contextlib import closing
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest

from kit.agent import misbehaviours
from kit.locations import TESTS
from muniment.testing import chat_server as subject
from muniment.testing.chat_server import (
    ChatServer,
    delay_responder,
    drip_response,
    repeat_responder,
    send_endless_body,
    send_raw,
    text_response,
)

CERTIFICATE = TESTS / "kit" / "agent" / "certificate.pem"
SAVED = text_response("Saved.")


def connect(server):
    """Return a plain socket to the server."""
    return socket.create_connection(("127.0.0.1", urlsplit(server.base_url).port), timeout=10)


def make_request(body=b"{}", more=""):
    """Return the bytes of a request."""
    return f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body


def send_request(server):
    """Return a socket on which a request was sent."""
    client = connect(server)
    client.sendall(make_request())
    return client


def read_all(client):
    """Return all bytes up to the end of the connection."""
    return b"".join(iter(lambda: client.recv(65536), b""))


def fetch_answer(server, method="POST", path="/v1/chat/completions"):
    """Return status and document of an answer as `http.client` reads it."""
    with closing(HTTPConnection("127.0.0.1", urlsplit(server.base_url).port, timeout=10)) as client:
        client.request(method, path, "{}")
        answer = client.getresponse()
        return answer.status, json.loads(answer.read())


@pytest.fixture(autouse=True)
def check_for_threads():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def test_answers_are_given_in_order_and_then_status_500():
    with ChatServer([text_response("one"), text_response("two"), SAVED]) as server:
        for content in ("one", "two"):
            assert fetch_answer(server)[1]["choices"][0]["message"]["content"] == content
        assert fetch_answer(server, "GET", "/v1/models")[0] == 200
        status, body = fetch_answer(server)
    assert (server.requests[2].method, server.requests[2].path) == ("GET", "/v1/models")
    assert status == 500
    assert "no further response" in body["error"]["message"]


def test_invalid_request_gets_an_error_or_no_answer():
    head = b"POST / HTTP/1.1\r\n"
    with ChatServer(repeat_responder(SAVED)) as server:
        for sent, status in (
            *((b"GET\r\n\r\n", 400), (head + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n", 411)),
            *((head + b"content-length: %b\r\n\r\n" % length, 411) for length in (b"-1", b"\xb2")),
            (head + b"content-length: " + b"9" * 5000 + b"\r\n\r\n", 413),
            (make_request(b" " * (subject.MAX_REQUEST_BYTES + 1)), 413),
            (head + b"x: " + b"a" * 2 * subject.MAX_HEAD_BYTES, 431),
        ):
            with connect(server) as client:
                client.sendall(sent)
                assert read_all(client).startswith(b"HTTP/1.1 %d " % status)
        with connect(server) as client:
            client.sendall(make_request(b"{}")[:-1])  # It is never complete.
            client.shutdown(socket.SHUT_WR)
            assert read_all(client) == b""
        assert server.requests == []
        with connect(server) as client:
            client.sendall(make_request(b"{}", "Connection: close\r\n"))
            assert read_all(client).endswith(b"}")


def test_disconnect_under_tls_is_noticed():
    whole, trusting = b"HTTP/1.1 200 OK\r\n", ssl.create_default_context(cafile=CERTIFICATE)
    stalls = send_raw(float("inf")), send_raw(whole + b"content-length: 9\r\n\r\n{", float("inf"))
    for never_done in (
        *stalls,
        drip_response(SAVED, pause_seconds=0.01),
        send_endless_body(),
        delay_responder(60, SAVED),
    ):
        with ChatServer(repeat_responder(never_done), certificate=CERTIFICATE) as server:
            with trusting.wrap_socket(connect(server), server_hostname="127.0.0.1") as client:
                client.sendall(make_request())
                (request,) = server.wait_for_requests(1)
            assert request.hung_up.wait(30)


def test_drip_sends_pieces_and_an_endless_body_continues(monkeypatch):
    response, received_piece = (
        subject.Response(b"a" * 7, headers={"connection": "close"}),
        threading.Semaphore(0),
    )
    with subject.ChatServer(
        [
            subject.drip_response(response, size=20, pause_seconds=0.005),
            subject.send_endless_body(b"ab" * 500),
        ]
    ) as server:
        with monkeypatch.context() as patched:
            patched.setattr(subject.Connection, "pause", lambda *_: received_piece.acquire(timeout=10))
            with send_request(server) as client:  # No piece can arrive before the previous one was taken.
                received = b""
                while len(received) < len(response.encode()):
                    piece = client.recv(65536)
                    assert len(piece) == min(20, len(response.encode()) - len(received))
                    received += piece
                    received_piece.release()
        assert received == response.encode()
        with send_request(server) as client:
            assert sum(len(client.recv(65536)) for _ in range(200)) > 50_000
        assert server.requests[1].hung_up.wait(30)


def test_misbehaviours_are_distinct_and_write_to_one_folder_only():
    tables = [
        misbehaviours.list_stalls(),
        misbehaviours.list_broken_transfers(),
        misbehaviours.list_broken_bodies(),
        misbehaviours.list_odd_calls(),
    ]
    tables += [
        misbehaviours.OVERFLOWS,
        misbehaviours.NO_TOOLS,
        misbehaviours.NO_RESPONSE_FORMAT,
        misbehaviours.UNSUPPORTED,
    ]
    every = misbehaviours.list_misbehaviours()
    assert len(every) == sum(map(len, tables))
    bodies = [each.body.decode("latin-1") for each in every.values() if isinstance(each, subject.Response)]
    places = {place for body in bodies for place in re.findall(r"write_file.*?(\w+/[\w/]+)", body)}
    assert places
    assert all(place.startswith("user/never/") for place in places), places
