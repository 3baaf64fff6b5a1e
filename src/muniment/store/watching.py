"""How the roots of a process that stays are looked at: once whole, then only where the system says so.

The first look at a root asks every directory, and every file where these are few or nobody did so within
`SWEEP_SECONDS`. Whoever looks again has its directories watched (inotify), so that a look costs the same in a
memory of any size, and finds edits in place too.

- W1. A watched look finds what one at every directory and file would find, for all that this system did to
  them by their names here. Directories are watched before they are looked at, so that nothing falls in
  between.
- W2. What was told by the system is kept until its rows are right: a look that fails loses nothing.
- W3. Where the system has no watch left, or lost count, every directory is asked, as at the first look.
- W4. Behind both, every file is asked at most once in `SWEEP_SECONDS`, beside the caller: what a mapping
  wrote, another machine, or somebody by another name of the file, no watch tells.

Threads may share one; a look waits for that of another thread. It ends before the roots are closed that it
looks at, and looks in the process that made it: a child would take what its parent is told.

Source: inotify(7), "Limitations and caveats".
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final, cast

from muniment import events
from muniment.cancelling import Cancel
from muniment.errors import Cancelled, MunimentError, NotFound, PathEscape
from muniment.kernel.binding import BoundRoot
from muniment.kernel.cancel import Patience
from muniment.kernel.decide import Policy
from muniment.kernel.listing import OpenDirectory
from muniment.kernel.names import RelPath
from muniment.kernel.path import CanonicalPath
from muniment.kernel.root import Root
from muniment.portable import IS_LINUX
from muniment.store.catalog import Look, View
from muniment.store.database import held
from muniment.store.ledger import root_key
from muniment.store.state import State
from muniment.store.upkeep import view_as_it_is, view_in_time, view_of
from muniment.store.visit import Stale

SWEEP_SECONDS: Final = 60
"""Seconds between two looks at every file; each costs some 5 µs of CPU a file."""

FEW_FILES: Final = 2_000
"""Files that a new process looks at in any case: some 10 ms, of the 400 that it takes to start."""

MAX_WATCHED: Final = 20_000
"""Directories of one root that are watched, some 15 µs each, once; a kernel holds 1 KB for each."""

_EVENT: Final = struct.Struct("iIII")
_READ_BYTES: Final = 1 << 16
_CHANGES: Final = 0x2 | 0x4 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800
"""IN_MODIFY, ATTRIB, MOVED_FROM, MOVED_TO, CREATE, DELETE, DELETE_SELF, MOVE_SELF."""
_ONLY_DIRECTORIES: Final = 0x01000000
_LOST_COUNT: Final = 0x4000  # IN_Q_OVERFLOW
_IGNORED: Final = 0x8000
_NO_LONGER: Final = 0x400 | 0x800 | _IGNORED  # IN_DELETE_SELF, IN_MOVE_SELF
_OF_DIRECTORY: Final = 0x40000000  # IN_ISDIR

MAX_ROOTS: Final = 16
"""Roots of a process that are watched: a system lets all programs of a user together have some 128."""

WATCHED_FROM: Final = 6
"""Looks from which on those who write are told what changed: whoever commits thrice stays."""

_Id = tuple[str, int, int]
"""Of a directory that is watched: the key of its root, device and inode."""


class Watch:
    """Watched directories of one root. Belongs to one thread at a time; close it when done.

    Raises:
        OSError: the system has none left, or none at all: Linux alone has inotify.
    """

    def __init__(self) -> None:
        if not IS_LINUX:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = _checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._paths: dict[int, str] = {}
        self._numbers: dict[str, int] = {}

    def follow(self, root: Root, directories: Collection[str]) -> list[str]:
        """Watch these directories and no others; those that were not watched before.

        What is no directory beneath the root any more is passed over: whoever holds it tells of that.

        Raises:
            OSError: the system watches no more.
        """
        self._drop(self._numbers.keys() - directories)
        new = sorted(directories - self._numbers.keys())
        if len(self._numbers) + len(new) > MAX_WATCHED:
            raise OSError("more directories than are watched")
        for path in new:
            where = CanonicalPath(root.scope, RelPath(path))
            try:
                opened = OpenDirectory(root, where)
            except (PathEscape, NotFound):
                continue
            except MunimentError as error:  # What changes in it would be told to nobody.
                raise OSError(str(error)) from error
            with opened:
                # By its descriptor: a name could lead elsewhere by now.
                name = f"/proc/self/fd/{opened.fd}".encode()
                number = _checked(self._libc.inotify_add_watch(self._fd, name, _CHANGES | _ONLY_DIRECTORIES))
                if number in self._paths:  # It was moved here, and has its number still.
                    del self._numbers[self._paths[number]]
                self._paths[number], self._numbers[path] = path, number
        return [path for path in new if path in self._numbers]

    def changed(self) -> dict[str, set[str] | None] | None:
        """What changed since the last time; None: the system lost count.

        What left its path is watched no more, with all beneath; likewise everything where count was lost.

        Returns:
            The names that changed in a directory; None where it changed itself, or a directory in it.
        """
        found: dict[str, set[str] | None] = {}
        left: set[str] = set()
        while True:
            try:
                data = os.read(self._fd, _READ_BYTES)
            except BlockingIOError:
                if left:
                    self._drop(path for path in self._numbers if not left.isdisjoint(_path_and_parents(path)))
                return found
            at = 0
            while at < len(data):
                number, mask, _, length = _EVENT.unpack_from(data, at)
                name = data[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0")
                at += _EVENT.size + length
                if mask & _LOST_COUNT:
                    self._drop(self._numbers)
                    return None
                if number not in self._paths:
                    continue
                is_whole = mask & _OF_DIRECTORY or not name
                told = None if is_whole else {name.decode("utf-8", "surrogateescape")}
                _add(found, self._paths[number], told)
                if mask & _NO_LONGER:
                    left.add(self._paths[number])

    def _drop(self, paths: Iterable[str]) -> None:
        """Watch some directories no more; what stands at their paths is watched anew by the next `follow`."""
        for path in list(paths):
            number = self._numbers.pop(path)
            del self._paths[number]
            self._libc.inotify_rm_watch(self._fd, number)  # Harmless where the system did so itself.

    def close(self) -> None:
        """Watch nothing; harmless when repeated."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _path_and_parents(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path.rpartition("/")[0]


