"""The working copy of a home on a node: files and catalog, created from the ledger, never the only copy.

W1 A reader finds at least the changes that were done when it began: an outdated copy is updated, and a copy
   that may contain anything else is deleted and rebuilt.
W2 Only the holder of the home's lease changes the memory. Its changes that are not done according to the
   ledger are deleted with the copy.
W3 Erased data is in no copy: a copy from before the erasure is deleted, with text and catalog.
W4 The mark of a complete copy exists on disk only while no process changes it, and is valid only until the
   next boot: a copy that a process or a power failure left incomplete is not used again.
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
from muniment.agent.model import OnModelFailure
from muniment.errors import (
    ManagedMemoryUnavailable,
    MunimentError,
    PathEscape,
    Refusal,
    StoreConflict,
    ToolError,
)
from muniment.fleet import copied, lease
from muniment.fleet.postgres import HomeLedger
from muniment.kernel.binding import bind_all
from muniment.kernel.cancel import Patience
from muniment.kernel.change import digest
from muniment.kernel.decide import Policy
from muniment.names import Symlinks
from muniment.operations.place import Place
from muniment.policy.ownership import create_private_directory
from muniment.server.work import Workspace
from muniment.store.database import held, reporting
from muniment.store.rows import Embedder
from muniment.store.state import CopyPosition, Shared, State
from muniment.store.trust import UNKNOWN_BYTES
from muniment.store.upkeep import has_foreign_index, recover_all, view_of
from muniment.store.watching import looks_of

MARK: Final = "whole"
"""The file with the position of a copy; it exists only while the copy is complete."""

MEMORY: Final = "memory"
"""The directory of a copy that contains its roots, each named after its scope."""

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.2


@dataclass(frozen=True, slots=True)
class CopyTerms:
    """Options that all copies of a node share.

    Attributes:
        policy: policy of every home.
        node: name of the node, for leases.
        seconds: duration of a lease.
        symlinks, on_model_failure: as in `Place`.
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
    """An open copy.

    Attributes:
        position: position of the ledger when the copy matched it. A number that is greater than that of the
            ledger
            belongs to commits that the ledger has lost.
    """

    workspace: Workspace
    place: Place
    position: CopyPosition

    @property
    def state(self) -> State:
        """Return its state."""
        return self.place.state

    def close(self) -> None:
        """Close its descriptors."""
        self.state.close()  # First, because it watches the roots.
        self.workspace.close()


