"""A daemon on a thread of the test's own process, and requests byte by byte, as no client would send them."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from kit.where import REPOSITORY
from muniment.agent.filing import RuleWriter
from muniment.daemon.service import Daemon, Options
from muniment.names import Trust
from muniment.settings import Settings

SECONDS = 30.0
"""After which a socket or the daemon counts as stuck."""

REMEMBER = "/workspace/memory/remember"
STRICT = REPOSITORY / "policies" / "strict.toml"


@dataclass(frozen=True)
class Answer:
    """What came back. `headers` holds pairs, names in lower case."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def values(self, name):
        """Every value of a header."""
        return [value for key, value in self.headers if key == name]

    @property
    def json(self):
        """The body, parsed."""
        return json.loads(self.body)

    @property
    def code(self):
        """Status and code of a problem; the status alone of everything else."""
        if self.values("content-type") == ["application/problem+json"]:
            assert self.json["status"] == self.status
            return self.status, self.json["code"]
        return self.status


class Line:
    """One connection. `answer` is None where it was closed instead."""

    def __init__(self, address):
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.settimeout(SECONDS)
        try:
            self.socket.connect(address)
        except BaseException:
            self.socket.close()
            raise
        self._reader = self.socket.makefile("rb")

    def send(self, data):
        """Send; whether all of it was taken before the other side closed."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def answer(self):
        """The next answer that is no interim one."""
        try:
            while (found := self._answer()) is not None and found.status < 200:
                pass
        except ConnectionResetError:
            return None
        return found

    def line(self):
        """The next line as it comes."""
        return self._reader.readline()

    def is_closed(self):
        """Wait until the other side closes; False: it sent something."""
        try:
            return self._reader.read(1) == b""
        except ConnectionResetError:
            return True

    def close(self):
        """Close it."""
        self._reader.close()
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

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
        if found.status in {100, 304}:
            return found
        if sizes := found.values("content-length"):
            return Answer(found.status, found.headers, self._reader.read(int(sizes[0])))
        assert found.values("transfer-encoding") == ["chunked"]
        return found


class Running:
    """A daemon that serves, and how to reach it."""

    def __init__(self, daemon, loop, base, records):
        self.daemon, self.loop, self.base, self.records = daemon, loop, base, records
        self.state = base / "home" / "state"
        self.port = int(daemon.url.rpartition(":")[2])
        self.tcp = ("127.0.0.1", self.port)
        self.unix = str(base / "d.sock")
        self.host = f"127.0.0.1:{self.port}"
        self.token = (self.state / "token").read_text().strip()

    def add(self, name, *clients, trust=Trust.AGENT):
        """A token for a client."""
        return self.daemon.core.tokens.add(name, clients, trust)

    def line(self, address=None):
        """A new connection."""
        return Line(self.tcp if address is None else address)

    def request(self, method, path, *headers, body=None, token=None, host=None):
        """The bytes of a request. `token` and `host` may be "" to leave the header out."""
        token = self.token if token is None else token
        host = self.host if host is None else host
        lines = [f"{method} {path} HTTP/1.1", *([f"Host: {host}"] if host else [])]
        lines += [f"Authorization: Bearer {token}"] if token else []
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            lines.append(f"Content-Length: {len(data)}")
            if not any(each.lower().startswith("content-type") for each in headers):
                lines.append("Content-Type: application/json")
        else:
            data = b""
        return "\r\n".join([*lines, *headers, "", ""]).encode("latin-1") + data

    def raw(self, data, address=None):
        """Send bytes on a new connection; its first answer, or None."""
        with self.line(address) as line:
            line.send(data)
            return line.answer()

    def ask(self, method, path, *headers, address=None, **terms):
        """Send a request on a new connection; its answer, or None."""
        return self.raw(self.request(method, path, *headers, **terms), address)

    def post(self, kind, body, *headers, **terms):
        """Ask for a task."""
        return self.ask("POST", f"/workspace/memory/{kind}", *headers, body=body, **terms)

    def ended(self, task, *headers, **terms):
        """A task once it is over."""
        path = f"/workspace/memory/{task.partition('-')[0]}/{task}"
        found = self.ask("GET", path, "Prefer: wait=60", *headers, **terms).json
        assert found["status"] not in {"queued", "running"}, found
        return found

    def check(self):
        """Check that it still answers, and that nothing broke in it since the last time."""
        answer = self.ask("GET", "/healthz")
        defects = self.defects()
        self.records.clear()
        assert answer is not None
        assert answer.status == 200
        assert not defects, defects

    def defects(self):
        """What was logged that must never be: a request that broke, an error of the loop or the server."""
        return [
            record.getMessage()
            for record in self.records
            if record.levelno >= logging.ERROR or "request_broke" in record.getMessage()
        ]

    def run(self, coroutine):
        """Carry out a coroutine on the daemon's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(SECONDS)

    def connections(self):
        """How many connections it holds."""
        return len(self.daemon._server.server_state.connections)

    @cached_property
    def guard(self):
        """What every request passes; it waits until that is there, so ask first on a thread of the test."""
        config = self.daemon._server.config
        self.until(lambda: config.loaded)
        return config.loaded_app

    def until(self, condition):
        """Wait until something holds, looked at on the daemon's loop after each of its turns."""

        async def held():
            deadline = time.monotonic() + SECONDS
            while not condition():
                assert time.monotonic() < deadline, condition
                await asyncio.sleep(0)

        self.run(held())

    def log(self):
        """Everything that was logged."""
        return "\n".join(record.getMessage() for record in self.records)


