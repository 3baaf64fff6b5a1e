"""Decide what a reader may see of a memory: the one rule for every listing, preview and error.

The path of an entry often states its fact. So if an entry can no longer be recalled, its path must not be
listed either.

V1 A path is visible to a reader below the owner's trust if a recall may return its entry now. That is: the
   policy makes it visible, its file is readable, is neither withheld nor expired, and passes the gates of a
   recall.
V2 A step of the history is visible if its path is, or if the reader requested the task of this step. In both
   cases the policy must not hide the path.
V3 To the owner every path is visible that the policy does not hide.
V4 A handle finds only entries whose path is visible. Whether other entries have the handle changes nothing.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Final

from muniment.content.expiry import is_expired
from muniment.errors import (
    BadName,
    Erased,
    InvalidContent,
    JobFailed,
    MunimentError,
    NotFound,
    PathEscape,
    Refusal,
    RollbackFailed,
    StoreConflict,
    ToolError,
    UndoOverlap,
)
from muniment.kernel.cancel import CancelToken, Deadline
from muniment.kernel.decide import PolicyEvaluator
from muniment.kernel.names import Scope, Trust
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath, canonicalise
from muniment.operations.job_context import JobContext, LoadedEntry, is_visible, load_entry, parse_address
from muniment.operations.request import MAX_LISTED_PATHS
from muniment.store.audit import timestamp
from muniment.store.handles import HANDLE_CHARS, parse_handle, parse_task_handle
from muniment.store.ledger import find_tasks, read_task_steps
from muniment.store.upkeep import open_view

if TYPE_CHECKING:
    from muniment.store.catalog import CatalogEntry, View
    from muniment.store.ledger import CommitRow
    from muniment.store.tasks import QueuedTask
    from muniment.types import CommittedStep

ALREADY_KNOWN: Final = "already known"
"""The summary of a remember that changed nothing; a colon and the paths with the same fact follow it."""

STALE_PREVIEW: Final = "this preview is out of date, because its entries changed; request a new one"


def _is_no_owner(_: str) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Reader:
    """A caller that reads the memory; its trust decides what it may see.

    Attributes:
        trust: the trust of the reader; every trust except `owner` is "below the owner's trust".
        requested_task: returns whether this reader requested the task with an id.
    """

    trust: Trust
    requested_task: Callable[[str], bool] = _is_no_owner

    @property
    def is_owner(self) -> bool:
        """Return whether the reader has the owner's trust."""
        return self.trust is Trust.OWNER


def _passes_recall_gates(loaded: LoadedEntry) -> bool:
    """Return whether the text of an entry passes the gates of a recall."""
    from muniment.recall.reading import find_display_gate

    return find_display_gate(loaded.entry.text, loaded.trust) is None


