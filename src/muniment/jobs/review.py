"""Approves a pending change-set: the owner's yes to exactly what was shown.

A1 The digest names the final text, what it rests on, the trusts and roots, and the policy as it is now.
   Another digest approves nothing.
A2 The judge runs again: paths, quotas, secrets and every other content gate hold as ever. An approval answers
   only what asked for it.
A3 What it rests on must still be so; else nothing is written, and the change-set stays pending.
A4 It commits at most once, under a task of its own, with the trusts that were shown; what is said of it is
   what the ledger says, also where something fails after its commit.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from muniment.confine.cancel import Cancel, Patience
from muniment.errors import (
    ManagedMemoryUnavailable,
    NotFound,
    PathEscape,
    ReviewChanged,
    ReviewClosed,
    ToolError,
)
from muniment.jobs.place import Place
from muniment.names import Scope, Trust
from muniment.policy.grammar import canonicalise
from muniment.store.audit import timestamp
from muniment.store.commit import Terms, commit
from muniment.store.judge import Author
from muniment.store.ledger import Change, Draft, Origin, of_task
from muniment.store.review import approval_task, check_roots, close, load, preview, turn_down
from muniment.store.state import State
from muniment.store.trust import Ruling

WAIT_SECONDS: Final = 60.0
"""Seconds that a decision waits for the locks of its roots."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A review as its owner decides about it.

    Attributes:
        text: canonical; ends with the digest.
        digest: what an approval of this names.
    """

    review_id: str
    text: str
    digest: str


@dataclass(frozen=True, slots=True)
class Decided:
    """What came of a decision.

    Attributes:
        task_id: as which it was committed; None: it was rejected.
        changes: what was committed.
        notes: what a person should know.
    """

    review_id: str
    task_id: str | None
    changes: tuple[Change, ...] = ()
    touched_scopes: tuple[Scope, ...] = ()
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The document that `review approve --json` and `review reject --json` print."""
        return {
            "review_id": self.review_id,
            "status": "rejected" if self.task_id is None else "approved",
            "task_id": self.task_id,
            "changes": [{"path": change.path, "kind": change.kind} for change in self.changes],
            "touched_scopes": list(self.touched_scopes),
            "notes": list(self.notes),
        }


def show(review_id: str, place: Place) -> Shown:
    """What waits, as it would be approved now.

    Raises:
        NotFound, ReviewClosed: there is nothing to decide.
        InvalidScope: it is about other directories.
        ManagedMemoryUnavailable: the state cannot be used.
    """
    waiting = load(place.state, review_id)
    check_roots(place.state, waiting, place.roots)

    def current(path: str) -> bytes | None:
        found = canonicalise(path, place.roots)
        try:
            return place.roots[found.scope].root.read_bytes(found.rel)
        except NotFound:
            return None
        except (ToolError, PathEscape) as error:
            return f"(cannot be read: {error.code})\n".encode()

    digest = place.policy.digest
    return Shown(review_id, preview(waiting, current, digest), waiting.digest(digest))


def approve(review_id: str, digest: str, place: Place, *, cancel: Cancel | None = None) -> Decided:
    """Commit a pending change-set (A1 to A4).

    Args:
        review_id: which.
        digest: what `show` showed.
        place: the policy, roots and state; they stay the caller's.
        cancel: ends it early; once the commit has begun to write it runs to its end.

    Raises:
        NotFound, ReviewClosed: there is nothing to decide, or somebody was quicker.
        ReviewChanged: the digest is another one.
        InvalidScope: it is about other directories.
        StoreConflict: what it rests on is no longer so. It stays pending.
        Refusal, ToolError, PathEscape: the judge does not allow it. It stays pending.
        DeadlineExceeded, Cancelled: nothing was written. It stays pending.
        ManagedMemoryUnavailable: likewise, or what was written will be taken back before anything else is.
    """
    state = place.state
    waiting = load(state, review_id)
    check_roots(state, waiting, place.roots)
    if digest != waiting.digest(place.policy.digest):
        raise ReviewChanged(review_id)
    asked, now = waiting.origin, timestamp(datetime.now(UTC))
    origin = Origin(
        approval_task(review_id),
        "approve",
        now,
        asked.trust,
        asked.decided_by,
        place.policy.label,
        asked.fact,
        asked.undoes,
        answers=asked.kind,
    )

    def trust(draft: Draft, _: Trust | None) -> Ruling:
        load(state, review_id)  # Asked under the locks: nobody can reject it from here on.
        return Ruling(waiting.trusts.get(draft.path.text) or asked.trust)

    terms = Terms(
        place.policy,
        place.roots,
        Patience(time.monotonic() + WAIT_SECONDS, cancel),
        state,
        origin,
        trust,
        author=Author(waiting.author),
        reviewed=True,
    )
    try:
        done = commit([waiting.change_set], terms)
        if done.repeated:
            raise ReviewClosed(review_id, "approved")
        close(state, review_id, "approved", now, origin.task)
    except ManagedMemoryUnavailable as problem:
        return _approved_all_the_same(state, review_id, origin.task, problem)
    return Decided(review_id, origin.task, done.changes, done.touched_scopes, done.notes)


def _approved_all_the_same(
    state: State, review_id: str, task: str, problem: ManagedMemoryUnavailable
) -> Decided:
    """What an approval did before something went wrong; raises the problem where that was nothing."""
    kept = of_task(state, task)
    if kept is None:
        raise problem
    changes = tuple(item.change for item in kept.changes)
    scopes = tuple(sorted({item.scope for item in kept.changes}))
    return Decided(review_id, task, changes, scopes, (*kept.notes, f"it was written, but then: {problem}"))


def reject(review_id: str, place: Place, *, cancel: Cancel | None = None) -> Decided:
    """Decide that a change-set is never committed.

    Raises:
        NotFound, ReviewClosed, InvalidScope: as `approve`.
        ManagedMemoryUnavailable, DeadlineExceeded, Cancelled: it stays pending.
    """
    patience = Patience(time.monotonic() + WAIT_SECONDS, cancel)
    turn_down(place.state, review_id, place.roots, patience, timestamp(datetime.now(UTC)))
    return Decided(review_id, None)
