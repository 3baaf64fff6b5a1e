"""Where the daemon of a state directory is found: one lock, one document, its sockets.

- N1 one daemon a state directory: the second finds the lock taken, and refuses.
- N2 `state/daemon.json` (0600) says where it listens, while it does; it is there whole or not at all.
- N3 a Unix socket is 0600 from the moment that it has a name. One that nobody answers on any more is
  replaced; nothing else is.
- N4 connections are taken a few at a time, so that those that are too many are closed before others come; and
  where the system has nothing left for one, none is tried for a second.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from muniment.errors import ConfigInvalid, ManagedMemoryUnavailable
from muniment.store.database import make_private, reporting
from muniment.store.state import put

LOCK_NAME: Final = "daemon.lock"
ADDRESS_NAME: Final = "daemon.json"

BACKLOG: Final = 256
"""Connections that wait to be taken."""

ACCEPTED_AT_ONCE: Final = 16
"""Connections that are taken in one turn of the loop; asyncio would take all that wait."""

_PRIVATE: Final = 0o600


class Listener(socket.socket):
    """A socket that gives away at most `ACCEPTED_AT_ONCE` connections in a row (N4).

    asyncio accepts until nothing waits. Where a descriptor is lacking it does so as well, and each time logs
    that, and that it will try again in a second, once more for each of them.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._left = ACCEPTED_AT_ONCE

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection.

        Raises:
            BlockingIOError: none for now.
            OSError: the system has nothing left for one.
        """
        if self._left == 0:
            self._left = ACCEPTED_AT_ONCE
            raise BlockingIOError
        self._left -= 1
        try:
            return super().accept()
        except BlockingIOError:
            self._left = ACCEPTED_AT_ONCE
            raise
        except OSError:
            self._left = 0
            raise


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Be the one daemon of a state directory (N1).

    Raises:
        ManagedMemoryUnavailable: there is another one, or the directory cannot be used.
    """
    path = directory / LOCK_NAME
    with reporting(path):
        make_private(path)
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with reporting(path):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ManagedMemoryUnavailable(str(directory), _other(directory)) from None
        yield
    finally:
        os.close(fd)


def announce(directory: Path, document: Mapping[str, Any]) -> None:
    """Say where the daemon listens (N2).

    Raises:
        ManagedMemoryUnavailable: it cannot be written.
    """
    path = directory / ADDRESS_NAME
    with reporting(path):
        put(path, f"{json.dumps(dict(document))}\n".encode(), over=True)


def withdraw(directory: Path, document: Mapping[str, Any]) -> None:
    """Say no more that a daemon listens; what another one has announced since then stays.

    Args:
        directory: the state directory.
        document: as it was announced; `pid` and `epoch` tell whose it is.
    """
    with suppress(OSError, ValueError, KeyError, TypeError):  # It is gone, or nobody's that can be told.
        found = _announced(directory)
        if all(found[name] == document[name] for name in ("pid", "epoch")):
            (directory / ADDRESS_NAME).unlink()


def listen_tcp(host: str, port: int) -> socket.socket:
    """A socket that listens on an address.

    Raises:
        ConfigInvalid: it cannot, with the reason.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = Listener(family, kind, protocol)
    except (OSError, UnicodeError) as error:  # The latter where the text can be no name at all.
        reason = error.strerror if isinstance(error, OSError) else "this is no name of a machine"
        raise ConfigInvalid(f"cannot listen on {host}: {reason}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigInvalid(f"cannot listen on {host} port {port}: {error.strerror}") from None
    return listener


def listen_unix(path: Path) -> socket.socket:
    """A Unix socket that listens at a path (N3).

    Raises:
        ConfigInvalid: it cannot, with the reason.
    """
    listener = Listener(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.exists() and stat.S_ISSOCK(path.lstat().st_mode) and not _answers(path):
            path.unlink()
        os.fchmod(listener.fileno(), _PRIVATE)  # Linux gives the name the mode of the socket.
        listener.bind(str(path))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigInvalid(
            f"cannot listen at {path}: {error.strerror or error}; give another --socket"
        ) from None
    return listener


def remove_unix(path: Path, listener: os.stat_result) -> None:
    """Remove the name of a socket, if it still is that of the one that was bound there."""
    with suppress(OSError):
        if os.path.samestat(path.lstat(), listener):
            path.unlink()


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        except BlockingIOError:  # Too many wait for the one who listens there.
            return True
    return True


def _announced(directory: Path) -> Any:
    return json.loads((directory / ADDRESS_NAME).read_text(encoding="ascii"))


def _other(directory: Path) -> str:
    """Why a second daemon refuses, and where the first one is."""
    try:
        found = _announced(directory)
        where = f"process {int(found['pid'])} at {found['url']}"
    except (OSError, ValueError, KeyError, TypeError):
        where = "it is starting or stopping"
    return f"another daemon serves it ({where}); use that one, or stop it first"