class WorkingCopy:
    """The copy of one home on this node. Threads may share it.

    Args:
        directory: only for this copy; created if it is missing, deleted if it is useless.
        ledger: ledger of the home.
        key: key of the home.
        terms: options of the node.

    Attributes:
        is_spoiled: it will be deleted once no thread uses it.
    """

    def __init__(self, directory: Path, ledger: HomeLedger, key: bytes, terms: CopyTerms) -> None:
        self.directory, self._ledger, self._key, self._terms = directory, ledger, key, terms
        self._making = threading.Lock()  # Held to open, update or delete the copy.
        self._change = threading.Condition()  # Protects the attributes below.
        self._opened: OpenCopy | None = None
        self._users = self._holders = 0
        self._held: int | None = None
        self.is_spoiled, self._failures = False, 0

    @property
    def held(self) -> HomeLedger | None:
        """Return the ledger under this node's lease, or None without a lease."""
        epoch = self._held
        return None if epoch is None else self._ledger.at(epoch)

    @property
    def is_open(self) -> bool:
        """Return whether it has open descriptors."""
        return self._opened is not None

    @property
    def is_idle(self) -> bool:
        """Return whether no thread uses it."""
        with self._change:
            return not self._users and not self._holders

    @contextmanager
    def reading(self, patience: Patience) -> Iterator[OpenCopy]:
        """Provide the copy with at least all changes of the ledger (W1).

        Raises:
            ManagedMemoryUnavailable: the database does not respond, the home does not exist, or the disk
                fails.
            DeadlineExceeded, Cancelled: another thread takes too long to update it.
        """
        with held(self._making, patience):
            opened = self._brought_up(patience)
            with self._change:
                self._users += 1
        try:
            yield opened
        finally:
            self._leave()

    @contextmanager
    def holding(self, patience: Patience) -> Iterator[tuple[OpenCopy, Place]]:
        """Provide the copy under the lease of its home, and a `Place` for changes (W2); raises as `reading`.

        Raises:
            DeadlineExceeded: another node has the lease for too long.
        """
        opened, epoch = self._hold(patience)
        try:
            state = opened.state.under(self._ledger.at(epoch))
            yield opened, replace(opened.place, state=state)
        finally:
            self._let_go()

    def spoil(self) -> None:
        """Schedule its deletion once no thread uses it: it may contain changes that the ledger lacks."""
        with self._change:
            self.is_spoiled = True

    def close(self, patience: Patience) -> None:
        """Close it once no thread uses it; a complete copy is used again later.

        Raises:
            DeadlineExceeded, Cancelled: a thread uses it.
        """
        with held(self._making, patience):
            self._wait_for_users(patience)
            self._close()

    def discard(self, patience: Patience, *, only_stale: bool = False) -> None:
        """Delete it once no thread uses it; raises as `close`.

        A copy that is being changed stays: the holder of its lease leaves no erased data in it.

        Args:
            patience: time limit of the wait.
            only_stale: only if data was erased since (W3), or the home no longer exists.
        """
        with held(self._making, patience):
            if self._held is None and not (only_stale and self._is_fresh()):
                self._throw_away(patience)

    def _is_fresh(self) -> bool:
        found, mark = copied.stand(self._ledger), self._marked()
        mine = mark if self._opened is None else self._opened.position
        return found is not None and mine is not None and mine.erased == found.erased

    # -- leases

    def _hold(self, patience: Patience) -> tuple[OpenCopy, int]:
        pause = _FIRST_PAUSE
        while True:
            with held(self._making, patience):
                found = self._joined() or self._taken(patience)
            if found is not None:
                return found
            patience.check()
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _joined(self) -> tuple[OpenCopy, int] | None:
        """Join the lease that this node already has, if there is one."""
        with self._change:
            if self._held is None or self._opened is None or self.is_spoiled:
                return None
            self._holders, self._users = self._holders + 1, self._users + 1
            return self._opened, self._held

    def _taken(self, patience: Patience) -> tuple[OpenCopy, int] | None:
        """Acquire the lease and update the copy; return None if another node has the lease."""
        with self._change:
            if self._held is not None:
                return None  # The lease was lost, and its users have not noticed yet.
        epoch = lease.take(self._ledger, self._terms.node, self._terms.seconds)
        if epoch is None:
            return None
        held = self._ledger.at(epoch)
        try:
            opened = self._brought_up(patience, is_thorough=True)
            recover_all(opened.state.under(held), opened.place.roots, opened.place.policy, patience)
            self._unmark()
        except BaseException:
            self.spoil()
            with suppress(MunimentError):
                lease.release(held)
            raise
        with self._change:
            self._held, self._holders, self._users = epoch, 1, self._users + 1
            self._failures = held.failures
        return opened, epoch

    def _let_go(self) -> None:
        is_making = False
        # A thread that deletes the copy has the lock and waits for this.
        while not is_making and not self.is_spoiled:
            is_making = self._making.acquire(timeout=_LONGEST_PAUSE)
        with self._change:
            self._holders -= 1
            is_last, held, opened = self._holders == 0, self.held, self._opened
        try:
            if is_last and held is not None:
                if is_making and opened is not None:
                    self._settle(opened, held)
                else:
                    lease.release(held)
        except MunimentError as error:
            events.emit("lease_not_released", code=error.code)
            self.spoil()
        finally:
            if is_last:
                with self._change:
                    self._held = None
            self._leave()
            if is_making:
                self._making.release()

    def _settle(self, opened: OpenCopy, held: HomeLedger) -> None:
        """Release the lease, and mark the copy as complete if the ledger has all its changes as done.

        Updating derived data blocks no commit, and queries the ledger, which may have been unavailable.
        """
        with held.transaction():
            stand, is_any_begun = copied.stand(held), copied.is_any_begun(held)
            lease.release(held)
        is_done = stand is not None and not is_any_begun and held.failures == self._failures
        if stand is None or not is_done or self.is_spoiled or stand.erased != opened.position.erased:
            self.spoil()
            return
        self._advance(opened, stand.number)
        self._mark(opened)

    # -- bringing up to date

    def _leave(self) -> None:
        with self._change:
            self._users -= 1
            self._change.notify_all()

    def _stand(self) -> copied.Stand:
        found = copied.stand(self._ledger)
        if found is None:
            raise ManagedMemoryUnavailable(self._ledger.name, "home not found")
        return found

    def _advance(self, opened: OpenCopy, number: int) -> None:
        """Record that the copy contains all commits up to a number."""
        position, scopes = opened.position, opened.place.roots
        position.files += copied.growth(self._ledger, position.number, number, scopes)
        position.number = number

    def _brought_up(self, patience: Patience, *, is_thorough: bool = False) -> OpenCopy:
        number, erased, epoch = self._stand()
        with self._change:
            is_ours = self._held is not None
            if is_ours and self._held != epoch:
                self.is_spoiled = True
        opened = self._opened
        is_other = opened is not None and _is_beyond(opened.position, number, erased)
        if self.is_spoiled or (is_other and not is_ours):
            self._throw_away(patience)
            opened = None
        if opened is None:
            opened = self._open(patience)
        elif opened.position.number < number and not is_ours:
            opened = self._followed(opened, number, patience)
        if not is_ours and _has_foreign(opened, patience, is_thorough=is_thorough):
            events.emit("copy_differs", code=UNKNOWN_BYTES)
            self._throw_away(patience)
            opened = self._open(patience)
        return opened

    def _followed(self, opened: OpenCopy, number: int, patience: Patience) -> OpenCopy:
        """Apply the commits since its position to the copy; if that fails, return a rebuilt copy."""
        self._unmark()
        try:
            lacking = copied.behind(self._ledger, opened.position.number, number, opened.place.roots)
            if lacking is not None:
                self._carry_out(opened, lacking, patience)
                self._advance(opened, number)
                self._mark(opened)
                return opened
        except (StoreConflict, PathEscape, Refusal, ToolError) as error:
            events.emit("copy_differs", code=error.code)
        except BaseException:
            self.spoil()
            raise
        self._throw_away(patience)
        return self._open(patience)

    def _open(self, patience: Patience) -> OpenCopy:
        """Open the copy on disk if it is complete, otherwise build a new one."""
        found = self._marked()
        if found is None:
            self._delete()
        create_private_directory(self.directory)
        opened = self._opened_at(found or CopyPosition(0, 0, 0))
        try:
            number, erased, _ = self._stand()
            if found is None:
                self._build(opened, patience)
            elif _is_beyond(opened.position, number, erased):
                opened.close()
                self._delete()
                return self._open(patience)
            elif opened.position.number < number:
                self._opened = opened
                return self._followed(opened, number, patience)
        except BaseException:
            if self._opened is None:
                opened.close()
            raise
        self._opened = opened
        return opened

    def _opened_at(self, position: CopyPosition) -> OpenCopy:
        base, terms = self.directory / MEMORY, self._terms
        create_private_directory(base)
        paths = {scope: base / scope for scope in terms.policy.scopes}
        for path in paths.values():
            create_private_directory(path)
        roots = bind_all(paths)
        try:
            shared = Shared(self._ledger, self._key, base, position)
            state = State(self.directory / "state", embedder=terms.embedder, shared=shared)
        except BaseException:
            for root in roots.values():
                root.close()
            raise
        place = Place(
            terms.policy,
            roots,
            state,
            symlinks=terms.symlinks,
            on_model_failure=terms.on_model_failure,
        )
        workspace = Workspace(base, self._ledger.home, state, lambda: place)
        try:
            workspace.place()
        except BaseException:
            state.close()
            raise
        return OpenCopy(workspace, place, position)

    def _build(self, opened: OpenCopy, patience: Patience) -> None:
        """Fill an empty copy."""
        with self._ledger.transaction():  # Prevents commits in the meantime.
            position = opened.position
            position.number, position.erased, _ = self._stand()
            lacking = copied.newest(self._ledger, opened.place.roots)
            position.files = len(lacking.changes)
        self._carry_out(opened, lacking, patience)
        self._mark(opened)

    def _carry_out(self, opened: OpenCopy, lacking: copied.Lacking, patience: Patience) -> None:
        place = opened.place
        copied.carry_out(lacking, place.state, place.roots, place.policy, patience)

    # -- on disk

    def _wait_for_users(self, patience: Patience) -> None:
        with self._change:
            while self._users:
                patience.check()
                self._change.wait(_LONGEST_PAUSE)

    def _throw_away(self, patience: Patience) -> None:
        self._wait_for_users(patience)
        self._close()
        self._delete()
        with self._change:
            self.is_spoiled = False

    def _close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def _delete(self) -> None:
        self._unmark()
        if self.directory.exists():
            with reporting(self.directory):
                shutil.rmtree(self.directory)

    def _mark(self, opened: OpenCopy) -> None:
        told = {"home": self._ledger.home, "boot": _boot(), **asdict(opened.position)}
        with reporting(self.directory):
            new = self.directory / f"{MARK}.new"
            new.write_text(json.dumps(told), "ascii")
            new.replace(self.directory / MARK)

    def _unmark(self) -> None:
        with reporting(self.directory):
            (self.directory / MARK).unlink(missing_ok=True)

    def _marked(self) -> CopyPosition | None:
        found = marked(self.directory)
        return None if found is None or found[0] != self._ledger.home else found[1]


