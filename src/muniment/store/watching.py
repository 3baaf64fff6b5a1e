"""Find changes in the roots of a long-running process: first by a full check, then by notifications.

The first check of a root reads every directory. It also checks every file, if there are few files, or if no
process did so within `SWEEP_SECONDS`. From the second check on, the directories are watched with inotify.
Then a check costs the same in a memory of any size, and also finds edits in place.

- W1. For changes that this system made by names under the root, a check with a watch finds everything that a
  full check would find. Directories are watched before they are read, so that no change is lost in between.
- W2. Notifications are stored until the rows are updated: a failed check loses none.
- W3. If the system has no watch left, or if its queue of notifications overflowed, every directory is
  checked, as at first.
- W4. In addition, every file is checked at most once in `SWEEP_SECONDS`, in a background thread. A watch does
  not report changes through a memory mapping, by another machine, or by another name of the file.

Threads may share a watcher; a check waits for the check of another thread. Close the watcher before the roots
that it reads. Use it only in the process that created it: a child process would receive its parent's
notifications.

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
from muniment.kernel.cancel import Deadline
from muniment.kernel.decide import Policy
from muniment.kernel.listing import OpenDirectory
from muniment.kernel.names import RelPath
from muniment.kernel.path import CanonicalPath
from muniment.kernel.root import Root
from muniment.portable import IS_LINUX
from muniment.store.catalog import ScanPlan, View
from muniment.store.database import acquire_lock
from muniment.store.ledger import get_root_key
from muniment.store.state import State
from muniment.store.upkeep import open_stale_view, open_view, open_view_in_time
from muniment.store.visit import StaleDirectories

SWEEP_SECONDS: Final = 60
"""Seconds between two checks of every file; a check costs about 5 µs of CPU per file."""

FEW_FILES: Final = 2_000
"""Maximum number of files that a new process always checks: this takes 10 ms of its 400 ms start."""

MAX_WATCHED_DIRECTORIES: Final = 20_000
"""Maximum number of watched directories of one root. Each costs about 15 µs once, and 1 KB of kernel memory.
"""

_EVENT: Final = struct.Struct("iIII")
_READ_BYTES: Final = 1 << 16
_CHANGES: Final = 0x2 | 0x4 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800
"""The reported changes: IN_MODIFY, ATTRIB, MOVED_FROM, MOVED_TO, CREATE, DELETE, DELETE_SELF, MOVE_SELF."""
_ONLY_DIRECTORIES: Final = 0x01000000
_OVERFLOW: Final = 0x4000  # IN_Q_OVERFLOW
_IGNORED: Final = 0x8000
_MOVED_AWAY: Final = 0x400 | 0x800 | _IGNORED  # IN_DELETE_SELF, IN_MOVE_SELF
_OF_DIRECTORY: Final = 0x40000000  # IN_ISDIR

MAX_ROOTS: Final = 16
"""Maximum number of watched roots of a process. A system allows about 128 for all programs of a user."""

MIN_CHECKS_TO_WATCH: Final = 6
"""Number of checks by a process that writes, after which it watches the root.

A process that commits three times probably keeps running.
"""

_Id = tuple[str, int, int]
"""Identity of a watched root: the key of the root, and device and inode of its directory."""


class Watch:
    """Watches the directories of one root with inotify. Used by one thread at a time; close it after use.

    Raises:
        OSError: the system has no watch left, or is not Linux: only Linux has inotify.
    """

    def __init__(self) -> None:
        if not IS_LINUX:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = _check_result(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._paths: dict[int, str] = {}
        self._numbers: dict[str, int] = {}

    def watch(self, root: Root, directories: Collection[str]) -> list[str]:
        """Watch exactly the given directories of a root; return those that were not watched before.

        A path that is no longer a directory under the root is skipped: its parent directory reports the
        change.

        Args:
            root: handle of the root.
            directories: paths inside the scope.

        Raises:
            OSError: the system accepts no more watches.
        """
        self._unwatch(self._numbers.keys() - directories)
        new = sorted(directories - self._numbers.keys())
        if len(self._numbers) + len(new) > MAX_WATCHED_DIRECTORIES:
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
                number = _check_result(
                    self._libc.inotify_add_watch(self._fd, name, _CHANGES | _ONLY_DIRECTORIES)
                )
                if number in self._paths:  # It was moved here, and still has its number.
                    del self._numbers[self._paths[number]]
                self._paths[number], self._numbers[path] = path, number
        return [path for path in new if path in self._numbers]

    def read_changes(self) -> dict[str, set[str] | None] | None:
        """Return the changes since the last call; None if the queue of the system overflowed.

        If a directory was moved or removed, it is no longer watched, and neither is everything under it.
        After an overflow no directory is watched.

        Returns:
            For each changed directory: the names that changed in it, or None if the directory itself or a
            directory in it changed.
        """
        found: dict[str, set[str] | None] = {}
        moved: set[str] = set()
        while True:
            try:
                data = os.read(self._fd, _READ_BYTES)
            except BlockingIOError:
                if moved:
                    self._unwatch(
                        path for path in self._numbers if not moved.isdisjoint(_iterate_parents(path))
                    )
                return found
            position = 0
            while position < len(data):
                number, mask, _, length = _EVENT.unpack_from(data, position)
                name = data[position + _EVENT.size : position + _EVENT.size + length].rstrip(b"\0")
                position += _EVENT.size + length
                if mask & _OVERFLOW:
                    self._unwatch(self._numbers)
                    return None
                if number not in self._paths:
                    continue
                is_whole = mask & _OF_DIRECTORY or not name
                names_changed = None if is_whole else {name.decode("utf-8", "surrogateescape")}
                _merge_names(found, self._paths[number], names_changed)
                if mask & _MOVED_AWAY:
                    moved.add(self._paths[number])

    def _unwatch(self, paths: Iterable[str]) -> None:
        """Stop watching some directories. A later call of `watch` may watch the same paths again."""
        for path in list(paths):
            number = self._numbers.pop(path)
            del self._paths[number]
            self._libc.inotify_rm_watch(self._fd, number)  # Harmless if the system already removed it.

    def close(self) -> None:
        """Stop watching all directories; more calls have no effect."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _iterate_parents(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path.rpartition("/")[0]


