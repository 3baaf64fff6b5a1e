"""Let the daemon of the home answer the event of a coding tool: `muniment recall --hook`, if a daemon runs.

This takes about 40 ms of CPU instead of 250. Therefore this module imports only the standard library, and is
separate from `recall`, which answers the event if the daemon cannot.

- C1. The event is sent only to a process of this user: `daemon.json` and the socket's peer must belong to it.
- C2. In every unusual case (an own option, no daemon, no Unix socket, an error, no answer within
  `ANSWER_SECONDS`), nothing is printed, and the caller answers the event itself.
- C3. The daemon records what the session received only after the answer was printed.

Attacked in tests/surface/cli/test_hook_client.py.
"""

from __future__ import annotations

import json
import os
import select
import socket
import stat
import struct
import time
from contextlib import suppress

ANSWER_SECONDS = 1.0
"""Seconds within which the daemon must answer; it normally takes 10 milliseconds."""

MAX_EVENT_BYTES = 262_144
"""Maximum bytes of an event that is sent to the daemon, which accepts bodies of 512 KiB."""

MAX_ANSWER_BYTES = 65_536
"""Maximum bytes of an answer with its headers; the daemon sends at most about 10 000, escaped."""

_KNOWN_VARIABLES = ("MUNIMENT_HOME", "MUNIMENT_LOG")
_MAX_FILE_BYTES = 4_096
_OTHERS_MASK = 0o077
_CREDENTIALS = struct.Struct("3i")


class _DaemonUnavailable(Exception):
    """The daemon cannot answer the event."""


_FAILURES = (_DaemonUnavailable, OSError, ValueError, RecursionError)
"""The errors of a missing daemon, and of an invalid response."""


def read_event() -> tuple[bytes, bool]:
    """Read the event from standard input, and return it, and whether it is complete and not too large.

    Cost: it waits at most `ANSWER_SECONDS`.
    """
    deadline = time.monotonic() + ANSWER_SECONDS
    event = b""
    with suppress(OSError):  # Then the caller's attempt to read the rest reports the error.
        while (
            len(event) <= MAX_EVENT_BYTES
            and select.select([0], [], [], max(0.0, deadline - time.monotonic()))[0]
        ):
            block = os.read(0, MAX_EVENT_BYTES)
            if not block:
                return event, True
            event += block
    return event, False


def answer_by_daemon(event: bytes) -> bool:
    """Print the answer of the daemon to an event, and return whether an answer was printed.

    Args:
        event: the JSON text of the event.
    """
    deadline = time.monotonic() + ANSWER_SECONDS
    try:
        path = _find_socket()
        directory = "".join(f"%{byte:02X}" for byte in os.fsencode(os.path.realpath(".")))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(ANSWER_SECONDS)
            connection.connect(path)
            _check_peer(connection)
            _send(connection, f"/hook?directory={directory}", event)
            answer, name = _receive(connection, deadline)
            print(json.dumps(answer, separators=(",", ":")), flush=True)  # ASCII, for every encoding.
            with suppress(*_FAILURES):  # Then the session may receive the entries again.
                _send(connection, "/hook/confirm", b"", f"X-Muniment-Answer: {name}\r\n")
                _receive(connection, deadline + ANSWER_SECONDS)
    except _FAILURES:
        return False
    return True


def _find_socket() -> str:
    """Return the path of the socket that the daemon of the home has announced.

    Raises:
        _DaemonUnavailable: no daemon with a Unix socket has announced itself, another user can access its
            address, or a variable sets an option that the daemon may not have.
    """
    if any(name.startswith("MUNIMENT_") and name not in _KNOWN_VARIABLES for name in os.environ):
        raise _DaemonUnavailable
    home = os.environ.get("MUNIMENT_HOME") or f"{os.environ.get('HOME') or '~'}/.muniment"
    path = f"{os.path.expanduser(home)}/state/daemon.json"  # noqa: PTH111  pathlib costs 5 ms
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & _OTHERS_MASK:
            raise _DaemonUnavailable
        document = json.loads(os.read(fd, _MAX_FILE_BYTES))
    finally:
        os.close(fd)
    announced = document.get("socket") if isinstance(document, dict) else None
    if not isinstance(announced, str) or not announced:
        raise _DaemonUnavailable
    return announced


def _check_peer(connection: socket.socket) -> None:
    """Raise `_DaemonUnavailable` if the process at the other end belongs to another user."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    if _CREDENTIALS.unpack(data)[1] != os.geteuid():
        raise _DaemonUnavailable


def _send(connection: socket.socket, target: str, body: bytes, header: str = "") -> None:
    head = (
        f"POST {target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n{header}\r\n"
    )
    connection.sendall(head.encode("ascii") + body)


def _receive(connection: socket.socket, deadline: float) -> tuple[dict[str, object], str]:
    """Return the JSON object in a response, and the name of the answer.

    Raises:
        _DaemonUnavailable: the response reports an error, is not complete in time, or has another form.
        ValueError: the response is not HTTP, or its body is not JSON.
    """
    data = b""
    while True:
        head, separator, body = data.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
        }
        if separator and len(body) >= int(headers.get("content-length", "")):
            break
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        block = connection.recv(65_536)
        data += block
        if not block or len(data) > MAX_ANSWER_BYTES:
            raise _DaemonUnavailable
    document = json.loads(body)
    if lines[0].split(" ")[1:2] != ["200"] or not isinstance(document, dict):
        raise _DaemonUnavailable
    return document, headers.get("x-muniment-answer", "")
