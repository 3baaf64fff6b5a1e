"""A server that answers requests from a script over real sockets and records the requests."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import ssl
import threading
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import parse_qsl

TOKEN = "tkn-canary-0123456789abcdef"


@dataclass(frozen=True)
class ReceivedRequest:
    method: str
    path: str
    headers: dict
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)


def make_answer(status, document=None, **headers):
    """Build a JSON response as bytes."""
    body = b"" if document is None else json.dumps(document).encode()
    return make_raw(status, body, **{"content_type": "application/json", **headers})


def make_raw(status, body, **headers):
    lines = [f"HTTP/1.1 {status} Scripted", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def make_problem(status, code, *, error="A sentence.", retry_after=None, **fields):
    headers = {} if retry_after is None else {"retry_after": retry_after}
    return make_answer(status, {"status": status, "error": error, "code": code, **fields}, **headers)


def make_stream(*chunks):
    """Build a stream of events that ends after `chunks`."""
    return [b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n", *chunks, None]


def make_event(number, kind="memory_changed", data=None, epoch="0badcafe"):
    document = {"v": 1, "type": kind, "data": data or {"scope": "managed"}, "originatorClientId": "web"}
    return f"id: {epoch}-{number}\nevent: {kind}\ndata: {json.dumps(document)}\n\n".encode()


ENTRY = {"id": f"user/editor.md@{'0' * 64}", "path": "user/editor.md", "name": "Editor", "trust": "owner"}
ENTRY |= {"at": "2026-11-22T12:00:00.000Z", "text": "Dark mode"}
RECALLED = {"entries": [ENTRY], "text": "## Relevant Memory", "tokens": 7, "abstained": False, "error": None}


def make_task(status="queued", kind="remember", number=1, **more):
    at = "2026-11-22T12:00:00.000Z"
    document = {"taskId": f"{kind}-{number}", "kind": kind, "status": status, "createdAt": at}
    document |= {"updatedAt": at, "result": None, "error": None, "reviewId": None, "scope": None}
    if kind == "remember":
        document["contextMode"] = "workspace"
    return document | more


REMEMBERED = {"summary": "Saved to user/editor.md.", "filesTouched": ["user/editor.md"]}
REMEMBERED |= {"touchedScopes": ["user"], "enforcement": "full", "decidedBy": "rules"}


DONE = make_task("completed", result=REMEMBERED)


def make_proof(request, *, is_unix=False, token=TOKEN):
    """Build the response that proves knowledge of a token: HMAC-SHA-256 as specified in `docs/http.md`."""
    query = dict(parse_qsl(request.path.partition("?")[2]))
    key = hmac.new(token.encode(), b"muniment-hello/1 key", hashlib.sha256).digest()
    address = "unix" if is_unix else request.headers["host"]
    text = f"muniment-hello/1 proof\n{query['nonce']}\n{address}"
    return make_answer(200, {"proof": hmac.new(key, text.encode(), hashlib.sha256).hexdigest()})


DROP = "drop"
"""Close the connection after reading the request."""

HANG = "hang"
"""Send nothing until the server closes."""


class ScriptedServer:
    """A server that uses the next step of the script for each request.

    Bytes are sent; a list is sent piece by piece, and None in it ends the connection; callables are called.
    `step_done` is set when a step is done or hangs. The server proves that it knows `TOKEN` unless `prove`
    replaces this; the requests for a proof are in `proof_requests`.
    """

    def __init__(self, *steps, path=None, certificate=None, prove=None, port=0):
        self.requests, self.proof_requests = [], []
        self._prove = prove or make_proof
        self.step_done, self._closing = threading.Event(), threading.Event()
        self._steps = iter(steps)
        if path is None:
            self._listener = socket.create_server(("127.0.0.1", port))
            self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        else:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(str(path))
            self._listener.listen()
        self._is_unix, self._tls = path is not None, None
        if certificate is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(certificate)
            self.url = self.url.replace("http:", "https:")
        self._open, self._threads = [], []
        self._accepting = threading.Thread(target=self._accept)

    @property
    def received_text(self):
        """Return everything the server received, as text."""
        return repr([*self.proof_requests, *self.requests])

    def __enter__(self):
        self._accepting.start()
        return self

    def __exit__(self, *_exc):
        self._closing.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        for connection in self._open:
            with suppress(OSError):  # It is closed already.
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _accept(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection):
        try:
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            with connection, connection.makefile("rb") as file:
                while (request := _read_request(file)) is not None:
                    if request.path.startswith("/hello?"):
                        self.proof_requests.append(request)
                        if (proof := self._prove(request, is_unix=self._is_unix)) is None:
                            return
                        connection.sendall(proof)
                        continue
                    self.requests.append(request)
                    if not self._run_step(connection, next(self._steps)):
                        return
        except OSError:
            connection.close()  # The client has disconnected.

    def _run_step(self, connection, step):
        """Run one step; return whether the connection stays open."""
        step = step() if callable(step) else step
        for piece in step if isinstance(step, list) else [step]:
            if piece == HANG:
                self.step_done.set()
                self._closing.wait()
            if piece in {HANG, DROP, None}:
                return False
            piece() if callable(piece) else connection.sendall(piece)
        self.step_done.set()
        return True


def _read_request(file):
    first = file.readline()
    if not first:
        return None
    method, path, _ = first.decode().split(" ")
    headers = {}
    while line := file.readline().strip():
        name, _, value = line.decode().partition(": ")
        assert name.lower() not in headers
        headers[name.lower()] = value
    return ReceivedRequest(method, path, headers, file.read(int(headers.get("content-length", "0"))))