def _merge_names(found: dict[str, set[str] | None], directory: str, names: set[str] | None) -> None:
    """Add changed names to those of a directory in `found`. None means that the directory must be listed."""
    before = found.get(directory, set())
    found[directory] = None if before is None or names is None else before | names


class WatchedRoot(ScanPlan):
    """Finds the changes of one root: at first by full checks, then by a watch if the system provides one.

    Attributes:
        lock: held while the root is checked.
        check_count: number of checks so far.
        deadline: deadline of the current check.
        pending: directories to read, with the names that changed in each, or None if it must be listed.
        swept_at: monotonic seconds when every file was checked last; None: not yet.
    """

    def __init__(self) -> None:
        super().__init__()
        self._watch: Watch | None = None
        self._is_unwatchable = self._is_sweep = False
        self._is_complete = False  # All are watched, and were read since (W1).
        self.lock: threading.RLock = threading.RLock()
        self.check_count = 0
        self.deadline = Deadline(float("inf"))
        self.pending: dict[str, set[str] | None] = {}
        self.swept_at: float | None = None

    @property
    def is_notified(self) -> bool:
        """Return whether all directories are watched, so that the system reports all changes."""
        return self._is_complete

    def mark_all_stale(self) -> None:
        """Note that all directories must be checked again."""
        self._is_complete = False

    def find_stale(self, view: View) -> StaleDirectories:
        """Return the directories that changed since the last check, from the watch or from a full check."""
        if self.check_count == 1:
            return dict.fromkeys(self._find_first(view))
        try:
            if self._watch is None and not self._is_unwatchable:
                self._watch = Watch()
            if self._watch is not None:
                self._collect_changes(self._watch, view)
        except OSError:
            self._stop_watching(view)
        self.add_pending(view.find_unlisted() if self._is_complete else view.find_stale())
        return dict(self.pending)

    def _find_first(self, view: View) -> Collection[str]:
        """Return the changed directories for the first check of a root.

        It also checks the files, if there are few, or if no process checked them within `SWEEP_SECONDS`.
        """
        is_large = view.usage().files > FEW_FILES
        self._is_sweep = is_large and not view.is_swept(SWEEP_SECONDS)
        if is_large and not self._is_sweep:
            return view.find_stale()
        return {*view.find_stale(), *view.find_edited(self.deadline)}

    def add_pending(self, directories: Collection[str]) -> None:
        """Add directories that the next check must list."""
        self.pending |= dict.fromkeys(directories)

    def confirm_scanned(self, view: View, scanned: StaleDirectories) -> bool:
        """Note that directories were read; return False if there are more to read.

        Args:
            view: the view whose rows were updated.
            scanned: the directories that were read.
        """
        if self.check_count == 1:
            if self._is_sweep:
                view.record_sweep()
            return True
        for directory in scanned:
            self.pending.pop(directory, None)
        if self._watch is not None and None in scanned.values():
            try:
                self.add_pending(self._watch.watch(view.root, {"", *view.directories()}))
            except OSError:
                self._stop_watching(view)
        return not self.pending

    def close(self) -> None:
        """Stop watching the root, permanently; more calls have no effect."""
        if self._watch is not None:
            self._watch.close()
        self._watch, self._is_unwatchable, self._is_complete = None, True, False

    def _stop_watching(self, view: View) -> None:
        """Stop watching the root and log that; from now on check every directory."""
        self.close()
        events.emit("memory_not_watched", scope=view.scope)

    def _collect_changes(self, watch: Watch, view: View) -> None:
        """Add the changes that the watch reports to `pending`; after an overflow, those of a full check."""
        changed = watch.read_changes()
        self._is_complete &= changed is not None
        for directory, names in (changed or {}).items():
            _merge_names(self.pending, directory, names)
        if not self._is_complete:
            watch.watch(view.root, {"", *view.directories()})
            self.add_pending({*view.find_stale(), *view.find_edited(self.deadline)})
            self._is_complete = True


