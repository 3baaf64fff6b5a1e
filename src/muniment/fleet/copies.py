"""The working copy of a home on a node: files and catalog, made from the ledger, and never the only copy.

W1 Whoever reads finds at least what was done when he began: a copy that is behind is brought up to date, one
   that may hold anything else is thrown away and made anew.
W2 Whoever changes the memory holds the lease of the home; what he did and the ledger does not say is done is
   thrown away with the copy.
W3 What was erased is in no copy: one that was made before is thrown away, text and catalog.
W4 On disk a copy is marked whole only while nobody changes it, and for this run of the system: one that a
   process or a power cut left half changed is not taken up again.
W5 If the ledger does not say that the bytes of a file belong at its path (`store.ledger.is_current`), the
   file is never recalled, and no commit is made of it. A copy that has such a file, or lacks one, is thrown
   away and made anew: at a read if directories or a watch report the change, and always before the home is
   changed.
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
"""The file that says of which commits a copy is; it is there only while the copy is that."""

MEMORY: Final = "memory"
"""The directory of a copy that its roots lie in, each by the name of its scope."""

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.2


@dataclass(frozen=True, slots=True)
class CopyTerms:
    """What all copies of a node have in common.

    Attributes:
        policy: of every home.
        node: its name, for leases.
        seconds: of a lease.
        symlinks, on_model_failure: as of `Place`.
        embedder: as of `State`.
    """

    policy: Policy
    node: str
    seconds: float = lease.LEASE_SECONDS
    symlinks: Symlinks = Symlinks.REFUSE
    on_model_failure: OnModelFailure = "rules"
    embedder: Embedder | None = None


@dataclass(slots=True)
class OpenCopy:
    """A copy that is open.

    Attributes:
        position: of the ledger, as it stood when the copy was like it. One with a later number than the
            ledger has seen commits that were lost there.
    """

    workspace: Workspace
    place: Place
    position: CopyPosition

    @property
    def state(self) -> State:
        """Of it."""
        return self.place.state

    def close(self) -> None:
        """Give its descriptors back."""
        self.state.close()  # First: it looks at the roots.
        self.workspace.close()


class WorkingCopy:
    """The copy of one home on this node. Threads may share it.

    Args:
        directory: of this copy alone; made if it is missing, deleted when it is of no use.
        ledger: of the home.
        key: of the home.
        terms: of the node.

    Attributes:
        is_spoiled: it is thrown away once nobody uses it.
    """

    def __init__(self, directory: Path, ledger: HomeLedger, key: bytes, terms: CopyTerms) -> None:
        self.directory, self._ledger, self._key, self._terms = directory, ledger, key, terms
        self._making = threading.Lock()  # Whoever opens, brings up to date, or throws away.
        self._change = threading.Condition()  # Of what stands below.
        self._opened: OpenCopy | None = None
        self._users = self._holders = 0
        self._held: int | None = None
        self.is_spoiled, self._failures = False, 0

    @property
    def held(self) -> HomeLedger | None:
        """The ledger under the lease of this node; None: it has none."""
        epoch = self._held
        return None if epoch is None else self._ledger.at(epoch)

    @property
    def is_open(self) -> bool:
        """Whether it holds descriptors."""
        return self._opened is not None

    @property
    def is_idle(self) -> bool:
        """Whether nobody uses it now."""
        with self._change:
            return not self._users and not self._holders

    @contextmanager
    def reading(self, patience: Patience) -> Iterator[OpenCopy]:
        """The copy, as the ledger stands or later (W1).

        Raises:
            ManagedMemoryUnavailable: nobody answers, there is no such home, or the disk cannot be used.
            DeadlineExceeded, Cancelled: somebody else brings it up to date for too long.
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
        """The copy under the lease of its home, and a place to change it at (W2); raises as `reading`.

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
        """Have it thrown away once nobody uses it: it may hold what the ledger does not."""
        with self._change:
            self.is_spoiled = True

    def close(self, patience: Patience) -> None:
        """Close it, once nobody uses it; it is taken up again later, if it is whole.

        Raises:
            DeadlineExceeded, Cancelled: somebody uses it.
        """
        with held(self._making, patience):
            self._wait_for_users(patience)
            self._close()

    def discard(self, patience: Patience, *, only_stale: bool = False) -> None:
        """Delete it, once nobody uses it; raises as `close`.

        Where it is being changed, it stays: who does that leaves nothing in it of what was erased.

        Args:
            patience: how long to wait.
            only_stale: where something was erased since (W3), or there is no such home any more.
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
        """The lease that this node has already."""
        with self._change:
            if self._held is None or self._opened is None or self.is_spoiled:
                return None
            self._holders, self._users = self._holders + 1, self._users + 1
            return self._opened, self._held

    def _taken(self, patience: Patience) -> tuple[OpenCopy, int] | None:
        """A lease that is taken now, with the copy brought up to date; None: somebody has it."""
        with self._change:
            if self._held is not None:
                return None  # It was lost, and whoever had it has not noticed yet.
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
        while not is_making and not self.is_spoiled:  # Who throws it away has that, and waits for this.
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
        """Let go of the lease, and mark the copy whole where the ledger says that all of it is done.

        What is derived from the files holds up no commit, and asks the ledger: that may have been away then.
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
            raise ManagedMemoryUnavailable(self._ledger.name, "there is no such home")
        return found

    def _advance(self, opened: OpenCopy, number: int) -> None:
        """Record that the copy has the files of all commits up to a number."""
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
        """The copy with what was done since; another one where that cannot be."""
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
        """The copy that is on disk if that is whole, or else a new one."""
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
        with self._ledger.transaction():  # So that nobody commits meanwhile.
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
    """Where the copy of a home is: names of homes need not be names of files."""
    return cache / digest(home.encode())[:32]


def _is_beyond(position: CopyPosition, number: int, erased: int) -> bool:
    """Return whether a copy may hold what the ledger has no more: lost commits, or what was erased since."""
    return position.erased != erased or position.number > number


def _has_foreign(opened: OpenCopy, patience: Patience, *, is_thorough: bool) -> bool:
    """Return whether a copy has a file that the ledger does not say stands there, or lacks one (W5).

    Args:
        opened: the copy.
        patience: how long to look where a change shows.
        is_thorough: ask every file, and read the indexes, however long that takes: if this gave up after the
            copy was made anew, a node that is slow would never begin.
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
    """Of the copy in a directory: its home, and `OpenCopy.position`; None: it is not whole."""
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
