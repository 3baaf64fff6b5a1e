r"""The attacker of a race: a second process that exchanges two names as fast as possible.

    decoy = make_decoy(tmp_path / "decoy", "symlink", tmp_path / "outside")
    with Swap(roots["user"] / "folder", decoy) as swap:
        for _ in swap.rounds(exchanges=10_000):
            box.call("read_file", {"path": "user/folder/note.md"})

- R1 `renameat2(RENAME_EXCHANGE)` exchanges the names. At every instant each name exists, and two lookups of
  the same name may find two different files.
- R2 `exchanges` is counted in shared memory, after each exchange.
- R3 On exit, and also if this process dies, the attacker restores the names and ends. It runs as long as its
  standard input is open.
- R4 No code here sleeps. On a single processor, each side lets the other run after every round.

Not covered: if the attacked program replaces an exchanged name, R3 does not restore it; the new file stays.
Linux only. Run as a program, this file is the attacker. Therefore it imports only the standard library.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, Self

DecoyKind = Literal["symlink", "hardlink", "fifo"]
"""The kind of the file that is exchanged with a name."""

RESTORE_SECONDS: Final = 10.0
"""Seconds that the attacker has to restore the names; it needs a millisecond."""

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_TURNS_BETWEEN_CHECKS: Final = 64
"""Exchanges between two checks whether the attack should end; a check costs a system call."""

_COUNT, _PROBLEM = 0, 1
_CELLS_BYTES: Final = 16
_READY: Final = b"r"
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class Swap:
    """A context manager that exchanges `path` with `decoy` repeatedly while it is active.

    Args:
        path: a file or a directory that the attacked program uses.
        decoy: another file on the same file system, which the program cannot reach; see `make_decoy`.

    Attributes:
        decoy: path of the decoy before and after the attack.
        problem: why the attacker stopped early; None: it did not.
    """

    def __init__(self, path: Path, decoy: Path) -> None:
        self.decoy = decoy
        self.problem: str | None = None
        self._names = os.fspath(path), os.fspath(decoy)
        self._decoy_identity = _read_identity(decoy)
        self._is_single_processor = _is_single_processor()

    def __enter__(self) -> Self:
        """Start the attacker, and wait until it is ready.

        Raises:
            RuntimeError: the attacker did not start.
        """
        shared = os.memfd_create("swap", os.MFD_CLOEXEC)
        try:
            os.ftruncate(shared, _CELLS_BYTES)
            self._cells = memoryview(mmap.mmap(shared, _CELLS_BYTES)).cast("Q")
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter, this file
                [sys.executable, "-I", "-S", __file__, str(shared), *self._names],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(shared,),
                start_new_session=True,  # A keyboard interrupt is only for the test.
            )
        finally:
            os.close(shared)
        assert self._process.stdout is not None  # noqa: S101 - for the type checker
        if self._process.stdout.read(len(_READY)) != _READY:
            self.__exit__()
            raise RuntimeError(f"the attacker did not start: exit {self._process.returncode}")
        return self

    def __exit__(self, *_exc: object) -> None:
        """Stop the attacker and restore the names."""
        try:
            self._process.communicate(timeout=RESTORE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            raise
        finally:
            _restore_names(*self._names, self._decoy_identity)  # Needed if the attacker was killed.
        self._note_problem()

    @property
    def exchanges(self) -> int:
        """Return the number of exchanges so far."""
        return int(self._cells[_COUNT])

    def rounds(self, *, exchanges: int, enough: Callable[[], bool] = lambda: True) -> Iterator[int]:
        """Yield the numbers of rounds until `exchanges` further exchanges have happened; at least one round.

        Args:
            exchanges: number of exchanges. They need not happen during a call: on a busy machine both sides
                take turns.
            enough: called before each further round; returns whether the caller can stop.

        Raises:
            RuntimeError: the attacker ended; no further exchanges will happen.
        """
        done, target = 0, self.exchanges + exchanges
        while not done or self.exchanges < target or not enough():
            if self._process.poll() is not None:
                self._note_problem()
                raise RuntimeError(f"the attacker ended after {self.exchanges} exchanges: {self.problem}")
            yield done
            done += 1
            if self._is_single_processor:
                os.sched_yield()

    def _note_problem(self) -> None:
        if self._cells[_PROBLEM]:
            self.problem = f"cannot exchange: {errno.errorcode[self._cells[_PROBLEM]]}"
        elif self._process.returncode != 0:
            self.problem = f"exit {self._process.returncode}"


def make_decoy(path: Path, kind: DecoyKind, target: Path | str) -> Path:
    """Create a decoy at `path` and return that path.

    Args:
        path: the path of the decoy; must not exist.
        kind: the kind of the decoy.
        target: the target of the symbolic link, or the file that gets a second name; unused for a FIFO.

    Raises:
        KeyError: unknown kind.
    """
    match kind:
        case "symlink":
            path.symlink_to(target)
        case "hardlink":
            path.hardlink_to(target)
        case "fifo":
            os.mkfifo(path, 0o600)
        case _:
            raise KeyError(kind)
    return path


def exchange_names(first: str, second: str) -> None:
    """Exchange two names atomically; they may be files of any type.

    Raises:
        OSError: renameat2(2) failed.
    """
    names = os.fsencode(first), os.fsencode(second)
    if _LIBC.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def attack(path: str, decoy: str, *, shared: int, ready: int, end: int) -> None:
    """Run the attacker: exchange two names until the pipe is closed, then restore the names.

    Args:
        path: the name that the attacked program uses, see `Swap`.
        decoy: the path of the decoy, see `Swap`.
        shared: descriptor of the memory with the number of exchanges.
        ready: descriptor that receives a byte when the attacker is ready.
        end: descriptor of the pipe; the attack stops when the other side closes it.
    """
    cells = memoryview(mmap.mmap(shared, _CELLS_BYTES)).cast("Q")
    is_single_processor, decoy_identity = _is_single_processor(), _read_identity(decoy)
    poller = select.poll()
    poller.register(end, select.POLLIN)
    os.write(ready, _READY)
    turn = 0
    while turn % _TURNS_BETWEEN_CHECKS or not poller.poll(0):
        turn += 1
        try:
            exchange_names(path, decoy)
        except FileNotFoundError:
            continue  # The attacked program is replacing the name at this moment.
        except OSError as error:
            cells[_PROBLEM] = error.errno or errno.EIO
            break
        cells[_COUNT] += 1
        if is_single_processor:
            os.sched_yield()
    _restore_names(path, decoy, decoy_identity)


def _restore_names(path: str, decoy: str, decoy_identity: tuple[int, int] | None) -> None:
    if _read_identity(path) == decoy_identity:
        exchange_names(path, decoy)


def _read_identity(path: Path | str) -> tuple[int, int] | None:
    with suppress(FileNotFoundError):
        info = os.lstat(path)
        return info.st_dev, info.st_ino
    return None


def _is_single_processor() -> bool:
    return len(os.sched_getaffinity(0)) == 1


if __name__ == "__main__":
    attack(sys.argv[2], sys.argv[3], shared=int(sys.argv[1]), ready=1, end=0)
