"""The working copy of a home on a node: files and catalog, created from the ledger, never the only copy.

W1 A reader finds at least the changes that were done when it began. An outdated copy is updated. A copy that
   may contain data that the ledger lacks is deleted and rebuilt.
W2 Only the holder of the home's lease changes the memory. If some of its changes are not done according to
   the ledger, the copy is deleted.
W3 Erased data is in no copy: a copy from before the erasure is deleted, with text and catalog.
W4 The mark of a complete copy exists on disk only while no process changes the copy, and is valid only until
   the next boot. So a copy that a process or a power failure left incomplete is not used again.
W5 If the ledger does not record the bytes of a file at its path (`store.ledger.is_current`), the file is
   never recalled, and never committed. A copy with such a file, or with a missing file, is deleted and
   rebuilt: at a read if directories or a watch report the change, and always before the home is changed.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from muniment import events
from muniment.agent.model_settings import OnModelFailure
from muniment.errors import (
    ManagedMemoryUnavailable,
    MunimentError,
    PathEscape,
    Refusal,
    StoreConflict,
    ToolError,
)
from muniment.fleet import copy_files, lease
from muniment.fleet.postgres import HomeLedger
from muniment.kernel.binding import bind_all
from muniment.kernel.cancel import Deadline
from muniment.kernel.change import digest
from muniment.kernel.decide import Policy
from muniment.names import Symlinks
from muniment.operations.job_context import JobContext
from muniment.policy.ownership import create_private_directory
from muniment.server.work import Workspace
from muniment.store.database import acquire_lock, convert_errors
from muniment.store.index_upkeep import has_foreign_index
from muniment.store.recovery import recover_roots
from muniment.store.rows import Embedder
from muniment.store.state import CopyPosition, SharedLedger, State
from muniment.store.trust import UNKNOWN_BYTES
from muniment.store.upkeep import open_view
from muniment.store.watching import get_watcher

MARK_NAME: Final = "whole"
"""Name of the mark, a file with the position of a copy. It exists only while the copy is complete."""

MEMORY_NAME: Final = "memory"
"""Name of the directory in a copy that contains its roots, each named after its scope."""

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.2


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """Options that all working copies of a node share.

    Attributes:
        policy: policy of every home.
        node: name of the node, for leases.
        seconds: duration of a lease.
        symlinks, on_model_failure: as in `JobContext`.
        embedder: as in `State`.
    """

    policy: Policy
    node: str
    seconds: float = lease.LEASE_SECONDS
    symlinks: Symlinks = Symlinks.REFUSE
    on_model_failure: OnModelFailure = "rules"
    embedder: Embedder | None = None


@dataclass(slots=True)
class OpenCopy:
    """A working copy that is open.

    Attributes:
        workspace: the workspace of the copy.
        context: policy, roots and state of the copy.
        position: position of the ledger up to which the copy is complete. If its number is greater than that
            of the ledger, the ledger has lost commits.
    """

    workspace: Workspace
    context: JobContext
    position: CopyPosition

    @property
    def state(self) -> State:
        """Return the state of the copy."""
        return self.context.state

    def close(self) -> None:
        """Close the state and the roots of the copy."""
        self.state.close()  # First, because it watches the roots.
        self.workspace.close()


class WorkingCopy:
    """The copy of one home on this node. Threads may share it.

    Args:
        directory: directory for this copy only; created if it is missing, deleted if the copy is useless.
        ledger: ledger of the home.
        key: key of the home.
        options: options of the node.

    Attributes:
        is_spoiled: the copy will be deleted when no thread uses it.
    """

    def __init__(self, directory: Path, ledger: HomeLedger, key: bytes, options: CopyOptions) -> None:
        self.directory, self._ledger, self._key, self._options = directory, ledger, key, options
        self._update_lock = threading.Lock()  # Held to open, update or delete the copy.
        self._condition = threading.Condition()  # Protects the attributes below.
        self._opened: OpenCopy | None = None
        self._users = self._lease_users = 0
        self._lease_epoch: int | None = None
        self.is_spoiled, self._failures = False, 0

    @property
    def leased_ledger(self) -> HomeLedger | None:
        """Return the ledger with the epoch of this node's lease, or None if this node has no lease."""
        epoch = self._lease_epoch
        return None if epoch is None else self._ledger.with_epoch(epoch)

    @property
    def is_open(self) -> bool:
        """Return whether the copy has open descriptors."""
        return self._opened is not None

    @property
    def is_idle(self) -> bool:
        """Return whether no thread uses the copy."""
        with self._condition:
            return not self._users and not self._lease_users

    @contextmanager
    def open_for_reading(self, deadline: Deadline) -> Iterator[OpenCopy]:
        """Provide the copy for the duration of the block, with at least all current changes of the ledger.

        Args:
            deadline: time limit for updating the copy.

        Raises:
            ManagedMemoryUnavailable: the database does not respond, the home does not exist, or the disk
                fails.
            DeadlineExceeded, Cancelled: another thread takes too long to update the copy.
        """
        with acquire_lock(self._update_lock, deadline):
            opened = self._bring_up_to_date(deadline)
            with self._condition:
                self._users += 1
        try:
            yield opened
        finally:
            self._release_user()

    @contextmanager
    def open_for_writing(self, deadline: Deadline) -> Iterator[tuple[OpenCopy, JobContext]]:
        """Provide the copy under the lease of its home, and a `JobContext` for changes.

        Both are valid for the duration of the block.

        Args:
            deadline: time limit for acquiring the lease and updating the copy.

        Raises:
            MunimentError: the copy cannot be opened, see `open_for_reading`.
            DeadlineExceeded: another node has the lease for too long.
        """
        opened, epoch = self._join_or_acquire(deadline)
        try:
            state = opened.state.with_ledger(self._ledger.with_epoch(epoch))
            yield opened, replace(opened.context, state=state)
        finally:
            self._release_lease()

    def spoil(self) -> None:
        """Mark the copy for deletion when no thread uses it: it may contain changes that the ledger lacks."""
        with self._condition:
            self.is_spoiled = True

    def close(self, deadline: Deadline) -> None:
        """Close the copy when no thread uses it. A complete copy stays on disk and can be opened again.

        Args:
            deadline: time limit of the wait.

        Raises:
            DeadlineExceeded, Cancelled: a thread still uses the copy.
        """
        with acquire_lock(self._update_lock, deadline):
            self._wait_for_users(deadline)
            self._close()

    def discard(self, deadline: Deadline, *, only_stale: bool = False) -> None:
        """Delete the copy when no thread uses it.

        A copy that is being changed stays: the holder of its lease leaves no erased data in it.

        Args:
            deadline: time limit of the wait.
            only_stale: delete the copy only if data was erased after its position, or the home no longer
                exists.

        Raises:
            DeadlineExceeded, Cancelled: a thread still uses the copy.
        """
        with acquire_lock(self._update_lock, deadline):
            if self._lease_epoch is None and not (only_stale and self._is_fresh()):
                self._discard_copy(deadline)

    def _is_fresh(self) -> bool:
        found, mark = copy_files.read_position(self._ledger), self._read_mark()
        copy_position = mark if self._opened is None else self._opened.position
        return found is not None and copy_position is not None and copy_position.erased == found.erased

    # -- leases

    def _join_or_acquire(self, deadline: Deadline) -> tuple[OpenCopy, int]:
        pause = _FIRST_PAUSE
        while True:
            with acquire_lock(self._update_lock, deadline):
                found = self._join_lease() or self._acquire_lease(deadline)
            if found is not None:
                return found
            deadline.check()
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _join_lease(self) -> tuple[OpenCopy, int] | None:
        """Join the lease that this node already has; return None if it has no usable lease."""
        with self._condition:
            if self._lease_epoch is None or self._opened is None or self.is_spoiled:
                return None
            self._lease_users, self._users = self._lease_users + 1, self._users + 1
            return self._opened, self._lease_epoch

    def _acquire_lease(self, deadline: Deadline) -> tuple[OpenCopy, int] | None:
        """Acquire the lease and update the copy; return None if another node has the lease."""
        with self._condition:
            if self._lease_epoch is not None:
                return None  # The lease was lost, and its users have not noticed yet.
        epoch = lease.acquire(self._ledger, self._options.node, self._options.seconds)
        if epoch is None:
            return None
        leased_ledger = self._ledger.with_epoch(epoch)
        try:
            opened = self._bring_up_to_date(deadline, is_thorough=True)
            recover_roots(
                opened.state.with_ledger(leased_ledger), opened.context.roots, opened.context.policy, deadline
            )
            self._delete_mark()
        except BaseException:
            self.spoil()
            with suppress(MunimentError):
                lease.release(leased_ledger)
            raise
        with self._condition:
            self._lease_epoch, self._lease_users, self._users = epoch, 1, self._users + 1
            self._failures = leased_ledger.failures
        return opened, epoch

    def _release_lease(self) -> None:
        has_update_lock = False
        # A thread that deletes the copy has the lock and waits for this.
        while not has_update_lock and not self.is_spoiled:
            has_update_lock = self._update_lock.acquire(timeout=_LONGEST_PAUSE)
        with self._condition:
            self._lease_users -= 1
            is_last, leased_ledger, opened = self._lease_users == 0, self.leased_ledger, self._opened
        try:
            if is_last and leased_ledger is not None:
                if has_update_lock and opened is not None:
                    self._release_and_mark(opened, leased_ledger)
                else:
                    lease.release(leased_ledger)
        except MunimentError as error:
            events.emit("lease_not_released", code=error.code)
            self.spoil()
        finally:
            if is_last:
                with self._condition:
                    self._lease_epoch = None
            self._release_user()
            if has_update_lock:
                self._update_lock.release()

    def _release_and_mark(self, opened: OpenCopy, leased_ledger: HomeLedger) -> None:
        """Release the lease, and mark the copy as complete if the ledger records all its changes as done.

        The derived data of the copy is updated after the release. So it blocks no commit.
        """
        with leased_ledger.transaction():
            position, is_any_begun = (
                copy_files.read_position(leased_ledger),
                copy_files.has_unfinished_commit(leased_ledger),
            )
            lease.release(leased_ledger)
        is_done = position is not None and not is_any_begun and leased_ledger.failures == self._failures
        if position is None or not is_done or self.is_spoiled or position.erased != opened.position.erased:
            self.spoil()
            return
        self._advance(opened, position.number)
        self._write_mark(opened)

    # -- bringing up to date

    def _release_user(self) -> None:
        with self._condition:
            self._users -= 1
            self._condition.notify_all()

    def _read_position(self) -> copy_files.LedgerPosition:
        found = copy_files.read_position(self._ledger)
        if found is None:
            raise ManagedMemoryUnavailable(self._ledger.name, "home not found; see: muniment fleet home list")
        return found

    def _advance(self, opened: OpenCopy, number: int) -> None:
        """Record that the copy contains all commits up to `number`."""
        position, scopes = opened.position, opened.context.roots
        position.files += copy_files.count_growth(self._ledger, position.number, number, scopes)
        position.number = number

    def _bring_up_to_date(self, deadline: Deadline, *, is_thorough: bool = False) -> OpenCopy:
        number, erased, epoch = self._read_position()
        with self._condition:
            has_lease = self._lease_epoch is not None
            if has_lease and self._lease_epoch != epoch:
                self.is_spoiled = True
        opened = self._opened
        is_other = opened is not None and _has_lost_data(opened.position, number, erased)
        if self.is_spoiled or (is_other and not has_lease):
            self._discard_copy(deadline)
            opened = None
        if opened is None:
            opened = self._open(deadline)
        elif opened.position.number < number and not has_lease:
            opened = self._apply_commits(opened, number, deadline)
        if not has_lease and _has_foreign_files(opened, deadline, is_thorough=is_thorough):
            events.emit("copy_differs", code=UNKNOWN_BYTES)
            self._discard_copy(deadline)
            opened = self._open(deadline)
        return opened

    def _apply_commits(self, opened: OpenCopy, number: int, deadline: Deadline) -> OpenCopy:
        """Apply the commits after its position to the copy. If that fails, return a rebuilt copy."""
        self._delete_mark()
        try:
            missing = copy_files.find_missing_changes(
                self._ledger, opened.position.number, number, opened.context.roots
            )
            if missing is not None:
                self._apply_changes(opened, missing, deadline)
                self._advance(opened, number)
                self._write_mark(opened)
                return opened
        except (StoreConflict, PathEscape, Refusal, ToolError) as error:
            events.emit("copy_differs", code=error.code)
        except BaseException:
            self.spoil()
            raise
        self._discard_copy(deadline)
        return self._open(deadline)

    def _open(self, deadline: Deadline) -> OpenCopy:
        """Open the copy on disk if it is complete, otherwise build a new copy."""
        found = self._read_mark()
        if found is None:
            self._delete()
        create_private_directory(self.directory)
        opened = self._open_at(found or CopyPosition(0, 0, 0))
        try:
            number, erased, _ = self._read_position()
            if found is None:
                self._build(opened, deadline)
            elif _has_lost_data(opened.position, number, erased):
                opened.close()
                self._delete()
                return self._open(deadline)
            elif opened.position.number < number:
                self._opened = opened
                return self._apply_commits(opened, number, deadline)
        except BaseException:
            if self._opened is None:
                opened.close()
            raise
        self._opened = opened
        return opened

    def _open_at(self, position: CopyPosition) -> OpenCopy:
        base, options = self.directory / MEMORY_NAME, self._options
        create_private_directory(base)
        paths = {scope: base / scope for scope in options.policy.scopes}
        for path in paths.values():
            create_private_directory(path)
        roots = bind_all(paths)
        try:
            shared = SharedLedger(self._ledger, self._key, base, position)
            state = State(self.directory / "state", embedder=options.embedder, shared=shared)
        except BaseException:
            for root in roots.values():
                root.close()
            raise
        context = JobContext(
            options.policy,
            roots,
            state,
            symlinks=options.symlinks,
            on_model_failure=options.on_model_failure,
        )
        workspace = Workspace(base, self._ledger.home, state, lambda: context)
        try:
            workspace.open_context()
        except BaseException:
            state.close()
            raise
        return OpenCopy(workspace, context, position)

    def _build(self, opened: OpenCopy, deadline: Deadline) -> None:
        """Fill an empty copy with the newest content of all files, and mark it as complete."""
        with self._ledger.transaction():  # Prevents commits in the meantime.
            position = opened.position
            position.number, position.erased, _ = self._read_position()
            missing = copy_files.read_newest(self._ledger, opened.context.roots)
            position.files = len(missing.changes)
        self._apply_changes(opened, missing, deadline)
        self._write_mark(opened)

    def _apply_changes(
        self, opened: OpenCopy, missing: copy_files.MissingChanges, deadline: Deadline
    ) -> None:
        context = opened.context
        copy_files.apply_changes(missing, context.state, context.roots, context.policy, deadline)

    # -- on disk

    def _wait_for_users(self, deadline: Deadline) -> None:
        with self._condition:
            while self._users:
                deadline.check()
                self._condition.wait(_LONGEST_PAUSE)

    def _discard_copy(self, deadline: Deadline) -> None:
        self._wait_for_users(deadline)
        self._close()
        self._delete()
        with self._condition:
            self.is_spoiled = False

    def _close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def _delete(self) -> None:
        self._delete_mark()
        if self.directory.exists():
            with convert_errors(self.directory):
                shutil.rmtree(self.directory)

    def _write_mark(self, opened: OpenCopy) -> None:
        document = {"home": self._ledger.home, "boot": _read_boot_id(), **asdict(opened.position)}
        with convert_errors(self.directory):
            new = self.directory / f"{MARK_NAME}.new"
            new.write_text(json.dumps(document), "ascii")
            new.replace(self.directory / MARK_NAME)

    def _delete_mark(self) -> None:
        with convert_errors(self.directory):
            (self.directory / MARK_NAME).unlink(missing_ok=True)

    def _read_mark(self) -> CopyPosition | None:
        found = read_mark(self.directory)
        return None if found is None or found[0] != self._ledger.home else found[1]


