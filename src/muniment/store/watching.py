"""How the roots of a process that stays are looked at: once whole, then only where the system says so.

The first look at a root asks every directory, and every file where these are few or nobody did so within
`SWEEP_SECONDS`. Whoever looks again has its directories watched (inotify), so that a look costs the same in a
memory of any size, and finds edits in place too.

- W1. A watched look finds what one at every directory and file would find, for all that this system did to
  them. Directories are watched before they are looked at, so that nothing falls in between.
- W2. What was told by the system is kept until its rows are right: a look that fails loses nothing.
- W3. Where the system has no watch left, or lost count, every directory is asked, as at the first look.
- W4. Behind both, every file is asked at most once in `SWEEP_SECONDS`, beside the caller: what a mapping
  wrote, or another machine, no watch tells.

Threads may share one; a look waits for that of another thread.

Source: inotify(7), "Limitations and caveats".
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from muniment import events
from muniment.cancelling import Cancel
from muniment.errors import Cancelled, MunimentError
from muniment.kernel.binding import BoundRoot
from muniment.kernel.cancel import Patience
from muniment.kernel.decide import Policy
from muniment.kernel.names import RelPath
from muniment.kernel.path import CanonicalPath
from muniment.kernel.root import OpenDirectory, Root
from muniment.store.catalog import View
from muniment.store.ledger import root_key
from muniment.store.state import State
from muniment.store.upkeep import view_as_it_is, view_in_time

SWEEP_SECONDS: Final = 60
"""Seconds between two looks at every file; each costs some 5 µs of CPU a file."""

FEW_FILES: Final = 2_000
"""Files that a new process looks at in any case: some 10 ms, of the 400 that it takes to start."""

MAX_WATCHED: Final = 20_000
"""Directories of one root that are watched, some 15 µs each, once; a kernel holds 1 KB for each."""

_EVENT: Final = struct.Struct("iIII")
_READ_BYTES: Final = 1 << 16
_PAUSE: Final = 0.05
_CHANGES: Final = 0x2 | 0x4 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800
"""IN_MODIFY, ATTRIB, MOVED_FROM, MOVED_TO, CREATE, DELETE, DELETE_SELF, MOVE_SELF."""
_ONLY_DIRECTORIES: Final = 0x01000000
_LOST_COUNT: Final = 0x4000  # IN_Q_OVERFLOW

_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class Watch:
    """Watched directories of one root. Belongs to one thread at a time; close it when done.

    Raises:
        OSError: the system has none left.
    """

    def __init__(self) -> None:
        self._fd = _checked(_LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._paths: dict[int, str] = {}
        self._numbers: dict[str, int] = {}

    def follow(self, root: Root, directories: Collection[str]) -> list[str]:
        """Watch these directories and no others; those that were not watched before.

        What is no directory beneath the root any more is passed over: whoever holds it tells of that.

        Raises:
            OSError: the system watches no more.
        """
        for path in self._numbers.keys() - directories:
            number = self._numbers.pop(path)
            if self._paths.get(number) == path:
                del self._paths[number]
                _LIBC.inotify_rm_watch(self._fd, number)
        new = sorted(directories - self._numbers.keys())
        if len(self._numbers) + len(new) > MAX_WATCHED:
            raise OSError("more directories than are watched")
        for path in new:
            where = CanonicalPath(root.scope, RelPath(path))
            with suppress(MunimentError), OpenDirectory(root, where) as opened:
                # By its descriptor: a name could lead elsewhere by now.
                name = f"/proc/self/fd/{opened.fd}".encode()
                number = _checked(_LIBC.inotify_add_watch(self._fd, name, _CHANGES | _ONLY_DIRECTORIES))
                self._paths[number], self._numbers[path] = path, number
        return new

    def changed(self) -> set[str] | None:
        """The directories in which anything changed since the last time; None: the system lost count."""
        found: set[str] = set()
        while True:
            try:
                data = os.read(self._fd, _READ_BYTES)
            except BlockingIOError:
                return found
            at = 0
            while at < len(data):
                number, mask, _, length = _EVENT.unpack_from(data, at)
                at += _EVENT.size + length
                if mask & _LOST_COUNT:
                    return None
                if number in self._paths:
                    found.add(self._paths[number])

    def close(self) -> None:
        """Watch nothing; harmless when repeated."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class WatchedRoot:
    """Says where to look in a root (a `catalog.Look`): by a watch if the system gives one, else everywhere.

    Belongs to one thread at a time, see `lock`; close it when done.

    Args:
        root: its handle.

    Attributes:
        lock: held while the root is looked at.
        looks: how many there were.
        patience: of the look that is under way.
        pending: directories that are to be listed (W2).
        swept: second at which every file was asked last; None: not yet.
    """

    def __init__(self, root: Root) -> None:
        self._root = root
        self._watch: Watch | None = None
        self._is_unwatchable = False
        self._is_whole = False  # All are watched, and were looked at since (W1).
        self.lock = threading.Lock()
        self.looks = 0
        self.patience = Patience(float("inf"))
        self.pending: set[str] = set()
        self.swept: float | None = None

    @property
    def is_watched(self) -> bool:
        """Whether the system tells what changes."""
        return self._watch is not None

    def stale(self, view: View) -> Collection[str]:
        """Where something changed since the last look, by the watch or by a look everywhere."""
        try:
            if self._watch is None and not self._is_unwatchable:
                self._watch = Watch()
            if self._watch is not None:
                self._ask(self._watch, view)
        except OSError:
            self._give_up()
        return self.pending | set(view.unproven() if self._is_whole else view.stale())

    def has_done(self, view: View, listed: Collection[str]) -> bool:
        """Told what was listed; False: there are new directories, which were not watched meanwhile."""
        self.pending -= set(listed)
        if self._watch is not None and listed:
            try:
                self.pending.update(self._watch.follow(self._root, {"", *view.directories()}))
            except OSError:
                self._give_up()
        return not self.pending

    def close(self) -> None:
        """Watch nothing any more; harmless when repeated."""
        if self._watch is not None:
            self._watch.close()
        self._watch, self._is_unwatchable, self._is_whole = None, True, False

    def _give_up(self) -> None:
        """Look everywhere from now on (W3)."""
        self.close()
        events.emit("memory_not_watched", scope=self._root.scope)

    def _ask(self, watch: Watch, view: View) -> None:
        """What is to be listed, by what the system tells; once it lost count, by a look at all (W1)."""
        changed = watch.changed()
        self._is_whole &= changed is not None
        self.pending |= changed or set()
        if not self._is_whole:
            watch.follow(self._root, {"", *view.directories()})
            self.pending.update(view.stale(), view.edited(self.patience))
            self._is_whole = True