class CatalogWatcher:
    """The watched roots of a state, for all threads of a process. Closing the state closes it.

    Args:
        state: has the catalog; state and roots must stay open.
        clock: returns monotonic seconds.
    """

    def __init__(self, state: State, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._state, self._clock = state, clock
        self._lock = threading.Lock()
        self._watched: dict[_Id, WatchedRoot] = {}
        self._sweep_thread: threading.Thread | None = None
        self._cancel: Cancel | None = None
        self._is_closed = False

    def open_view(self, root: BoundRoot, policy: Policy, deadline: Deadline) -> View:
        """Return the view of a root, updated as far as time allows (`upkeep.open_view_in_time`).

        Args:
            root: the root.
            policy: defines the trust of the root's files, and how long entries are retained.
            deadline: limit of the update.

        Raises:
            ManagedMemoryUnavailable: the state cannot be used.
            Cancelled, DeadlineExceeded: `deadline` ended.

        Cost: with a watch, about 50 µs if nothing changed; otherwise one `newfstatat` for each directory.
        """
        watched = self._get_watched(root)
        with acquire_lock(watched.lock, deadline):
            if self._is_closed:
                watched.close()
            watched.check_count += 1
            view = self._update_view(watched, root, policy, deadline)
            if watched.swept_at is None or self._clock() - watched.swept_at >= SWEEP_SECONDS:
                if watched.check_count > 1:
                    self._start_sweep(watched, root, policy)
                watched.swept_at = self._clock()
        return view

    def open_current_view(self, root: BoundRoot, policy: Policy) -> View:
        """Return the completely updated view of a root, for a caller that is about to write.

        In contrast to `open_view`, the update has no time limit.

        Raises:
            ManagedMemoryUnavailable: the state cannot be used.
        """
        watched = self._get_watched(root)
        with watched.lock:
            watched.check_count += 1
            watched.deadline = Deadline(float("inf"))
            is_notified = watched.check_count > MIN_CHECKS_TO_WATCH and not self._is_closed
            return open_view(self._state, root, policy, scan_plan=watched if is_notified else None)

    def _get_watched(self, root: BoundRoot) -> WatchedRoot:
        of = (get_root_key(self._state, root), root.device, root.inode)
        with self._lock:
            if of not in self._watched:
                self._watched[of] = WatchedRoot()
                if len(self._watched) > MAX_ROOTS:
                    self._watched[of].close()
            return self._watched[of]

    def close(self) -> None:
        """Stop watching all roots, and end a running check of all files; more calls have no effect."""
        with self._lock:
            self._is_closed = True
            sweeping, cancel = self._sweep_thread, self._cancel
            self._sweep_thread = self._cancel = None
        if cancel is not None:
            cancel.set()
        if sweeping is not None:
            sweeping.join()
        if cancel is not None:
            cancel.close()
        for watched in self._watched.values():
            with watched.lock:
                watched.close()

    def _update_view(self, watched: WatchedRoot, root: BoundRoot, policy: Policy, deadline: Deadline) -> View:
        watched.deadline = deadline
        return open_view_in_time(self._state, root, policy, deadline, watched)

    def _start_sweep(self, watched: WatchedRoot, root: BoundRoot, policy: Policy) -> None:
        """Start checking all files in a background thread, unless such a thread is running.

        If no thread can be started, a later call starts it.
        """
        with self._lock:
            if self._is_closed or (self._sweep_thread is not None and self._sweep_thread.is_alive()):
                return
            try:
                self._cancel = self._cancel or Cancel()
                deadline = Deadline(float("inf"), self._cancel)
                self._sweep_thread = threading.Thread(
                    target=self._sweep,
                    args=(watched, root, policy, deadline),
                    name="recall-sweep",
                    daemon=True,
                )
                self._sweep_thread.start()
            except (OSError, RuntimeError):
                self._sweep_thread = None

    def _sweep(self, watched: WatchedRoot, root: BoundRoot, policy: Policy, deadline: Deadline) -> None:
        """Check every directory and file of a root, and update the rows of changed ones.

        Other threads can use the root during the check.
        """
        try:
            view = open_stale_view(self._state, root, policy)
            found = {*view.find_stale(), *view.find_edited(deadline)}
            if found:
                with acquire_lock(watched.lock, deadline):
                    watched.add_pending(found)
                    self._update_view(watched, root, policy, deadline)
            view.record_sweep()
        except MunimentError as error:
            if not isinstance(error, Cancelled):
                events.emit("memory_not_swept", scope=root.scope, code=error.code)


def get_watcher(state: State) -> CatalogWatcher:
    """Return the watcher of a state, which all threads of this process share; closing the state closes it."""
    return cast("CatalogWatcher", state.get_resource("watcher", lambda: CatalogWatcher(state)))


def _check_result(number: int) -> int:
    """Return the result of a call of the C library, unless it reports an error.

    Args:
        number: the result; negative after an error.

    Raises:
        OSError: the call failed.
    """
    if number < 0:
        problem = ctypes.get_errno()
        raise OSError(problem, os.strerror(problem))
    return number