class Visibility:
    """The view of one reader on a memory at this moment; create a new one for each request.

    Args:
        context: the policy, roots and state; the caller closes them.
        reader: the reader.
        cancel: cancels the call at the next entry; None: it cannot be cancelled.
    """

    def __init__(self, context: JobContext, reader: Reader, cancel: CancelToken | None = None) -> None:
        self._context, self.reader = context, reader
        self._deadline = Deadline(math.inf, cancel)
        self._judge, self._now = PolicyEvaluator(context.policy), timestamp()
        self._views: dict[Scope, View] = {}
        self._path_results: dict[str, bool] = {}

    def load_view(self, scope: Scope) -> View:
        """Return the catalog of a bound scope, updated after a check of every file.

        Raises:
            ManagedMemoryUnavailable: the state cannot be used.
        """
        if scope not in self._views:
            context = self._context
            self._views[scope] = open_view(context.state, context.roots[scope], context.policy, sweep=True)
        return self._views[scope]

    def is_recallable(self, path: CanonicalPath, row: CatalogEntry) -> bool:
        """Return whether a recall may return the entry of a catalog row, according to this row.

        The answer is the same for the owner: no response to a model contains an entry that a recall does not
        return.
        """
        has_expired = is_expired(row.expires, self._now)
        return row.readable and row.held is None and not has_expired and is_visible(self._judge, path)

    def can_list(self, path: CanonicalPath, row: CatalogEntry) -> bool:
        """Return whether a listing for the reader may contain the entry of a catalog row.

        The text of the entry is not checked by the gates of a recall.
        """
        return is_visible(self._judge, path) if self.reader.is_owner else self.is_recallable(path, row)

    def load_entry(self, path: CanonicalPath) -> LoadedEntry | None:
        """Return the entry at a path if a recall may return it now, else None.

        Raises:
            ManagedMemoryUnavailable: the state cannot be used.
            Cancelled: the caller cancelled the request.

        Cost: opening and reading the file, and a query of the ledger.
        """
        self._deadline.check()
        row = self.load_view(path.scope).entry(path.rel) if path.scope in self._context.roots else None
        if row is None or not self.is_recallable(path, row):
            return None
        loaded = load_entry(self._context, path.scope, row)
        if loaded is None or not loaded.is_unchanged or not _passes_recall_gates(loaded):
            return None
        return loaded

    def find_by_handle(self, handle: str, *, recallable_only: bool = False) -> dict[CanonicalPath, str]:
        """Return the paths that the reader may see of all entries with a handle, each with its handle.

        Args:
            handle: the result of `parse_handle`.
            recallable_only: treat the reader as if it was below the owner's trust (rule V1).

        Raises:
            ManagedMemoryUnavailable: the state cannot be used.

        Cost: a check of every file of the bound scopes.
        """
        can_see_hidden = self.reader.is_owner and not recallable_only
        found = {
            CanonicalPath(scope, row.rel): row.handle
            for scope in self._context.roots
            for row in self.load_view(scope).find_by_handle(handle)
        }
        return {
            path: each
            for path, each in found.items()
            if is_visible(self._judge, path) and (can_see_hidden or self.load_entry(path) is not None)
        }

    def resolve_entry(self, unsafe_path: str, *, recallable_only: bool = False) -> CanonicalPath:
        """Return the canonical path for a path, an address or a handle of an entry.

        A text that can be a handle is one, unless a scope has this name. The owner may also give the handle
        of a task that changed only this entry.

        Args:
            unsafe_path: the text.
            recallable_only: as in `find_by_handle`.

        Raises:
            PathEscape, Refusal: the text is not a valid path of this memory, or several entries have the
                handle.
            NotFound: the scope has no directory yet, or no entry that the reader may see has the handle.
            ManagedMemoryUnavailable: the state cannot be used.

        Cost: nothing for a path; as `find_by_handle` for a handle.
        """
        handle = parse_handle(unsafe_path)
        can_name_task = self.reader.is_owner and not recallable_only
        if handle is None and can_name_task and parse_task_handle(unsafe_path) is not None:
            handle = _find_entry_of_task(self._context, unsafe_path)
        if handle is None or unsafe_path in self._context.policy.scopes:
            return self._context.resolve_path(unsafe_path)
        found = self.find_by_handle(handle, recallable_only=recallable_only)
        if not found:
            raise NotFound(f"no entry has the handle {handle}")
        if len(found) > 1:
            raise BadName(_describe_ambiguity(handle, found))
        return next(iter(found))

    def find_named_entry(self, text: str) -> CanonicalPath | None:
        """Return the path of an entry if a text is its path, its address or its complete handle, else None.

        A path need not exist. An incomplete handle may also be a word, such as `http2`.

        Raises:
            InvalidContent: several entries have the handle.
            ManagedMemoryUnavailable: the state cannot be used.
        """
        if (handle := parse_handle(text)) is None or len(handle) < HANDLE_CHARS:
            try:
                path = canonicalise(parse_address(text), self._context.roots)
            except (PathEscape, Refusal):
                return None
            return path if path.rel.endswith(FILE_SUFFIX) else None
        found = self.find_by_handle(handle)
        if len(found) > 1:
            raise InvalidContent(f"{_describe_ambiguity(handle, found)}; nothing was removed")
        return next(iter(found), None)

    def can_quote(self, loaded: LoadedEntry) -> bool:
        """Return whether the reader may see the text of an entry."""
        return self.reader.is_owner or _passes_recall_gates(loaded)

    def is_path_visible(self, text: str) -> bool:
        """Return whether the reader may see a path that is given with its scope.

        Raises:
            ManagedMemoryUnavailable: the state cannot be used.
        """
        if text not in self._path_results:
            path = self._resolve_permitted(text)
            is_owner = self.reader.is_owner
            self._path_results[text] = path is not None and (is_owner or self.load_entry(path) is not None)
        return self._path_results[text]

    def filter_steps(self, steps: Collection[CommittedStep]) -> Iterator[CommittedStep]:
        """Return the steps of a history that the reader may see, in their order.

        Rule V2 in the module docstring defines these steps. Raises as `is_path_visible`, during the
        iteration.
        """
        return (each for each in steps if self._is_step_visible(each.path, each.task))

    def list_commit_paths(self, done: CommitRow) -> list[str]:
        """Return the paths of a commit that the reader may see."""
        names = self._context.map_keys_to_scopes()
        paths = [f"{names[item.root]}/{item.change.path.rel}" for item in done.changes if item.root in names]
        return paths if self.reader.requested_task(done.run.task) else self.filter_paths(paths)

    def _is_step_visible(self, path: str, task: str) -> bool:
        return (
            self._resolve_permitted(path) is not None
            if self.reader.requested_task(task)
            else self.is_path_visible(path)
        )

    def _resolve_permitted(self, text: str) -> CanonicalPath | None:
        """Return the canonical path for a text, or None if it is invalid or the policy hides it."""
        try:
            path = canonicalise(text, self._context.policy.scopes)
        except (PathEscape, Refusal):
            return None
        return path if is_visible(self._judge, path) else None

    # -- errors and results

    def redact_error(self, error: MunimentError) -> MunimentError:
        """Return an error without the paths that the reader may not see."""
        if isinstance(error, Erased) and not self.reader.is_owner:
            return Erased("what this task did was erased; nothing was written")
        if isinstance(error, RollbackFailed) and not self.reader.is_owner:
            return RollbackFailed(
                "memory", "an interrupted change cannot be rolled back now; notify its owner"
            )
        if self.reader.is_owner or not isinstance(error, StoreConflict | UndoOverlap | JobFailed):
            return error
        visible_paths = tuple(filter(self._is_path_visible_or_error, error.paths))
        if visible_paths == error.paths:
            return error
        match error:
            case JobFailed():
                message = f"this matches {error.meant} items, and one forget may remove {error.limit}"
                message = f"{message}; use more words; nothing was removed"
                return JobFailed(
                    message, code=error.code, paths=visible_paths, meant=error.meant, limit=error.limit
                )
            case _:
                return type(error)(visible_paths or ("another entry",))

    def filter_paths(self, paths: Collection[str]) -> list[str]:
        """Return the paths among `paths` that the reader may see."""
        return list(filter(self._is_path_visible_or_error, paths))

    def is_unchanged(self, text: str, since: str) -> bool:
        """Return whether an entry is visible to the reader and its file was not changed since a time.

        Args:
            text: the path of the entry, with its scope.
            since: the time, in the format of the ledger.
        """
        path = self._resolve_permitted(text)
        if path is None or not self._is_path_visible_or_error(path.text):
            return False
        try:
            with self._context.roots[path.scope].root.open_file(path) as file:
                touched = datetime.fromtimestamp(os.fstat(file.fd).st_ctime, UTC)
        except (PathEscape, Refusal, ToolError):
            return False
        return timestamp(touched) <= since

    def _is_path_visible_or_error(self, text: str) -> bool:
        """Return whether the reader may see a path; False if an error prevents the check."""
        try:
            return self.is_path_visible(text)
        except MunimentError:
            return False


