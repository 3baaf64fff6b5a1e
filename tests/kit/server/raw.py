"""A daemon in a thread of this process, with normal requests and raw bytes."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
import time
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property

import httpx2

from kit.server.process import BASE, Asking, HeldModel, policy_file
from muniment.agent.filing import RuleWriter
from muniment.kernel.names import Trust
from muniment.server.service import Daemon, Options
from muniment.server.tokens import TOKEN_NAME
from muniment.settings import Settings

SECONDS = 30.0
"""A socket or daemon that takes longer counts as stuck."""

REMEMBER = f"{BASE}/remember"


@dataclass(frozen=True)
class Answer:
    """A response. `headers` contains pairs, names in lower case."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def values(self, name):
        """Return every value of a header."""
        return [value for key, value in self.headers if key == name]

    @property
    def json(self):
        """Return the parsed body."""
        return json.loads(self.body)

    @property
    def code(self):
        """Return status and code of a problem; for any other response only the status."""
        if self.values("content-type") == ["application/problem+json"]:
            assert self.json["status"] == self.status
            return self.status, self.json["code"]
        return self.status


class Line(AbstractContextManager):
    """One connection. `answer` returns None if the server closed it instead."""

    def __init__(self, address):
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.settimeout(SECONDS)
        self.socket.connect(address)
        self._reader = self.socket.makefile("rb")

    def send(self, data):
        """Send data; return whether all was sent before the other side closed."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(data)
            return True
        return False

    def answer(self):
        """Return the next final response."""
        with suppress(ConnectionResetError):
            while (found := self._answer()) is not None and found.status < 200:
                pass
            return found
        return None

    def line(self):
        """Return the next raw line."""
        return self._reader.readline()

    def is_closed(self):
        """Wait until the other side closes; return False if it sent something instead."""
        with suppress(ConnectionResetError):
            return self._reader.read(1) == b""
        return True

    def __exit__(self, *_):
        self._reader.close()
        self.socket.close()

    def _answer(self):
        line = self._reader.readline()
        if not line:
            return None
        version, status, _ = line.split(b" ", 2)
        assert version == b"HTTP/1.1"
        headers = []
        while (line := self._reader.readline().rstrip(b"\r\n")) != b"":
            name, _, value = line.partition(b":")
            headers.append((name.decode().lower(), value.strip().decode()))
        found = Answer(int(status), tuple(headers), b"")
        if found.status in {100, 204, 304}:
            return found
        if sizes := found.values("content-length"):
            return Answer(found.status, found.headers, self._reader.read(int(sizes[0])))
        assert found.values("transfer-encoding") == ["chunked"]
        return found


class Running(Asking):
    """A daemon that serves in this process, with normal and raw requests.

    Attributes:
        core: see `muniment.server.core`.
        tcp, unix: the addresses of its sockets.
        records: the log records.
    """

    def __init__(self, daemon, loop, base, records):
        self.daemon, self.core, self.loop, self.records = daemon, daemon.core, loop, records
        self.base, self.home, self.work, self.state = base, base / "home", base / "work", base / "home/state"
        self.url, self.key = daemon.url, next(iter(daemon.core.workspaces))
        self.host = self.url.removeprefix("http://")
        self.port = int(self.host.rpartition(":")[2])
        self.tcp, self.unix = ("127.0.0.1", self.port), str(base / "d.sock")
        self.token = (self.state / TOKEN_NAME).read_text(encoding="ascii").strip()
        self.http = httpx2.Client(base_url=self.url, trust_env=False, timeout=60)

    @cached_property
    def client(self):
        """Return a token for a client with two ids."""
        return self.add("client", "client-1", "client-2")

    def add(self, name, *clients, trust="agent"):
        """Create a token for a client."""
        return self.core.tokens.add(name, clients, Trust(trust))

    def line(self, address=None):
        """Open a new connection."""
        return Line(self.tcp if address is None else address)

    def request(self, method, path, *headers, body=None, token=None, host=None):
        """Build the bytes of a request. If `token` or `host` is "", the header is missing."""
        token = self.token if token is None else token
        host = self.host if host is None else host
        lines = [f"{method} {path} HTTP/1.1", *([f"Host: {host}"] if host else [])]
        lines += [f"Authorization: Bearer {token}"] if token else []
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        if body is not None:
            lines.append(f"Content-Length: {len(data)}")
            if not any(each.lower().startswith("content-type") for each in headers):
                lines.append("Content-Type: application/json")
        return "\r\n".join([*lines, *headers, "", ""]).encode("latin-1") + data

    def raw(self, data, address=None):
        """Send bytes on a new connection; return its first response, or None."""
        with self.line(address) as line:
            line.send(data)
            return line.answer()

    def ask(self, method, path, *headers, address=None, **terms):
        """Send a request on a new connection; return its response, or None."""
        return self.raw(self.request(method, path, *headers, **terms), address)

    def check(self):
        """Assert that it still responds, and that nothing has failed in it since the last check."""
        found = self.ask("GET", "/healthz").status, self.defects()
        self.records.clear()
        assert found == (200, [])

    def defects(self):
        """Return log messages that must never occur: failed requests, errors of the event loop or server."""
        told = [(record.getMessage(), record.levelno >= logging.ERROR) for record in self.records]
        return [message for message, is_error in told if is_error or "request_broke" in message]

    def run(self, coroutine):
        """Run a coroutine on the event loop of the daemon."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(SECONDS)

    def connections(self):
        """Return the number of open connections."""
        return len(self.daemon._server.server_state.connections)

    @cached_property
    def guard(self):
        """Return the guard that every request passes; waits until it is loaded, so call it first in a test
        thread.
        """
        config = self.daemon._server.config
        self.until(lambda: config.loaded)
        return config.loaded_app

    def until(self, condition):
        """Wait until a condition is true, checked on the event loop of the daemon after each iteration."""

        async def held():
            deadline = time.monotonic() + SECONDS
            while not condition():
                assert time.monotonic() < deadline, condition
                await asyncio.sleep(0)

        self.run(held())


