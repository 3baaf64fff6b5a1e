"""One commit as a transaction: lock, recover, resolve, judge and write, in this order.

1. `transaction` checks every path, then locks the touched roots in order of device and inode.
2. `recover` rolls back interrupted commits in these roots. Nothing is written before that.
3. `resolve` reads the current files and drops the parts that rely on an outdated file.
4. `judge` checks the final bytes by policy, gates and quotas. Only its result can be written.
5. `write` checks deadline and cancellation for the last time. In its block, `apply` records the intent in the
   journal and writes all files or none. Then the caller updates derived data, and `finish` marks the commit
   as done in the journal.

Promises: Only judged changes are written. All of them are written or, after a recovery, none. Each file is
complete at every instant. A commit is durable after `finish`. A reader without the lock may see half of it.
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
    """Lock the roots that `parts` change, and yield a transaction over these roots.

    Args:
        parts: change sets; each is committed completely or dropped.
        policy: the policy that judges the changes.
        roots: every bound root.
        journal: records which commits were begun and finished.
        gates: check of new bytes.
        root_info: known properties of the roots.
        deadline: time limit for acquiring the locks; no write begins after it.

    Raises:
        Refused: a path is a scope, occurs twice, or is under another path of `parts`.
        PathEscape, ManagedMemoryUnavailable, DeadlineExceeded, Cancelled: as described in `lock_roots`.
        KeyError: the scope of a path is not bound.
    """
    merged = merge(parts)
    check_paths(merged)
    touched = {path.scope: roots[path.scope] for path in merged.paths}
    with lock_roots(touched.values(), deadline) as locked:
        yield CommitTransaction(locked, roots, policy, journal, gates, root_info, deadline)


@dataclass(slots=True)
class CommitTransaction:
    """An open commit over locked roots; `transaction` creates it."""

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
        """Roll back interrupted commits in the locked roots, and yield one result for each.

        The block must update the data that is derived from the files. After the block, the journal closes
        these commits.

        Raises:
            RuntimeError: this transaction has already written, and the recovery would roll back that commit.
            ManagedMemoryUnavailable: a file or the journal cannot be written.
        """
        if self._next_step == "end":
            raise RuntimeError("this transaction has already written; call recover before write")
        with recover(self.locked, self._journal, self._policy, self._root_info) as recovered:
            yield recovered
        self._next_step = "write"

    def resolve(self, parts: Sequence[ChangeSet]) -> tuple[ChangeSet, int]:
        """Drop the parts that conflict with the current files, and merge the other parts.

        Returns:
            The merged change set, with the current bytes in `before`; and the number of dropped parts.

        Raises:
            StoreConflict: every part conflicts.
            PathEscape: a path contains a link, a hard link or a special file.
            DeadlineExceeded, Cancelled: the wait ended before all files were read.
        """
        found = read_current(parts, self._roots, self._deadline)
        applicable, conflicting = drop_conflicting(parts, found)
        if not applicable:
            raise StoreConflict(conflicting)
        return fill_before(merge(applicable), found), len(parts) - len(applicable)

    def judge(self, final: ChangeSet) -> JudgedChanges:
        """Judge the final changes; the result can be written only by this transaction.

        Raises:
            MunimentError: as described in `judge.judge`.
        """
        info, known = self._root_info, self._journal.is_known
        return judge(final, self._policy, self.locked, gates=self._gates, root_info=info, is_known=known)

    def write(self, judged: JudgedChanges) -> CommitWriter:
        """Return a writer for a judged change set, to be used in a `with` statement.

        All changes are written or none, as described in `write.CommitWriter`.

        Raises:
            RuntimeError: `recover` was not called before, or this transaction has already written.
            DeadlineExceeded, Cancelled: the deadline passed or the caller cancelled. Nothing is written.

        Cost: two journal steps; one fsync per file and directory; three opens per file.
        """
        if self._next_step != "write":
            raise RuntimeError("call recover before write, and call write only once")
        self._deadline.check()
        self._next_step = "end"
        return CommitWriter(judged, self.locked, self._journal, self._root_info)
