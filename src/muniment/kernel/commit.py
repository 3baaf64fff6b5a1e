"""One commit as a transaction: lock, recover, resolve, judge and write, in this order.

1. `transaction` checks every path before it locks the touched roots in order of device and inode.
2. `recover` rolls back interrupted commits in these roots. Nothing is written before.
3. `resolve` reads the current files and drops parts whose claims are no longer true.
4. `judge` checks the final bytes by policy, gates and quotas. Only its result can be written.
5. `write` checks deadline and cancellation a last time. In its block `apply` journals the intent and writes
   all files or none, the caller updates derived data, and `finish` completes the journal.

Promise: only judged changes are written; all of them or, after recovery, none; each file is complete at every
instant; a commit is durable after `finish`. A reader without the lock may see half of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from muniment.kernel.apply import LockedRoots, lock_roots
from muniment.kernel.binding import BoundRoot
from muniment.kernel.cancel import Deadline
from muniment.kernel.change import ChangeSet, JudgedChanges, merge
from muniment.kernel.decide import Policy
from muniment.kernel.judge import Gates, RootInfo

# isort: split
from muniment.kernel.judge import check_paths, drop_conflicting, fill_before, judge, read_current
from muniment.kernel.names import Scope
from muniment.kernel.refusal import StoreConflict
from muniment.kernel.write import CommitWriter, Journal, Recovery, recover


@contextmanager
def transaction(
    parts: Sequence[ChangeSet],
    *,
    policy: Policy,
    roots: Mapping[Scope, BoundRoot],
    journal: Journal,
    gates: Gates,
    root_info: RootInfo,
    deadline: Deadline,
) -> Iterator[CommitTransaction]:
    """Lock the roots that `parts` touch, and yield a transaction over them.

    Args:
        parts: change sets; each is committed completely or dropped.
        policy: the policy to judge them by.
        roots: every bound root.
        journal: records begun and finished commits.
        gates: checks new bytes.
        root_info: known properties of the roots.
        deadline: how long to wait for locks; no write begins after it.

    Raises:
        Refused: as `check_paths`.
        PathEscape, ManagedMemoryUnavailable, DeadlineExceeded, Cancelled: as `lock_roots`.
        KeyError: the scope of a path is not bound.
    """
    merged = merge(parts)
    check_paths(merged)
    touched = {path.scope: roots[path.scope] for path in merged.paths}
    with lock_roots(touched.values(), deadline) as locked:
        yield CommitTransaction(locked, roots, policy, journal, gates, root_info, deadline)


@dataclass(slots=True)
class CommitTransaction:
    """An open commit over locked roots, from `transaction`."""

    locked: LockedRoots
    _roots: Mapping[Scope, BoundRoot]
    _policy: Policy
    _journal: Journal
    _gates: Gates
    _root_info: RootInfo
    _deadline: Deadline
    _next_step: str = "recover"

    @contextmanager
    def recover(self) -> Iterator[tuple[Recovery, ...]]:
        """Roll back interrupted commits; the block updates derived data, then the journal closes them.

        Raises:
            RuntimeError: this transaction has written already, so its commit would be rolled back.
            ManagedMemoryUnavailable: as `write.recover`.
        """
        if self._next_step == "end":
            raise RuntimeError("recover interrupted commits before writing")
        with recover(self.locked, self._journal, self._policy, self._root_info) as recovered:
            yield recovered
        self._next_step = "write"

    def resolve(self, parts: Sequence[ChangeSet]) -> tuple[ChangeSet, int]:
        """Return the parts that still apply as one change set with the current bytes, and count the others.

        Raises:
            StoreConflict: no part applies.
            PathEscape: a path contains a link, a hard link or a special file.
            DeadlineExceeded, Cancelled: as `read_current`.
        """
        found = read_current(parts, self._roots, self._deadline)
        applicable, conflicting = drop_conflicting(parts, found)
        if not applicable:
            raise StoreConflict(conflicting)
        return fill_before(merge(applicable), found), len(parts) - len(applicable)

    def judge(self, final: ChangeSet) -> JudgedChanges:
        """Judge the final bytes, for these locks only; raise as `judge.judge`."""
        info, known = self._root_info, self._journal.is_known
        return judge(final, self._policy, self.locked, gates=self._gates, root_info=info, is_known=known)

    def write(self, judged: JudgedChanges) -> CommitWriter:
        """Write a judged change set, all or none, in the block of a `with` statement.

        See `write.CommitWriter`.

        Raises:
            RuntimeError: interrupted commits were not recovered before, or this transaction has written
                already.
            DeadlineExceeded, Cancelled: before the first write.

        Cost: two journal steps; one fsync per file and directory; three opens per file.
        """
        if self._next_step != "write":
            raise RuntimeError("recover interrupted commits before writing, and write once")
        self._deadline.check()
        self._next_step = "end"
        return CommitWriter(judged, self.locked, self._journal, self._root_info)