def _add(found: dict[str, set[str] | None], directory: str, names: set[str] | None) -> None:
    """Put names with those of a directory that are there already; None: it is to be listed whole."""
    before = found.get(directory, set())
    found[directory] = None if before is None or names is None else before | names


class WatchedRoot(Look):
    """Says where to look in a root: everywhere at first, then by a watch if the system gives one.

    Attributes:
        lock: held while the root is looked at.
        looks: how many there were.
        patience: of the look that is under way.
        pending: directories that are to be looked at (W2).
        swept: second at which every file was asked last; None: not yet.
    """

    def __init__(self) -> None:
        super().__init__()
        self._watch: Watch | None = None
        self._is_unwatchable = self._is_sweep = False
        self._is_whole = False  # All are watched, and were looked at since (W1).
        self.lock: threading.RLock = threading.RLock()
        self.looks = 0
        self.patience = Patience(float("inf"))
        self.pending: dict[str, set[str] | None] = {}
        self.swept: float | None = None

    @property
    def is_told(self) -> bool:
        """See `Look`."""
        return self._is_whole

    def begin_anew(self) -> None:
        """See `Look`."""
        self._is_whole = False

    def stale(self, view: View) -> Stale:
        """Where something changed since the last look, by the watch or by a look everywhere."""
        if self.looks == 1:
            return dict.fromkeys(self._first(view))
        try:
            if self._watch is None and not self._is_unwatchable:
                self._watch = Watch()
            if self._watch is not None:
                self._ask(self._watch, view)
        except OSError:
            self._give_up(view)
        self.add(view.unproven() if self._is_whole else view.stale())
        return dict(self.pending)

    def _first(self, view: View) -> Collection[str]:
        """Where directories tell of a change; or files too, if these are few or were long not asked."""
        is_large = view.usage().files > FEW_FILES
        self._is_sweep = is_large and not view.is_swept(SWEEP_SECONDS)
        if is_large and not self._is_sweep:
            return view.stale()
        return {*view.stale(), *view.edited(self.patience)}

    def add(self, directories: Collection[str]) -> None:
        """Have directories listed at the next look."""
        self.pending |= dict.fromkeys(directories)

    def has_done(self, view: View, listed: Stale) -> bool:
        """Told what was looked at; False: there are new directories, which were not watched meanwhile."""
        if self.looks == 1:
            if self._is_sweep:
                view.note_sweep()
            return True
        for directory in listed:
            self.pending.pop(directory, None)
        if self._watch is not None and None in listed.values():
            try:
                self.add(self._watch.follow(view.root, {"", *view.directories()}))
            except OSError:
                self._give_up(view)
        return not self.pending

    def close(self) -> None:
        """Watch nothing any more; harmless when repeated."""
        if self._watch is not None:
            self._watch.close()
        self._watch, self._is_unwatchable, self._is_whole = None, True, False

    def _give_up(self, view: View) -> None:
        """Look everywhere from now on (W3)."""
        self.close()
        events.emit("memory_not_watched", scope=view.scope)

    def _ask(self, watch: Watch, view: View) -> None:
        """What is to be looked at, by what the system tells; once it lost count, by a look at all (W1)."""
        changed = watch.changed()
        self._is_whole &= changed is not None
        for directory, names in (changed or {}).items():
            _add(self.pending, directory, names)
        if not self._is_whole:
            watch.follow(view.root, {"", *view.directories()})
            self.add({*view.stale(), *view.edited(self.patience)})
            self._is_whole = True