class Looks:
    """Looks at roots. Close it when done.

    Args:
        state: whose catalog; stays the caller's, as the roots do.
        policy: says how files are trusted and kept.
        clock: monotonic seconds.
    """

    def __init__(self, state: State, policy: Policy, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._state, self._policy, self._clock = state, policy, clock
        self._lock = threading.Lock()
        self._watched: dict[str, WatchedRoot] = {}
        self._sweeping: threading.Thread | None = None
        self._cancel: Cancel | None = None
        self._is_closed = False

    def view(self, root: BoundRoot, patience: Patience) -> View:
        """The rows of a root, brought up to date as far as there was time (`upkeep.view_in_time`).

        Raises:
            ManagedMemoryUnavailable: the state cannot be used.
            Cancelled, DeadlineExceeded: the patience ended.

        Cost: watched, some 50 µs where nothing changed; else a `newfstatat` a directory.
        """
        with self._lock:
            watched = self._watched.setdefault(root_key(self._state, root), WatchedRoot(root.root))
        with _held(watched.lock, patience):
            if self._is_closed:
                watched.close()
            watched.looks += 1
            is_first = watched.looks == 1
            view = self._looked(watched, root, patience, is_first=is_first)
            if watched.swept is None or self._clock() - watched.swept >= SWEEP_SECONDS:
                if not is_first:
                    self._sweep_beside(watched, root)
                watched.swept = self._clock()
        return view

    def close(self) -> None:
        """Watch nothing any more, and end a sweep that runs; harmless when repeated."""
        with self._lock:
            self._is_closed = True
            sweeping, cancel = self._sweeping, self._cancel
            self._sweeping = self._cancel = None
        if cancel is not None:
            cancel.set()
        if sweeping is not None:
            sweeping.join()
        if cancel is not None:
            cancel.close()
        for watched in self._watched.values():
            with watched.lock:
                watched.close()

    def _looked(self, watched: WatchedRoot, root: BoundRoot, patience: Patience, *, is_first: bool) -> View:
        watched.patience = patience
        look = _FirstLook(patience) if is_first else watched
        return view_in_time(self._state, root, self._policy, patience, look)

    def _sweep_beside(self, watched: WatchedRoot, root: BoundRoot) -> None:
        """Begin a sweep, unless one runs; where the system has no thread for it, later."""
        with self._lock:
            if self._is_closed or (self._sweeping is not None and self._sweeping.is_alive()):
                return
            try:
                self._cancel = self._cancel or Cancel()
                patience = Patience(float("inf"), self._cancel)
                self._sweeping = threading.Thread(
                    target=self._sweep, args=(watched, root, patience), name="recall-sweep", daemon=True
                )
                self._sweeping.start()
            except (OSError, RuntimeError):
                self._sweeping = None

    def _sweep(self, watched: WatchedRoot, root: BoundRoot, patience: Patience) -> None:
        """Ask every directory and file (W4), while others look; then have done with what was found."""
        try:
            view = view_as_it_is(self._state, root, self._policy)
            found = {*view.stale(), *view.edited(patience)}
            if found:
                with _held(watched.lock, patience):
                    watched.pending |= found
                    self._looked(watched, root, patience, is_first=False)
            view.note_sweep()
        except MunimentError as error:
            if not isinstance(error, Cancelled):
                events.emit("memory_not_swept", scope=root.scope, code=error.code)


class _FirstLook:
    """At every directory; at every file, where these are few or nobody did so lately."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._is_sweep = False

    def stale(self, view: View) -> Collection[str]:
        stale, is_large = view.stale(), view.usage().files > FEW_FILES
        if is_large and view.is_swept(SWEEP_SECONDS):
            return stale
        self._is_sweep = is_large
        return {*stale, *view.edited(self._patience)}

    def has_done(self, view: View, _listed: Collection[str]) -> bool:
        if self._is_sweep:
            view.note_sweep()
        return True


@contextmanager
def _held(lock: threading.Lock, patience: Patience) -> Iterator[None]:
    """Hold a lock; raises what the patience does."""
    while not lock.acquire(timeout=_PAUSE):
        patience.check()
    try:
        yield
    finally:
        lock.release()


def _checked(number: int) -> int:
    """What a call of the C library returned.

    Raises:
        OSError: it failed.
    """
    if number < 0:
        problem = ctypes.get_errno()
        raise OSError(problem, os.strerror(problem))
    return number
