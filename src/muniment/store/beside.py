"""Reads files of a directory as bytes while this process may have databases in it open.

Locks of a process on a file end when it closes any descriptor of that file, whoever opened it. Without its
locks a database that is still open here looks closed to other processes, and one of them would delete its
write-ahead log. So what was opened here is closed only once no connection to the directory is left.

Source: fcntl(2), advisory record locking; sqlite.org/howtocorrupt.html, 2.2.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

_LOCK: Final = threading.Lock()
_CONNECTIONS: Final[Counter[Path]] = Counter()
_WAITING: Final[dict[Path, list[BinaryIO]]] = {}


def connected(directory: Path) -> None:
    """A database in a directory is open from now on."""
    with _LOCK:
        _CONNECTIONS[directory.resolve()] += 1


def disconnected(directory: Path) -> None:
    """A database in a directory was closed, or is about to be closed as the last one."""
    key = directory.resolve()
    with _LOCK:
        _CONNECTIONS[key] -= 1
        if _CONNECTIONS[key] == 0:
            del _CONNECTIONS[key]
            for file in _WAITING.pop(key, ()):
                file.close()


@contextmanager
def reading(path: Path) -> Iterator[BinaryIO]:
    """A file to be read.

    Raises:
        OSError: it cannot be opened.
    """
    key = path.parent.resolve()
    file = path.open("rb")
    try:
        yield file
    finally:
        with _LOCK:
            if key in _CONNECTIONS:
                _WAITING.setdefault(key, []).append(file)
            else:
                file.close()
