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

from kit.server.process import BASE, DaemonRequests, PausableModel, write_policy
from muniment.agent.filing import RuleWriter
from muniment.kernel.names import Trust
from muniment.server.service import Daemon, Options
from muniment.server.tokens import TOKEN_NAME
from muniment.settings import Settings

SECONDS = 30.0
"""A socket or daemon that takes longer counts as stuck."""

REMEMBER = f"{BASE}/remember"


@dataclass(frozen=True)
class RawAnswer:
    """A response. `headers` contains pairs, names in lower case."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def get_header_values(self, name):
        """Return every value of a header."""
        return [value for key, value in self.headers if key == name]

    @property
    def json(self):
        """Return the parsed body."""
        return json.loads(self.body)

    @property
    def code(self):
        """Return status and code of a problem; for any other response only the status."""
        if self.get_header_values("content-type") == ["application/problem+json"]:
            assert self.json["status"] == self.status
            return self.status, self.json["code"]
        return self.status


class Connection(AbstractContextManager):
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

    def read_answer(self):
        """Return the next final response."""
        with suppress(ConnectionResetError):
            while (found := self._read_answer()) is not None and found.status < 200:
                pass
            return found
        return None

    def read_line(self):
        """Return the next raw line."""
        return self._reader.readline()

    def wait_for_close(self):
        """Wait until the other side closes; return False if it sent something instead."""
        with suppress(ConnectionResetError):
            return self._reader.read(1) == b""
        return True

    def __exit__(self, *_):
        self._reader.close()
        self.socket.close()

    def _read_answer(self):
        line = self._reader.readline()
        if not line:
            return None
        version, status, _ = line.split(b" ", 2)
        assert version == b"HTTP/1.1"
        headers = []
        while (line := self._reader.readline().rstrip(b"\r\n")) != b"":
            name, _, value = line.partition(b":")
            headers.append((name.decode().lower(), value.strip().decode()))
        found = RawAnswer(int(status), tuple(headers), b"")
        if found.status in {100, 204, 304}:
            return found
        if sizes := found.get_header_values("content-length"):
            return RawAnswer(found.status, found.headers, self._reader.read(int(sizes[0])))
        assert found.get_header_values("transfer-encoding") == ["chunked"]
        return found


class LocalDaemon(DaemonRequests):
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
        return self.add_client("client", "client-1", "client-2")

    def add_client(self, name, *clients, trust="agent"):
        """Create a token for a client."""
        return self.core.tokens.add(name, clients, Trust(trust))

    def open_connection(self, address=None):
        """Open a new connection."""
        return Connection(self.tcp if address is None else address)

    def build_request(self, method, path, *headers, body=None, token=None, host=None):
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

    def send_raw(self, data, address=None):
        """Send bytes on a new connection; return its first response, or None."""
        with self.open_connection(address) as line:
            line.send(data)
            return line.read_answer()

    def send_request(self, method, path, *headers, address=None, **options):
        """Send a request on a new connection; return its response, or None."""
        return self.send_raw(self.build_request(method, path, *headers, **options), address)

    def assert_healthy(self):
        """Assert that it still responds, and that nothing has failed in it since the last check."""
        found = self.send_request("GET", "/healthz").status, self.find_defects()
        self.records.clear()
        assert found == (200, [])

    def find_defects(self):
        """Return log messages that must never occur: failed requests, errors of the event loop or server."""
        messages = [(record.getMessage(), record.levelno >= logging.ERROR) for record in self.records]
        return [message for message, is_error in messages if is_error or "request_broke" in message]

    def run_coroutine(self, coroutine):
        """Run a coroutine on the event loop of the daemon."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(SECONDS)

    def read_last_number(self):
        """Return the number of the newest event in the ledger, which the stream may not have read yet."""
        return int(self.run_coroutine(self.core.stream.cursor()).rpartition("-")[2])

    def count_connections(self):
        """Return the number of open connections."""
        return len(self.daemon._server.server_state.connections)

    @cached_property
    def guard(self):
        """Return the guard that every request passes; waits until it is loaded, so call it first in a test
        thread.
        """
        config = self.daemon._server.config
        self.wait_until(lambda: config.loaded)
        return config.loaded_app

    def wait_until(self, condition):
        """Wait until a condition is true, checked on the event loop of the daemon after each iteration."""

        async def poll():
            deadline = time.monotonic() + SECONDS
            while not condition():
                assert time.monotonic() < deadline, condition
                await asyncio.sleep(0)

        self.run_coroutine(poll())


_FAULTY_DAEMONS = []
"""Daemons in which a test provokes errors; meanwhile the records of other daemons are not collected."""


@contextmanager
def record_logs(*, expects_defects):
    """Collect every log record of this process, those of Muniment from INFO on."""
    handler, logger, found = logging.Handler(logging.INFO), logging.getLogger("muniment"), []
    handler.emit = lambda record: found.append(record) if expects_defects or not _FAULTY_DAEMONS else None
    level, marks = logger.level, [handler] * expects_defects
    logging.getLogger().addHandler(handler)
    logger.setLevel(logging.INFO)
    _FAULTY_DAEMONS.extend(marks)
    try:
        yield found
    finally:
        del _FAULTY_DAEMONS[len(_FAULTY_DAEMONS) - len(marks) :]
        logger.setLevel(level)
        logging.getLogger().removeHandler(handler)


@contextmanager
def start_local_daemon(base, model=None, *, workers=False, expects_defects=False, **overrides):
    """Run a daemon under `base` over TCP and a Unix socket.

    Args:
        model: None: the rules; a `PausableModel` is released at the end and is not replaced by the rules.
        workers: run tools in worker processes under the built-in policy; otherwise in this process.
        expects_defects: the test provokes errors, which the daemon may log.
        overrides: those of `Options` and of `Settings`.
    """
    (base / "work" / ".git").mkdir(parents=True, exist_ok=True)
    policy = overrides.pop("policy", None) or ("strict" if workers else write_policy(base, require='"none"'))
    pausable = model if isinstance(model, PausableModel) else None
    after_failure = overrides.pop("on_model_failure", "fail" if pausable else "rules")
    settings = Settings(base / "home", policy=str(policy), on_model_failure=after_failure)
    overrides = {"grace": 5.0, "in_process": not workers, "socket": base / "d.sock", **overrides}
    options = Options(settings, overrides.pop("workspaces", (base / "work",)), **overrides)
    with ExitStack() as stack:
        loop = stack.enter_context(run_event_loop())
        records = stack.enter_context(record_logs(expects_defects=expects_defects))
        model_or_rules = (
            stack.enter_context(closing(pausable.create_client())) if pausable else model or RuleWriter()
        )
        daemon = Daemon(options, model_or_rules)
        asyncio.run_coroutine_threadsafe(daemon.__aenter__(), loop).result(SECONDS)
        local_daemon = LocalDaemon(daemon, loop, base, records)
        try:
            yield local_daemon
        finally:
            if pausable:
                pausable.resume()
            local_daemon.http.close()
            local_daemon.run_coroutine(daemon.stop())
        assert expects_defects or not local_daemon.find_defects()


@contextmanager
def run_event_loop():
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


def build_incomplete_request(daemon, *headers, method="POST", path=REMEMBER):
    """Build a request header that announces a body, without the body."""
    return daemon.build_request(method, path, "Content-Type: application/json", *headers)


def encode_chunks(data, size=4096, end=b"0\r\n\r\n"):
    """Encode data in chunks."""
    parts = (data[at : at + size] for at in range(0, len(data), size))
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + end