def directory_of(cache: Path, home: str) -> Path:
    """Return the directory of a home's copy; the name of a home may be invalid as a file name."""
    return cache / digest(home.encode())[:32]


def _is_beyond(position: CopyPosition, number: int, erased: int) -> bool:
    """Return whether a copy may contain data that the ledger lacks: lost commits, or data erased since."""
    return position.erased != erased or position.number > number


def _has_foreign(opened: OpenCopy, patience: Patience, *, is_thorough: bool) -> bool:
    """Return whether a copy has a file that the ledger does not record there, or lacks one (W5).

    Args:
        opened: the copy.
        patience: time limit for checking reported changes.
        is_thorough: check every file and read the indexes, without a time limit: with one, a slow node would
            never start after rebuilding its copy.
    """
    place, files, is_complete = opened.place, 0, True
    for root in place.roots.values():
        try:
            root.verify()
        except PathEscape:
            return True
        if is_thorough:
            view = view_of(place.state, root, place.policy, sweep=True)
        else:
            view = looks_of(place.state).view(root, place.policy, patience)
        if view.has_withheld() or (is_thorough and has_foreign_index(place.state, root)):
            return True
        files, is_complete = files + view.usage().files, is_complete and view.complete
    return is_complete and files != opened.position.files


def marked(directory: Path) -> tuple[str, CopyPosition] | None:
    """Return the home and the position of the copy in a directory, or None if it is not complete."""
    try:
        found: Any = json.loads((directory / MARK).read_text("ascii"))
        position = CopyPosition(found["number"], found["erased"], found["files"])
        return (found["home"], position) if found["boot"] == _boot() else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _boot() -> str:
    with suppress(OSError):
        return _BOOT.read_text("ascii").strip()
    return ""
