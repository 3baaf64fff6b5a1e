"""Find changes in the roots of a long-running process: a full check first, then notifications.

The first check of a root reads every directory, and every file if there are few, or if no process did so
within `SWEEP_SECONDS`. From the second check on, its directories are watched (inotify), so that a check costs
the same in a memory of any size, and finds edits in place also.

- W1. A check with a watch finds everything that a check of every directory and file would find, for changes
  that this system made by names under the root. Directories are watched before they are read, so that no
  change is lost in between.
- W2. Notifications are stored until the rows are updated: a failed check loses none.
- W3. If the system has no watch left, or if its queue overflowed, every directory is checked, as at first.
- W4. In addition, every file is checked at most once in `SWEEP_SECONDS`, in a background thread. A watch does
  not report changes through a mapping, by another machine, or by another name of the file.

Threads may share a watcher; a check waits for that of another thread. Close it before the roots that it
reads. Use it only in the process that created it: a child would receive its parent's notifications.

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
"""Seconds between two checks of every file; each costs about 5 µs of CPU per file."""

FEW_FILES: Final = 2_000
"""Files that a new process checks in any case: about 10 ms, of the 400 that it takes to start."""

MAX_WATCHED: Final = 20_000
"""Watched directories of one root, about 15 µs each, once; a kernel uses 1 KB for each."""

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
"""Watched roots of a process: a system allows about 128 for all programs of a user."""

WATCHED_FROM: Final = 6
"""Number of checks after which a writing process is notified: a process that commits three times keeps
running.
"""

_Id = tuple[str, int, int]
"""Identity of a watched directory: the key of its root, device and inode."""


class Watch:
    """Watched directories of one root. Used by one thread at a time; close it after use.

    Raises:
        OSError: the system has no watch left, or no inotify: only Linux has it.
    """

    def __init__(self) -> None:
        if not IS_LINUX:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = _checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._paths: dict[int, str] = {}
        self._numbers: dict[str, int] = {}

    def follow(self, root: Root, directories: Collection[str]) -> list[str]:
        """Watch exactly these directories; return the new ones.

        A path that is no longer a directory under the root is skipped: its parent directory reports the
        change.

        Raises:
            OSError: the system accepts no more watches.
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
            except MunimentError as error:  # Its changes would not be reported.
                raise OSError(str(error)) from error
            with opened:
                # By its descriptor: its name could be another directory by now.
                name = f"/proc/self/fd/{opened.fd}".encode()
                number = _checked(self._libc.inotify_add_watch(self._fd, name, _CHANGES | _ONLY_DIRECTORIES))
                if number in self._paths:  # It was moved here, and still has its number.
                    del self._numbers[self._paths[number]]
                self._paths[number], self._numbers[path] = path, number
        return [path for path in new if path in self._numbers]

    def changed(self) -> dict[str, set[str] | None] | None:
        """Return the changes since the last call; None if the queue of the system overflowed.

        A directory that left its path is no longer watched, with everything under it; after an overflow no
        directory is watched.

        Returns:
            The names that changed in a directory; None if it changed itself, or a directory in it.
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
        """Stop watching some directories; the next `follow` may watch their paths again."""
        for path in list(paths):
            number = self._numbers.pop(path)
            del self._paths[number]
            self._libc.inotify_rm_watch(self._fd, number)  # Harmless if the system already removed it.

    def close(self) -> None:
        """Stop watching everything; harmless when repeated."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _path_and_parents(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path.rpartition("/")[0]


def _add(found: dict[str, set[str] | None], directory: str, names: set[str] | None) -> None:
    """Merge names into those of a directory; None means that it must be listed."""
    before = found.get(directory, set())
    found[directory] = None if before is None or names is None else before | names


class WatchedRoot(Look):
    """The changes of a root: everything at first, then from a watch if the system provides one.

    Attributes:
        lock: held while the root is checked.
        looks: number of checks.
        patience: of the current check.
        pending: directories to read (W2).
        swept: second at which every file was checked last; None: not yet.
    """

    def __init__(self) -> None:
        super().__init__()
        self._watch: Watch | None = None
        self._is_unwatchable = self._is_sweep = False
        self._is_whole = False  # All are watched, and were read since (W1).
        self.lock: threading.RLock = threading.RLock()
        self.looks = 0
        self.patience = Patience(float("inf"))
        self.pending: dict[str, set[str] | None] = {}
        self.swept: float | None = None

    @property
    def is_told(self) -> bool:
        """Return whether all changes are reported; see `Look`."""
        return self._is_whole

    def begin_anew(self) -> None:
        """Mark everything to be read again; see `Look`."""
        self._is_whole = False

    def stale(self, view: View) -> Stale:
        """Return the directories that changed since the last check, from the watch or from a full check."""
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
        """Return the changed directories; check files also, if these are few or were not checked for long."""
        is_large = view.usage().files > FEW_FILES
        self._is_sweep = is_large and not view.is_swept(SWEEP_SECONDS)
        if is_large and not self._is_sweep:
            return view.stale()
        return {*view.stale(), *view.edited(self.patience)}

    def add(self, directories: Collection[str]) -> None:
        """Add directories to read at the next check."""
        self.pending |= dict.fromkeys(directories)

    def has_done(self, view: View, listed: Stale) -> bool:
        """Record that directories were read; return False if there are new, unwatched ones."""
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
        """Stop watching everything; harmless when repeated."""
        if self._watch is not None:
            self._watch.close()
        self._watch, self._is_unwatchable, self._is_whole = None, True, False

    def _give_up(self, view: View) -> None:
        """Check everything from now on (W3)."""
        self.close()
        events.emit("memory_not_watched", scope=view.scope)

    def _ask(self, watch: Watch, view: View) -> None:
        """Collect changes from the watch; after an overflow, from a full check (W1)."""
        changed = watch.changed()
        self._is_whole &= changed is not None
        for directory, names in (changed or {}).items():
            _add(self.pending, directory, names)
        if not self._is_whole:
            watch.follow(view.root, {"", *view.directories()})
            self.add({*view.stale(), *view.edited(self.patience)})
            self._is_whole = True


class Looks:
    """The watched roots of a state, for all threads of a process. The state closes it.

    Args:
        state: has the catalog; state and roots stay open.
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
        """Return the view of a root, updated as far as time allows (`upkeep.view_in_time`).

        Args:
            root: the root.
            policy: defines the trust of files, and how long they are retained.
            patience: limit of the update.

        Raises:
            ManagedMemoryUnavailable: the state cannot be used.
            Cancelled, DeadlineExceeded: `patience` ended.

        Cost: with a watch, about 50 µs if nothing changed; otherwise a `newfstatat` for each directory.
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
        """Return the completely updated view of a root (`upkeep.view_of`), for a caller that will write.

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
        """Stop watching everything, and end a running sweep; harmless when repeated."""
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
        """Start a sweep, unless one is running; if no thread can be started, leave it for later."""
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
        """Check every directory and file (W4) concurrently with other threads; then update their rows."""
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
    """Return the watcher that all users of a state in this process share; it is closed with the state."""
    return cast("Looks", state.beside("looks", lambda: Looks(state)))


def _checked(number: int) -> int:
    """Return the result of a call of the C library.

    Raises:
        OSError: the call failed.
    """
    if number < 0:
        problem = ctypes.get_errno()
        raise OSError(problem, os.strerror(problem))
    return number