_BROKEN = []
"""Daemons in which a test provokes errors; meanwhile the records of other daemons are not collected."""


@contextmanager
def recorded(*, broken):
    """Collect every log record of this process, those of Muniment from INFO on."""
    handler, ours, found = logging.Handler(logging.INFO), logging.getLogger("muniment"), []
    handler.emit = lambda record: found.append(record) if broken or not _BROKEN else None
    level, marks = ours.level, [handler] * broken
    logging.getLogger().addHandler(handler)
    ours.setLevel(logging.INFO)
    _BROKEN.extend(marks)
    try:
        yield found
    finally:
        del _BROKEN[len(_BROKEN) - len(marks) :]
        ours.setLevel(level)
        logging.getLogger().removeHandler(handler)


@contextmanager
def running(base, model=None, *, workers=False, broken=False, **terms):
    """Run a daemon under `base` over TCP and a Unix socket.

    Args:
        model: None: the rules; a `HeldModel` is released at the end and is not replaced by the rules.
        workers: run tools in worker processes under the built-in policy; otherwise in this process.
        broken: the test provokes errors, which the daemon may log.
        terms: those of `Options` and of `Settings`.
    """
    (base / "work" / ".git").mkdir(parents=True, exist_ok=True)
    policy = terms.pop("policy", None) or ("strict" if workers else policy_file(base, require='"none"'))
    held = model if isinstance(model, HeldModel) else None
    after_failure = terms.pop("on_model_failure", "fail" if held else "rules")
    settings = Settings(base / "home", policy=str(policy), on_model_failure=after_failure)
    terms = {"grace": 5.0, "in_process": not workers, "socket": base / "d.sock", **terms}
    options = Options(settings, terms.pop("workspaces", (base / "work",)), **terms)
    with ExitStack() as stack:
        loop = stack.enter_context(looping())
        records = stack.enter_context(recorded(broken=broken))
        thinks = stack.enter_context(closing(held.asked())) if held else model or RuleWriter()
        daemon = Daemon(options, thinks)
        asyncio.run_coroutine_threadsafe(daemon.__aenter__(), loop).result(SECONDS)
        made = Running(daemon, loop, base, records)
        try:
            yield made
        finally:
            if held:
                held.release()
            made.http.close()
            made.run(daemon.stop())
        assert broken or not made.defects()


@contextmanager
def looping():
    """Run an event loop in a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="daemon")
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(SECONDS)
        loop.close()  # A running loop would refuse this.


def start(daemon, *headers, method="POST", path=REMEMBER):
    """Build a request header that announces a body, without the body."""
    return daemon.request(method, path, "Content-Type: application/json", *headers)


def chunked(data, size=4096, end=b"0\r\n\r\n"):
    """Encode data in chunks."""
    parts = (data[at : at + size] for at in range(0, len(data), size))
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + end