def build_copy_path(cache: Path, home: str) -> Path:
    """Return the directory of a home's copy; it is named by a digest, which is always a valid file name."""
    return cache / digest(home.encode())[:32]


def _has_lost_data(position: CopyPosition, number: int, erased: int) -> bool:
    """Return whether a copy may contain data that the ledger lacks: lost commits, or erased data."""
    return position.erased != erased or position.number > number


def _has_foreign_files(opened: OpenCopy, deadline: Deadline, *, is_thorough: bool) -> bool:
    """Return whether a copy has a file that the ledger does not record at its path, or lacks a recorded file.

    Args:
        opened: the copy.
        deadline: time limit for checking reported changes.
        is_thorough: check every file and read the indexes, without a time limit. With a time limit, a slow
            node would never start after rebuilding its copy.
    """
    context, files, is_complete = opened.context, 0, True
    for root in context.roots.values():
        try:
            root.verify()
        except PathEscape:
            return True
        if is_thorough:
            view = open_view(context.state, root, context.policy, sweep=True)
        else:
            view = get_watcher(context.state).open_view(root, context.policy, deadline)
        if view.has_withheld() or (is_thorough and has_foreign_index(context.state, root)):
            return True
        files, is_complete = files + view.usage().files, is_complete and view.is_complete
    return is_complete and files != opened.position.files


def read_mark(directory: Path) -> tuple[str, CopyPosition] | None:
    """Return the home and the position of the copy in a directory, or None if the copy is not complete."""
    try:
        found: Any = json.loads((directory / MARK_NAME).read_text("ascii"))
        position = CopyPosition(found["number"], found["erased"], found["files"])
        return (found["home"], position) if found["boot"] == _read_boot_id() else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _read_boot_id() -> str:
    with suppress(OSError):
        return _BOOT.read_text("ascii").strip()
    return ""
