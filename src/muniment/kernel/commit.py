"""Commits a proposal: locked, recovered, looked at, judged and written, in this order, whoever proposes.

1. Every path is checked: what is wrong with the proposal alone ends here, before any lock.
2. The roots that are touched are locked, in order of device and inode, and are still where they were. What an
   interrupted commit left there is taken back.
3. The proposal is asked for its parts again: under the locks it may name new files otherwise, or say that it
   was done before.
4. The broker reads what stands there itself; parts that rest on what is no longer so are rejected.
5. The proposal makes the final bytes, each from what it meets.
6. The final bytes are judged.
7. The proposal is shown what was judged: here its owner may say no, and a dry run ends.
8. Deadline and cancel are checked for the last time.
9. The intent stands in the journal; the files are written, all or none; what is derived from them follows;
   the journal says that it is done.

Promise: nothing but what was judged; all of it or, after recovery, none; each file whole at every instant;
once `commit` returns it is durable. A reader without the lock may see a commit half applied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from muniment.kernel.binding import BoundRoot
from muniment.kernel.cancel import Patience
from muniment.kernel.change import ChangeSet, FileChange, Judged, joint
from muniment.kernel.decide import Policy
from muniment.kernel.judge import Facts, Gates, check_paths, judge, look, settle, with_before
from muniment.kernel.land import Landed, LockedRoots, lock_roots
from muniment.kernel.names import Scope
from muniment.kernel.refusal import StoreConflict
from muniment.kernel.write import Journal, Recovered, recover, write


class Proposal(Protocol):
    """What is to be committed. Its methods are called under the locks, in this order."""

    @property
    def parts(self) -> Sequence[ChangeSet]:
        """Each is committed whole, or rejected because what it rests on has changed."""

    def recovered(self, done: Sequence[Recovered], held: LockedRoots) -> None:
        """What interrupted commits left was taken back: bring up to date what is derived from the files."""

    def placed(self, held: LockedRoots) -> Sequence[ChangeSet] | None:
        """The parts, with new files where they really go; None: it was committed before."""

    def completed(self, change: FileChange) -> FileChange:
        """A change with its final bytes, from those that it meets."""

    def accepted(self, judged: Judged) -> bool:
        """Whether to write it. Raises what it likes."""

    def followed(self, held: LockedRoots, landed: Landed, token: str) -> Sequence[str]:
        """What is derived from the files is up to date; notes. The files stand, and are not done yet."""


@dataclass(frozen=True, slots=True)
class CommitOutcome:
    """What was committed, or would have been.

    Attributes:
        changes: with what each met.
        rejected: how many of the parts rested on what is no longer so.
        notes: of what followed.
    """

    changes: tuple[FileChange, ...]
    rejected: int = 0
    notes: tuple[str, ...] = ()


def commit(
    proposal: Proposal,
    *,
    rules: Policy,
    roots: Mapping[Scope, BoundRoot],
    journal: Journal,
    gates: Gates,
    facts: Facts,
    patience: Patience,
) -> CommitOutcome | None:
    """Carry out the steps of the module's docstring; None where it was committed before.

    Args:
        proposal: says what, and is asked in between.
        rules: the policy that judges it.
        roots: every bound root.
        journal: keeps what was begun and done.
        gates: asked about new bytes.
        facts: what is known of the roots.
        patience: how long to wait for locks, and whether to begin writing at all.

    Raises:
        PathEscape: something in it meets a link, a hard link or a special file.
        Refusal, ToolError: the judge does not allow a change.
        StoreConflict: every part was rejected, or somebody changed a file while it was written.
        ManagedMemoryUnavailable: a root cannot be locked or written. Nothing is changed, or what is will be
            taken back before anything else is done.
        DeadlineExceeded, Cancelled: before the first write.
        KeyError: a path is of a scope that is not bound.
        Whatever `proposal`, `journal`, `gates` and `facts` do.

    Cost: two steps of the journal; an fsync a file and directory; three opens a file.
    """
    whole = joint(proposal.parts)
    check_paths(whole)
    touched = {path.scope: roots[path.scope] for path in whole.paths}
    with lock_roots(touched.values(), patience) as held:
        recover(held, journal, rules, facts, lambda done: proposal.recovered(done, held))
        parts = proposal.placed(held)
        if parts is None:
            return None
        found = look(parts, roots, patience)
        holding, broken = settle(parts, found)
        if not holding:
            raise StoreConflict(broken)
        met = with_before(joint(holding), found)
        final = replace(met, changes=tuple(proposal.completed(each) for each in met.changes))
        judged = judge(final, rules, held, gates=gates, facts=facts, known=journal.knows)
        is_accepted = proposal.accepted(judged)
        patience.check()
        notes: tuple[str, ...] = ()
        if is_accepted:
            follow = partial(proposal.followed, held)
            notes = write(judged, held, journal, facts, follow)
        return CommitOutcome(judged.change_set.changes, len(parts) - len(holding), notes)
