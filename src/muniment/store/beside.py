"""Reads files of a directory as bytes while this process may have databases in it open.

Locks of a process on a file end when it closes any descriptor of that file, whoever opened it. Without its
locks a database that is still open here looks closed to other processes, and one of them would delete its
write-ahead log. So what was opened here is closed only once no connection to the directory is left, or no
name of the file. Until then whoever reads it again does so by the same descriptor: a file has one at most.

Source: fcntl(2), advisory record locking; sqlite.org/howtocorrupt.html, 2.2.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_LOCK: Final = threading.Lock()
_CONNECTIONS: Final[Counter[Path]] = Counter()


@dataclass(slots=True, eq=False)
class _Held:
    """A descriptor, and how many read by it now."""

    fd: int
    readers: int = 0


_HELD: Final[dict[Path, list[_Held]]] = {}


class Reading:
    """A file from its start on, at a place of this reader's own."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._at = 0

    def read(self, size: int) -> bytes:
        """The next `size` bytes; fewer at the end.

        Raises:
            OSError: they cannot be read.
        """
        data = os.pread(self._fd, size, self._at)
        self._at += len(data)
        return data


def connected(directory: Path) -> None:
    """A database in a directory is open from now on, or about to be opened."""
    with _LOCK:
        _CONNECTIONS[directory.resolve()] += 1


def disconnected(directory: Path) -> None:
    """A database in a directory was closed, or is about to be closed as the last one."""
    key = directory.resolve()
    with _LOCK:
        _CONNECTIONS[key] -= 1
        if _CONNECTIONS[key] == 0:
            del _CONNECTIONS[key]
        _let_go(key)


@contextmanager
def reading(path: Path) -> Iterator[Reading]:
    """A file to be read.

    Raises:
        OSError: it cannot be opened.
    """
    key = path.parent.resolve()
    with _LOCK:
        held = _held(key, path)
        held.readers += 1
    try:
        yield Reading(held.fd)
    finally:
        with _LOCK:
            held.readers -= 1
            _let_go(key)


def _held(key: Path, path: Path) -> _Held:
    """The descriptor of a file, opened if there is none yet."""
    found = path.stat()
    ours = _HELD.get(key, [])
    for each in ours:
        if os.path.samestat(os.fstat(each.fd), found):
            return each
    new = _Held(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    _HELD[key] = [*ours, new]
    return new


def _let_go(key: Path) -> None:
    """Close what nobody reads any more, as far as no lock of a connection can depend on it."""
    left: list[_Held] = []
    for each in _HELD.pop(key, ()):
        if each.readers or (key in _CONNECTIONS and os.fstat(each.fd).st_nlink):
            left.append(each)
        else:
            os.close(each.fd)
    if left:
        _HELD[key] = left
