"""Decide what a reader may see of a memory: the one rule for every listing, preview and error.

A path spells out the fact of its entry. So a path whose entry can no longer be recalled must not be listed.

V1 A path is visible to a reader below the owner's trust if a recall may return its entry now. That is: the
   policy makes it visible, its file is readable, is neither withheld nor expired, and passes the gates of a
   recall.
V2 A step of the history is visible if its path is, or if one of the reader's tasks made it.
V3 To the owner every path is visible that the policy does not hide.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from muniment.content.expiry import is_expired
from muniment.errors import (
    Erased,
    JobFailed,
    MunimentError,
    PathEscape,
    Refusal,
    RollbackFailed,
    StoreConflict,
    ToolError,
    UndoOverlap,
)
from muniment.kernel.cancel import Cancelling, Patience
from muniment.kernel.decide import Judge
from muniment.kernel.names import Scope, Trust
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath, canonicalise
from muniment.operations.place import Holding, Place, may_see, read_holding
from muniment.store.audit import timestamp
from muniment.store.upkeep import view_of

if TYPE_CHECKING:
    from muniment.store.catalog import CatalogEntry, View
    from muniment.store.ledger import CommitRow
    from muniment.store.tasks import QueuedTask
    from muniment.types import CommittedStep

ALREADY_KNOWN: Final = "already known"
"""The summary of a remember that changed nothing; the paths with the same fact follow after a colon."""

STALE_PREVIEW: Final = "this preview is out of date: its entries were changed since; request a new one"


def _owns_nothing(_: str) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader.

    Attributes:
        trust: of the reader; "below the owner's" is every trust except `owner`.
        owns: returns whether this reader requested a task, by its id.
    """

    trust: Trust
    owns: Callable[[str], bool] = _owns_nothing

    @property
    def is_owner(self) -> bool:
        """Return whether the reader has the owner's trust."""
        return self.trust is Trust.OWNER


def _passes_gates(holding: Holding) -> bool:
    """Return whether the text of an entry passes the gates of a recall."""
    from muniment.recall.reading import gate_of

    return gate_of(holding.entry.text, holding.trust) is None


class Visibility:
    """The view of one reader on a place now; create a new one for each request.

    Args:
        place: policy, roots and state; the caller closes them.
        reader: the reader.
        cancel: cancels the call at the next entry; None: it cannot be cancelled.
    """

    def __init__(self, place: Place, reader: Reader, cancel: Cancelling | None = None) -> None:
        self._place, self.reader = place, reader
        self._patience = Patience(math.inf, cancel)
        self._judge, self._now = Judge(place.policy), timestamp()
        self._views: dict[Scope, View] = {}
        self._known: dict[str, bool] = {}

    def view(self, scope: Scope) -> View:
        """Return the catalog of a bound scope, after a check of every file.

        Raises:
            ManagedMemoryUnavailable: the state cannot be used.
        """
        if scope not in self._views:
            place = self._place
            self._views[scope] = view_of(place.state, place.roots[scope], place.policy, sweep=True)
        return self._views[scope]

    def is_recallable(self, path: CanonicalPath, row: CatalogEntry) -> bool:
        """Return whether a recall may return the entry of a row, as far as the catalog knows.

        This applies to the owner too: no response to a model contains an entry that a recall does not return.
        """
        is_over = is_expired(row.expires, self._now)
        return row.readable and row.held is None and not is_over and may_see(self._judge, path)

    def lists(self, path: CanonicalPath, row: CatalogEntry) -> bool:
        """Return whether a listing may contain the entry of a row (V1 without the gates, V3)."""
        return may_see(self._judge, path) if self.reader.is_owner else self.is_recallable(path, row)

    def entry(self, path: CanonicalPath) -> Holding | None:
        """Return the entry at a path if a recall may return it now, else None.

        Raises:
            ManagedMemoryUnavailable: the state cannot be used.
            Cancelled: the caller cancelled the request.

        Cost: an open, a read and a query of the ledger.
        """
        self._patience.check()
        row = self.view(path.scope).entry(path.rel) if path.scope in self._place.roots else None
        if row is None or not self.is_recallable(path, row):
            return None
        holding = read_holding(self._place, path.scope, row)
        if holding is None or not holding.is_as_listed or not _passes_gates(holding):
            return None
        return holding

    def passes(self, holding: Holding) -> bool:
        """Return whether the text of an entry may be quoted to the reader."""
        return self.reader.is_owner or _passes_gates(holding)

    def shows(self, text: str) -> bool:
        """Return whether a logical path is visible (V1, V3).

        Raises:
            ManagedMemoryUnavailable: the state cannot be used.
        """
        if text not in self._known:
            path = self._permitted(text)
            is_owner = self.reader.is_owner
            self._known[text] = path is not None and (is_owner or self.entry(path) is not None)
        return self._known[text]

    def steps(self, steps: Collection[CommittedStep]) -> Iterator[CommittedStep]:
        """Return the visible steps of a history, in their order (V2). Raises as `shows`."""
        return (each for each in steps if self._shows_step(each.path, each.task))

    def paths_of(self, done: CommitRow) -> list[str]:
        """Return the visible paths of a commit (V2)."""
        names = self._place.scopes_by_key()
        paths = [f"{names[item.root]}/{item.change.path.rel}" for item in done.changes if item.root in names]
        return paths if self.reader.owns(done.run.task) else self.paths(paths)

    def _shows_step(self, path: str, task: str) -> bool:
        return self._permitted(path) is not None if self.reader.owns(task) else self.shows(path)

    def _permitted(self, text: str) -> CanonicalPath | None:
        """Return a path that the policy does not hide, else None."""
        try:
            path = canonicalise(text, self._place.policy.scopes)
        except (PathEscape, Refusal):
            return None
        return path if may_see(self._judge, path) else None

    # -- errors and results

    def conceal(self, error: MunimentError) -> MunimentError:
        """Return an error that lists only visible paths."""
        if isinstance(error, Erased) and not self.reader.is_owner:
            return Erased("what this task did was erased; nothing was written")
        if isinstance(error, RollbackFailed) and not self.reader.is_owner:
            return RollbackFailed(
                "memory", "an interrupted change cannot be rolled back now; notify its owner"
            )
        if self.reader.is_owner or not isinstance(error, StoreConflict | UndoOverlap | JobFailed):
            return error
        shown = tuple(filter(self._shows_or_hides, error.paths))
        if shown == error.paths:
            return error
        match error:
            case JobFailed():
                told = f"this matches {error.meant} items, and one forget may remove {error.limit}"
                told = f"{told}; use more words; nothing was removed"
                return JobFailed(told, code=error.code, paths=shown, meant=error.meant, limit=error.limit)
            case _:
                return type(error)(shown or ("another entry",))

    def paths(self, paths: Collection[str]) -> list[str]:
        """Return the visible ones of some paths."""
        return list(filter(self._shows_or_hides, paths))

    def is_unchanged(self, text: str, since: str) -> bool:
        """Return whether the entry at a path is visible and its file was not changed since a time."""
        path = self._permitted(text)
        if path is None or not self._shows_or_hides(path.text):
            return False
        try:
            with self._place.roots[path.scope].root.open_file(path) as file:
                touched = datetime.fromtimestamp(os.fstat(file.fd).st_ctime, UTC)
        except (PathEscape, Refusal, ToolError):
            return False
        return timestamp(touched) <= since

    def _shows_or_hides(self, text: str) -> bool:
        """Return `shows`, or False if it raises an error."""
        try:
            return self.shows(text)
        except MunimentError:
            return False


