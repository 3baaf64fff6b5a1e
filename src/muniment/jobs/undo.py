"""Undo: takes back what a task did, as a commit of its own.

U1 Each file gets the bytes back that it had before the task, and its trust is what the ledger says of those;
   a file that the task made goes, with the directories that were made for it, if nothing else stands there.
U2 All of it or nothing: where any of the files is not what the task left, by a later task or by hand, nothing
   is written and those files are named.
U3 An undo is a task like any other, and can be undone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from muniment import events
from muniment.confine.cancel import Cancel, Patience
from muniment.errors import (
    AlreadyUndone,
    Cancelled,
    Erased,
    InvalidScope,
    MunimentError,
    NotFound,
    PathEscape,
    StoreConflict,
    ToolError,
    UndoOverlap,
    printable,
)
from muniment.jobs.ending import error_json
from muniment.jobs.place import Place
from muniment.names import RelPath, Scope, Trust
from muniment.store.audit import timestamp
from muniment.store.commit import Terms, commit
from muniment.store.erase import remove_emptied
from muniment.store.judge import Author
from muniment.store.ledger import Change, Draft, Kept, KeptChange, Origin, of_task, root_key, undone_by
from muniment.store.trust import Ruling, new_ulid, trust_at
from muniment.tools.overlay import ChangeSet, Claim, Proposed, digest

WAIT_SECONDS: Final = 60.0
"""Seconds that an undo waits for the locks of its roots."""

DECIDED_BY: Final = "code"
"""What the ledger says where no model and no rule chose anything."""


@dataclass(frozen=True, slots=True)
class UndoResult:
    """What came of an undo.

    Attributes:
        task_id: of the undo; undo that to have the changes again.
        undone: the task that was to be undone.
        changes: what was committed.
        notes: what a person should know.
        error: why it failed, with its stable code.
    """

    task_id: str
    undone: str
    status: Literal["completed", "failed", "cancelled"]
    changes: tuple[Change, ...] = ()
    touched_scopes: tuple[Scope, ...] = ()
    notes: tuple[str, ...] = ()
    error: MunimentError | None = None

    def as_json(self) -> dict[str, Any]:
        """The document that `undo --json` prints."""
        return {
            "task_id": self.task_id,
            "undone": self.undone,
            "status": self.status,
            "changes": [{"path": change.path, "kind": change.kind} for change in self.changes],
            "touched_scopes": list(self.touched_scopes),
            "notes": list(self.notes),
            **error_json(self.error),
        }


def undo(task: str, place: Place, *, trust: Trust = Trust.OWNER, cancel: Cancel | None = None) -> UndoResult:
    """Take back what `task` did; what goes wrong is in the result's `error`, never raised.

    Args:
        task: id of the task.
        place: the policy, roots and state; they stay the caller's.
        trust: of the one who asks; what would replace text of a higher trust waits for the owner.
        cancel: ends it early; once the commit has begun to write it runs to its end.
    """
    task_id = f"undo-{new_ulid()}"
    patience = Patience(time.monotonic() + WAIT_SECONDS, cancel)
    try:
        result = _undo(task, task_id, place, trust, patience)
    except MunimentError as error:
        status: Literal["failed", "cancelled"] = "cancelled" if isinstance(error, Cancelled) else "failed"
        result = UndoResult(task_id, task, status, error=error)
    events.emit(
        "undo_ended",
        task_id=task_id,
        undone=None if isinstance(result.error, NotFound) else task,  # What is no task may be any text.
        status=result.status,
        code=None if result.error is None else result.error.code,
        files=len(result.changes),
    )
    return result


def _undo(task: str, task_id: str, place: Place, trust: Trust, patience: Patience) -> UndoResult:
    kept = of_task(place.state, task)
    if kept is None:
        raise NotFound(f"no task {printable(task)!r} has changed this memory; see: muniment history")
    undone = undone_by(place.state, task)
    if undone is not None:
        raise AlreadyUndone(task, undone)
    scopes = _scopes(kept, place)
    origin = Origin(
        task_id,
        "undo",
        timestamp(datetime.now(UTC)),
        trust,
        DECIDED_BY,
        place.policy.label,
        undoes=task,
    )
    terms = Terms(
        place.policy,
        place.roots,
        patience,
        place.state,
        origin,
        lambda draft, _: Ruling(_trust_of(draft, place)),
        author=Author.RESTORE,
        reviewed=trust is Trust.OWNER,
    )
    try:
        done = commit([_change_set(kept.changes, scopes, place)], terms)
    except StoreConflict as conflict:
        raise UndoOverlap(conflict.paths) from conflict
    made: dict[Scope, list[RelPath]] = {}
    for item, scope in zip(kept.changes, scopes, strict=True):
        made.setdefault(scope, []).extend(item.made)
    notes = done.notes
    try:
        remove_emptied(place.roots, made, patience)
    except MunimentError as error:  # It is committed: that empty directories stay does not make it fail.
        notes = (*notes, f"directories that are empty now are still there: {error}")
    return UndoResult(task_id, task, "completed", done.changes, done.touched_scopes, notes)


def _scopes(kept: Kept, place: Place) -> list[Scope]:
    """The present scope of each change.

    Raises:
        Erased: what the task did is no longer known.
        InvalidScope: it changed a directory that is not bound here.
    """
    erased = [item.path for item in kept.changes if item.is_erased]
    if erased:
        raise Erased(f"what {kept.origin.task} did was erased: {', '.join(erased)}; nothing was written")
    names = {root_key(place.state, root): scope for scope, root in place.roots.items()}
    elsewhere = sorted({item.scope for item in kept.changes if item.root not in names})
    if elsewhere:
        raise InvalidScope(
            f"{kept.origin.task} changed another directory of scope {', '.join(elsewhere)}; undo it in the "
            "workspace, or with the --root, in which it ran"
        )
    return [names[item.root] for item in kept.changes]


def _change_set(changes: Sequence[KeptChange], scopes: Sequence[Scope], place: Place) -> ChangeSet:
    """What takes `changes` back.

    Raises:
        UndoOverlap: a file is not what the task left.
    """
    proposed: list[Proposed] = []
    removals: list[Claim] = []
    overlapping: list[str] = []
    for item, scope in zip(changes, scopes, strict=True):
        path = f"{scope}/{item.rel}"
        if not _is_as_left(place, scope, item):
            overlapping.append(path)
        left = None if item.after is None else digest(item.after)
        if item.before is not None:
            proposed.append(Proposed(path, left, item.before))
        else:
            removals.append(Claim(path, left))
    if overlapping:
        raise UndoOverlap(tuple(overlapping))
    return ChangeSet(tuple(proposed), (), tuple(removals))


def _is_as_left(place: Place, scope: Scope, item: KeptChange) -> bool:
    try:
        return place.roots[scope].root.read_bytes(item.rel) == item.after
    except NotFound:
        return item.after is None
    except (ToolError, PathEscape):
        return False


def _trust_of(draft: Draft, place: Place) -> Trust:
    """The trust of bytes that come back (U1)."""
    scope = draft.path.scope
    if draft.after is None:
        return place.policy.trust_of(scope)
    return trust_at(
        place.state, root_key(place.state, place.roots[scope]), draft.path, draft.after, place.policy
    )