def resolve_for_owner(context: JobContext, unsafe_path: str) -> CanonicalPath:
    """Return the canonical path for a path, an address or a handle that the owner gives.

    Raises and costs as `Visibility.resolve_entry`.
    """
    return Visibility(context, Reader(Trust.OWNER)).resolve_entry(unsafe_path)


def _find_entry_of_task(context: JobContext, task_handle: str) -> str:
    """Return the handle of the only entry that a task changed.

    Raises:
        BadName: several tasks have the handle.
        NotFound: no task has the handle, or the task changed several entries.
    """
    tasks = find_tasks(context.state, task_handle)
    if len(tasks) > 1:
        raise BadName(f"ambiguous handle {task_handle}: use the path of the entry; see: muniment history")
    steps = read_task_steps(context.state, context.map_keys_to_scopes(), tasks[0]) if len(tasks) == 1 else ()
    handles = {each.handle for each in steps}
    if len(handles) != 1 or "" in handles:
        raise NotFound(f"{task_handle} is not the handle of one entry; see: muniment history {task_handle}")
    return handles.pop()


def find_owned_entries(context: JobContext, handle: str) -> dict[CanonicalPath, str]:
    """Return the entries with a handle that the owner may see, as `Visibility.find_by_handle`."""
    return Visibility(context, Reader(Trust.OWNER)).find_by_handle(handle)


