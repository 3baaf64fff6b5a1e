r"""The attacker of a race: a second process that exchanges two names as fast as it can.

    decoy = make_decoy(tmp_path / "decoy", "symlink", tmp_path / "outside")
    with Swap(roots["user"] / "folder", decoy) as swap:
        for _ in swap.rounds(exchanges=10_000):
            box.call("read_file", {"path": "user/folder/note.md"})

- R1 the names are exchanged by `renameat2(RENAME_EXCHANGE)`: at every instant each of them leads to
  something, and whoever looks twice may find two different things.
- R2 `exchanges` is counted in shared memory, each after it was made.
- R3 on leaving, and also when this process dies, the attacker gives the names back to what had them and ends:
  it lives as long as its standard input is open.
- R4 nothing here sleeps. Where there is one processor only, both sides yield it after every round.

Does not hold: R3 for a name that the attacked program gave to something else meanwhile; that stays.
Linux only. Run as a program, this file is the attacker; so it imports the standard library alone.
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
"""What a decoy is."""

END_SECONDS: Final = 10.0
"""How long the attacker may take to give the names back; it needs a millisecond."""

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_TURNS_BETWEEN_LOOKS: Final = 64
"""Exchanges after which the attacker looks whether it should end; looking costs a system call."""

_COUNT, _PROBLEM = 0, 1
_CELLS_BYTES: Final = 16
_READY: Final = b"r"
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class Swap:
    """Exchanges `path` with `decoy` while it is entered.

    Args:
        path: what the attacked program uses: a file or a directory.
        decoy: something else on the same file system, out of its reach; see `make_decoy`.

    Attributes:
        decoy: where the decoy waits before and after.
        problem: why the attacker had to stop early, if it had to.
    """

    def __init__(self, path: Path, decoy: Path) -> None:
        self.decoy = decoy
        self.problem: str | None = None
        self._names = os.fspath(path), os.fspath(decoy)
        self._decoy_identity = _identity(decoy)
        self._alone = _is_alone()

    def __enter__(self) -> Self:
        """Start the attacker; it is at work when this returns."""
        shared = os.memfd_create("swap", os.MFD_CLOEXEC)
        try:
            os.ftruncate(shared, _CELLS_BYTES)
            self._cells = memoryview(mmap.mmap(shared, _CELLS_BYTES)).cast("Q")
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter, this file
                [sys.executable, "-I", "-S", __file__, str(shared), *self._names],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(shared,),
                start_new_session=True,  # An interrupt from the keyboard is for the test alone.
            )
        finally:
            os.close(shared)
        assert self._process.stdout is not None  # noqa: S101 - for the type checker
        if self._process.stdout.read(len(_READY)) != _READY:
            self.__exit__()
            raise RuntimeError(f"the attacker did not start: exit {self._process.returncode}")
        return self

    def __exit__(self, *_exc: object) -> None:
        """End the attacker; the names are what they were."""
        try:
            self._process.communicate(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            raise
        finally:
            _give_back(*self._names, self._decoy_identity)  # In case that the attacker was killed.
        self._note_problem()

    @property
    def exchanges(self) -> int:
        """How many were made so far."""
        return int(self._cells[_COUNT])

    def rounds(self, *, exchanges: int, enough: Callable[[], bool] = lambda: True) -> Iterator[int]:
        """Number rounds until so many more exchanges were made; at least one.

        Args:
            exchanges: how many. They need not fall into a call: on a busy machine both sides take turns.
            enough: asked before each further round, whether the caller has seen what it needs to see.

        Raises:
            RuntimeError: the attacker ended; there will be no more exchanges.
        """
        done, until = 0, self.exchanges + exchanges
        while not done or self.exchanges < until or not enough():
            if self._process.poll() is not None:
                self._note_problem()
                raise RuntimeError(f"the attacker ended after {self.exchanges} exchanges: {self.problem}")
            yield done
            done += 1
            if self._alone:
                os.sched_yield()

    def _note_problem(self) -> None:
        if self._cells[_PROBLEM]:
            self.problem = f"cannot exchange: {errno.errorcode[self._cells[_PROBLEM]]}"
        elif self._process.returncode != 0:
            self.problem = f"exit {self._process.returncode}"


def make_decoy(place: Path, kind: DecoyKind, target: Path | str) -> Path:
    """Make what a name is exchanged with; `place`, for use in one expression.

    Args:
        place: where it waits; must not exist.
        kind: a FIFO has no target.
        target: where the link leads, or the file that gets a second name.

    Raises:
        KeyError: there is no such kind.
    """
    match kind:
        case "symlink":
            place.symlink_to(target)
        case "hardlink":
            place.hardlink_to(target)
        case "fifo":
            os.mkfifo(place, 0o600)
        case _:
            raise KeyError(kind)
    return place


def exchange(first: str, second: str) -> None:
    """Exchange two names atomically, whatever they are.

    Raises:
        OSError: as renameat2(2).
    """
    names = os.fsencode(first), os.fsencode(second)
    if _LIBC.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def attack(path: str, decoy: str, *, shared: int, ready: int, end: int) -> None:
    """The attacker: exchange until somebody hangs up, then give the names back.

    Args:
        path: as `Swap`.
        decoy: as `Swap`.
        shared: descriptor of the memory where exchanges are counted.
        ready: descriptor that is told once this is at work.
        end: descriptor of the pipe that ends it.
    """
    cells = memoryview(mmap.mmap(shared, _CELLS_BYTES)).cast("Q")
    alone, decoy_identity = _is_alone(), _identity(decoy)
    ended = select.poll()
    ended.register(end, select.POLLIN)
    os.write(ready, _READY)
    turn = 0
    while turn % _TURNS_BETWEEN_LOOKS or not ended.poll(0):
        turn += 1
        try:
            exchange(path, decoy)
        except FileNotFoundError:
            continue  # The attacked program is just replacing the name.
        except OSError as error:
            cells[_PROBLEM] = error.errno or errno.EIO
            break
        cells[_COUNT] += 1
        if alone:
            os.sched_yield()
    _give_back(path, decoy, decoy_identity)


def _give_back(path: str, decoy: str, decoy_identity: tuple[int, int] | None) -> None:
    if _identity(path) == decoy_identity:
        exchange(path, decoy)


def _identity(path: Path | str) -> tuple[int, int] | None:
    with suppress(FileNotFoundError):
        info = os.lstat(path)
        return info.st_dev, info.st_ino
    return None


def _is_alone() -> bool:
    return len(os.sched_getaffinity(0)) == 1


if __name__ == "__main__":
    attack(sys.argv[2], sys.argv[3], shared=int(sys.argv[1]), ready=1, end=0)
