"""The attacker of the race cases: a thread that exchanges a name with a decoy as fast as it can."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from pathlib import Path
from typing import Final, Self

from corpus.stage import Operation, Stage, make_kind

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class Swap:
    """Exchanges `path` with a decoy beside the tree while it is entered.

    On leaving, the decoy is out of the tree again. The subject may have replaced `path` meanwhile; then its
    file stays.

    Attributes:
        exchanges: how often it succeeded.
        problem: why it had to stop early, if it had to.
    """

    def __init__(self, stage: Stage, operation: Operation) -> None:
        self._path = stage.path(operation["path"])
        self._decoy = stage.aside / f"swap-{self._path.name}"
        make_kind(stage, operation, self._decoy)
        self._decoy_identity = _identity(self._decoy)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.exchanges = 0
        self.problem: str | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        self._thread.join()
        if _identity(self._path) == self._decoy_identity:
            exchange(self._path, self._decoy)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                exchange(self._path, self._decoy)
            except FileNotFoundError:
                continue  # The subject is just replacing the name.
            except OSError as error:
                self.problem = f"cannot exchange: {errno.errorcode[error.errno or 0]}"
                return
            self.exchanges += 1


def exchange(first: Path, second: Path) -> None:
    """Exchange two names atomically, whatever they are.

    Raises:
        OSError: as renameat2(2).
    """
    names = os.fsencode(first), os.fsencode(second)
    if _LIBC.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        info = path.lstat()
    except FileNotFoundError:
        return None
    return info.st_dev, info.st_ino