class _Records(logging.Handler):
    def __init__(self):
        super().__init__(logging.INFO)
        self.found = []

    def emit(self, record):
        self.found.append(record)


@contextmanager
def recorded():
    """Every record of this process, ours from INFO on."""
    handler, ours, root = _Records(), logging.getLogger("muniment"), logging.getLogger()
    level = ours.level
    root.addHandler(handler)
    ours.setLevel(logging.INFO)
    try:
        yield handler.found
    finally:
        ours.setLevel(level)
        root.removeHandler(handler)


def lenient(base):
    """A policy under which tools may run in this process, as a file."""
    path = base / "lenient.toml"
    text, count = re.subn(r'^require = "partial"', 'require = "none"', STRICT.read_text(), flags=re.MULTILINE)
    assert count == 1
    path.write_text(text)
    return path


class HeldWriter(RuleWriter):
    """Files facts once it is let."""

    def __init__(self):
        self.free = threading.Event()

    def respond(self, request):
        """The next step, once it is let."""
        assert self.free.wait(SECONDS)
        return super().respond(request)


@contextmanager
def running(base, *, model=None, **terms):
    """A daemon below `base` over TCP and a Unix socket, its tools in this process."""
    workspace = base / "workspace"
    (workspace / ".git").mkdir(parents=True)
    settings = terms.pop("settings", None) or Settings(base / "home", policy=str(lenient(base)))
    options = Options(
        settings,
        (workspace,),
        socket=base / "d.sock",
        in_process=True,
        grace=terms.pop("grace", 5.0),
        **terms,
    )
    with recorded() as records:
        started, made, ends = threading.Event(), [], []

        async def serve():
            over = asyncio.Event()
            async with Daemon(options, model or RuleWriter()) as daemon:
                loop = asyncio.get_running_loop()
                ends.append(lambda: loop.call_soon_threadsafe(over.set))
                made.append(Running(daemon, loop, base, records))
                started.set()
                await over.wait()

        def body():
            try:
                asyncio.run(serve())
            except BaseException as error:  # told to the test, which waits for it
                made.append(error)
                raise
            finally:
                started.set()

        thread = threading.Thread(target=body, name="daemon")
        thread.start()
        started.wait(SECONDS)
        try:
            assert isinstance(made[0], Running), made
            yield made[0]
        finally:
            for end in ends:
                end()
            thread.join(SECONDS)
            assert not thread.is_alive()
        assert not made[0].defects()


def start(daemon, *headers, method="POST", path=REMEMBER):
    """A header that promises a body, of which nothing is there yet."""
    return daemon.request(method, path, "Content-Type: application/json", *headers)


def chunked(data, size=4096, end=b"0\r\n\r\n"):
    """Data in chunks."""
    parts = (data[at : at + size] for at in range(0, len(data), size))
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + end