class Looks:
    """Looks at the roots of a state, for all in a process. Threads may share it; the state closes it.

    Args:
        state: whose catalog; stays the caller's, as the roots do.
        clock: monotonic seconds.
    """

    def __init__(self, state: State, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._state, self._clock = state, clock
        self._lock = threading.Lock()
        self._watched: dict[_Id, WatchedRoot] = {}
        self._sweeping: threading.Thread | None = None
        self._cancel: Cancel | None = None
        self._is_closed = False

    def view(self, root: BoundRoot, policy: Policy, patience: Patience) -> View:
        """The rows of a root, brought up to date as far as there was time (`upkeep.view_in_time`).

        Args:
            root: which.
            policy: says how files are trusted and kept.
            patience: until when to look.

        Raises:
            ManagedMemoryUnavailable: the state cannot be used.
            Cancelled, DeadlineExceeded: the patience ended.

        Cost: watched, some 50 µs where nothing changed; else a `newfstatat` a directory.
        """
        watched = self._watched_of(root)
        with held(watched.lock, patience):
            if self._is_closed:
                watched.close()
            watched.looks += 1
            view = self._looked(watched, root, policy, patience)
            if watched.swept is None or self._clock() - watched.swept >= SWEEP_SECONDS:
                if watched.looks > 1:
                    self._sweep_beside(watched, root, policy)
                watched.swept = self._clock()
        return view

    def whole_view(self, root: BoundRoot, policy: Policy) -> View:
        """The rows of a root, brought up to date whole (`upkeep.view_of`), for who is about to write.

        Raises:
            ManagedMemoryUnavailable: the state cannot be used.
        """
        watched = self._watched_of(root)
        with watched.lock:
            watched.looks += 1
            watched.patience = Patience(float("inf"))
            is_told = watched.looks > WATCHED_FROM and not self._is_closed
            return view_of(self._state, root, policy, look=watched if is_told else None)

    def _watched_of(self, root: BoundRoot) -> WatchedRoot:
        of = (root_key(self._state, root), root.device, root.inode)
        with self._lock:
            if of not in self._watched:
                self._watched[of] = WatchedRoot()
                if len(self._watched) > MAX_ROOTS:
                    self._watched[of].close()
            return self._watched[of]

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

    def _looked(self, watched: WatchedRoot, root: BoundRoot, policy: Policy, patience: Patience) -> View:
        watched.patience = patience
        return view_in_time(self._state, root, policy, patience, watched)

    def _sweep_beside(self, watched: WatchedRoot, root: BoundRoot, policy: Policy) -> None:
        """Begin a sweep, unless one runs; where the system has no thread for it, later."""
        with self._lock:
            if self._is_closed or (self._sweeping is not None and self._sweeping.is_alive()):
                return
            try:
                self._cancel = self._cancel or Cancel()
                patience = Patience(float("inf"), self._cancel)
                self._sweeping = threading.Thread(
                    target=self._sweep,
                    args=(watched, root, policy, patience),
                    name="recall-sweep",
                    daemon=True,
                )
                self._sweeping.start()
            except (OSError, RuntimeError):
                self._sweeping = None

    def _sweep(self, watched: WatchedRoot, root: BoundRoot, policy: Policy, patience: Patience) -> None:
        """Ask every directory and file (W4), while others look; then have done with what was found."""
        try:
            view = view_as_it_is(self._state, root, policy)
            found = {*view.stale(), *view.edited(patience)}
            if found:
                with held(watched.lock, patience):
                    watched.add(found)
                    self._looked(watched, root, policy, patience)
            view.note_sweep()
        except MunimentError as error:
            if not isinstance(error, Cancelled):
                events.emit("memory_not_swept", scope=root.scope, code=error.code)


def looks_of(state: State) -> Looks:
    """Those that all in this process share who use a state; closed with it."""
    return cast("Looks", state.beside("looks", lambda: Looks(state)))


def _checked(number: int) -> int:
    """What a call of the C library returned.

    Raises:
        OSError: it failed.
    """
    if number < 0:
        problem = ctypes.get_errno()
        raise OSError(problem, os.strerror(problem))
    return number