def resolve_place(context: JobContext, unsafe_path: str) -> CanonicalPath:
    """Return the canonical path for a scope, a folder or an entry that the owner gives.

    An entry can be given by its path, its address or its handle. Raises and costs as
    `Visibility.resolve_entry`.
    """
    if parse_handle(unsafe_path) is not None and unsafe_path not in context.policy.scopes:
        return resolve_for_owner(context, unsafe_path)
    return canonicalise(parse_address(unsafe_path).removesuffix("/"), context.policy.scopes)


def _describe_ambiguity(handle: str, found: Mapping[CanonicalPath, str]) -> str:
    """Return the message about a handle that several entries have.

    Args:
        handle: the handle, or the beginning of one, that was given.
        found: the paths of the entries, each with its handle.
    """
    listed = ", ".join(f"{path.text} ({each})" for path, each in islice(found.items(), MAX_LISTED_PATHS))
    more = ", …" if len(found) > MAX_LISTED_PATHS else ""
    return f"ambiguous handle {handle}: use the path of one of these entries: {listed}{more}"


# -- tasks -------------------------------------------------------------------------------------------
#
# A client can read its tasks while the lane retains them. The paths that a task changed stay in its result;
# the text that it removed does not. Text that it only read, such as a preview, stays while a recall may
# return it unchanged.


def may_list_foreign_paths(task: QueuedTask) -> bool:
    """Return whether the result or error of a task may list paths that the task did not change."""
    result = task.result
    if result is None:
        return bool((task.error or {}).get("paths"))
    if task.kind == "forget":
        return not result["touchedScopes"]
    return task.kind == "remember" and (not result["filesTouched"] or bool(result.get("similar")))


def redact_task(task: QueuedTask, visibility: Visibility | None) -> QueuedTask:
    """Return a task that the reader requested, without paths and texts that the reader may no longer see.

    Args:
        task: the task; its result has the members of the wire format.
        visibility: the view of the reader; None: the memory cannot be read, so paths of others are hidden.
    """
    if not may_list_foreign_paths(task):
        return _remove_text(task) if task.kind == "forget" and task.result is not None else task

    def filter_visible(paths: Collection[str]) -> list[str]:
        return [] if visibility is None else visibility.filter_paths(paths)

    if task.result is None:
        error = dict(task.error or {})
        return replace(task, error={**error, "paths": filter_visible(error["paths"])})
    result = dict(task.result)
    if task.kind == "remember":
        label, _, paths = result["summary"].partition(": ")
        known_paths = paths.split(", ")
        if label == ALREADY_KNOWN and filter_visible(known_paths) != known_paths:
            result["summary"] = ALREADY_KNOWN
        if similar := result.get("similar"):
            visible = frozenset(filter_visible([each["path"] for each in similar]))
            result["similar"] = [each for each in similar if each["path"] in visible]
        return replace(task, result=result)
    removed = [
        each
        for each in result["removedEntries"]
        if visibility is not None and visibility.is_unchanged(each["filePath"], task.updated)
    ]
    near = filter_visible(result.get("near", ()))
    if removed == list(result["removedEntries"]) and near == list(result.get("near", ())):
        return task
    result = {name: value for name, value in result.items() if name not in {"digest", "notes", "near"}}
    result |= {"removedEntries": removed, "near": near, "summary": STALE_PREVIEW}
    return replace(task, result=result)


def _remove_text(task: QueuedTask) -> QueuedTask:
    """Return a forget task with the paths of the removed entries, but without their text."""
    result = dict(task.result or {})
    removed = [
        {name: value for name, value in each.items() if name != "text"}
        | {"summary": each["filePath"].rpartition("/")[2].removesuffix(FILE_SUFFIX)}
        for each in result["removedEntries"]
    ]
    return replace(task, result={**result, "removedEntries": removed})