# -- tasks -------------------------------------------------------------------------------------------
#
# A client can read its tasks while the lane retains them. The paths that a task changed stay in its result;
# the text that it removed does not. Text that it only read, such as a preview, stays while a recall may
# return it unchanged.


def names_paths_of_others(task: QueuedTask) -> bool:
    """Return whether the result or error of a task may contain paths that the task did not change."""
    result = task.result
    if result is None:
        return bool((task.error or {}).get("paths"))
    if task.kind == "forget":
        return not result["touchedScopes"]
    return task.kind == "remember" and (not result["filesTouched"] or bool(result.get("similar")))


def concealed(task: QueuedTask, visibility: Visibility | None) -> QueuedTask:
    """Return one of the reader's tasks as the reader may see it now.

    Args:
        task: with its result as the wire format defines it.
        visibility: of the reader; None: the memory cannot be read, so no path of others is visible.
    """
    if not names_paths_of_others(task):
        return _without_text(task) if task.kind == "forget" and task.result is not None else task

    def shown(paths: Collection[str]) -> list[str]:
        return [] if visibility is None else visibility.paths(paths)

    if task.result is None:
        error = dict(task.error or {})
        return replace(task, error={**error, "paths": shown(error["paths"])})
    result = dict(task.result)
    if task.kind == "remember":
        head, _, paths = result["summary"].partition(": ")
        known = paths.split(", ")
        if head == ALREADY_KNOWN and shown(known) != known:
            result["summary"] = ALREADY_KNOWN
        if similar := result.get("similar"):
            visible = frozenset(shown([each["path"] for each in similar]))
            result["similar"] = [each for each in similar if each["path"] in visible]
        return replace(task, result=result)
    removed = [
        each
        for each in result["removedEntries"]
        if visibility is not None and visibility.is_unchanged(each["filePath"], task.updated)
    ]
    near = shown(result.get("near", ()))
    if removed == list(result["removedEntries"]) and near == list(result.get("near", ())):
        return task
    result = {name: value for name, value in result.items() if name not in {"digest", "notes", "near"}}
    result |= {"removedEntries": removed, "near": near, "summary": STALE_PREVIEW}
    return replace(task, result=result)


def _without_text(task: QueuedTask) -> QueuedTask:
    """Return a forget that removed something, with only the paths of the removed entries."""
    result = dict(task.result or {})
    removed = [
        {name: value for name, value in each.items() if name != "text"}
        | {"summary": each["filePath"].rpartition("/")[2].removesuffix(FILE_SUFFIX)}
        for each in result["removedEntries"]
    ]
    return replace(task, result={**result, "removedEntries": removed})
