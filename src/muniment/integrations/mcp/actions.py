"""Read and change the memory for the tools, resources and prompts of MCP.

The rules M1 to M3 in the docstring of `tools` apply to all functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final

from muniment.cancelling import Cancel
from muniment.errors import NotFound
from muniment.integrations.mcp.responses import (
    DreamAnswer,
    HistoryAnswer,
    McpHistoryStep,
    PinAnswer,
    ShowAnswer,
    UndoAnswer,
)
from muniment.integrations.results import ToolProblem, quote_as_data
from muniment.kernel.names import INDEX_NAME, Scope, Trust
from muniment.kernel.path import CanonicalPath

if TYPE_CHECKING:
    from muniment.operations.job_context import JobContext
    from muniment.operations.visibility import Reader, Visibility
    from muniment.store.ledger import Run
    from muniment.types import DreamRequest

PAGE_ENTRIES: Final = 200
"""Maximum number of entries on one page of the resources."""

MAX_ENTRY_BYTES: Final = 256 * 1024
"""Maximum bytes of a displayed entry. A response contains the entry twice, and clients accept one MiB."""

_TOOL_KINDS: Final = frozenset({"remember", "forget", "dream", "undo"})
"""Kinds of tasks that a tool or a program requests; all other kinds, such as approvals and edits, are of
people.
"""

MAX_HISTORY_STEPS: Final = 50
"""Maximum number of steps in one response of the tool `history`."""


def _create_visibility(context: JobContext, reader: Reader) -> Visibility:
    """Return an object that decides what a reader may see.

    Its module is imported in this function, because the handshake of a client does not need it.
    """
    from muniment.operations.visibility import Visibility

    return Visibility(context, reader)


def list_resources(
    context: JobContext, reader: Reader, after: str | None
) -> tuple[list[tuple[str, str]], str | None]:
    """Return one page of the entries that a recall may return; the first page begins with the indexes.

    Args:
        context: the memory.
        reader: the caller, whose trust decides which entries are visible.
        after: the path after which the page begins; None: the first page.

    Returns:
        The sorted paths, each with a name that code created.
        The path after which the next page begins; None if this is the last page.

    Cost: a stat of every file, and the rows of all entries.
    """
    from muniment.store.index import shorten_path

    visibility = _create_visibility(context, reader)
    found = [
        path
        for scope in context.roots
        for row in visibility.load_view(scope).entries()
        if visibility.is_recallable(path := CanonicalPath(scope, row.rel), row)
        and (after is None or path.text > after)
    ]
    page = sorted(found, key=lambda path: path.text)[:PAGE_ENTRIES]
    resources = [
        (found_index.path, f"index of {scope}")
        for scope in (context.roots if after is None else ())
        if (found_index := _read_index(context, reader, scope)) is not None
    ]
    resources += [(path.text, f"{path.scope}/{shorten_path(path.rel)}") for path in page]
    return resources, page[-1].text if len(found) > PAGE_ENTRIES else None


def show_entry(context: JobContext, reader: Reader, unsafe_path: str) -> ShowAnswer:
    """Return an entry, or the index of a scope, as data between marks.

    Args:
        context: the memory.
        reader: the caller, whose trust decides which entries are visible.
        unsafe_path: the path or handle of an entry, or the path of a scope for its index.

    Raises:
        PathEscape, Refusal: not a path of the memory, or several entries have the handle.
        NotFound: the entry does not exist, or a recall may not return it.
        ToolProblem: the entry is too large.
        ManagedMemoryUnavailable: the state cannot be used.
    """
    visibility = _create_visibility(context, reader)
    path = visibility.resolve_entry(unsafe_path, recallable_only=True)
    if path.rel in {"", INDEX_NAME}:
        if (found := _read_index(context, reader, path.scope)) is None:
            raise NotFound(f"the scope {path.scope} has no index yet")
        return found
    if (loaded := visibility.load_entry(path)) is None:
        raise NotFound(f"entry {path.text} not found; recall and the resources list the entries")
    if len(loaded.data) > MAX_ENTRY_BYTES:
        raise ToolProblem(
            "too_large", f"{path.text} is larger than {MAX_ENTRY_BYTES} bytes; recall parts of it"
        )
    return ShowAnswer(path=path.text, trust=loaded.trust, text=quote_as_data(loaded.entry.text))


def _read_index(context: JobContext, reader: Reader, scope: Scope) -> ShowAnswer | None:
    from muniment.operations.indexes import load_visible_index

    _create_visibility(context, reader).load_view(scope)  # Update the catalog with edits by hand.
    text = load_visible_index(context, context.policy, scope, reader.trust)
    return (
        None
        if text is None
        else ShowAnswer(path=f"{scope}/{INDEX_NAME}", trust=None, text=quote_as_data(text))
    )


def list_history(context: JobContext, reader: Reader, unsafe_path: str) -> HistoryAnswer:
    """Return the newest committed changes at or below a path that the reader may see.

    Raises the errors of `operations.review.load_history`.
    """
    from muniment.operations.review import load_history
    from muniment.store.handles import parse_handle

    visibility = _create_visibility(context, reader)
    if parse_handle(unsafe_path) is not None:
        unsafe_path = visibility.resolve_entry(unsafe_path, recallable_only=True).text
    visible = visibility.filter_steps(load_history(context, unsafe_path or None))
    steps = list(islice(visible, MAX_HISTORY_STEPS + 1))
    displayed = [McpHistoryStep.model_validate(each) for each in steps[:MAX_HISTORY_STEPS]]
    return HistoryAnswer(steps=displayed, more=len(steps) > MAX_HISTORY_STEPS)


def resolve_task(text: str, context: JobContext, reader: Reader) -> str:
    """Return the id of a task for its id or handle; an unknown text is returned unchanged.

    A caller that is not the owner has only the handles of tasks that it requested, and of those that
    `list_history` shows it and that it may undo. Otherwise it could find tasks by trying all handles.

    Raises:
        BadName: several tasks have the handle.
    """
    from muniment.operations import undoable
    from muniment.store.ledger import find_commit

    def is_known(run: Run) -> bool:
        if reader.is_owner or reader.requested_task(run.task):
            return True
        recorded = find_commit(context.state, run.task) if _can_undo(run, reader.trust) else None
        return recorded is not None and bool(_create_visibility(context, reader).list_commit_paths(recorded))

    return undoable.resolve_task(context.state, text, is_known)


def undo_task(task_id: str, context: JobContext, reader: Reader, cancel: Cancel) -> UndoAnswer:
    """Undo a task if the caller may; the result lists only paths that the caller may see.

    Raises:
        ToolProblem: a caller with higher trust, or a person, requested the task.
        MunimentError: as `Memory.undo`.
    """
    from muniment.operations.review import undo_task
    from muniment.store.ledger import find_commit

    recorded = find_commit(context.state, task_id)
    if recorded is not None and not _can_undo(recorded.run, reader.trust):
        raise create_owner_problem()
    before = _create_visibility(context, reader)
    visible_paths = set() if recorded is None else set(before.list_commit_paths(recorded))
    result = undo_task(task_id, context, trust=reader.trust, cancel=cancel)
    if result.error is not None:
        raise result.error if reader.requested_task(task_id) else before.redact_error(result.error)
    changed = [change.path for change in result.changes]
    visible_paths |= set(_create_visibility(context, reader).filter_paths(changed))
    notes = result.notes if visible_paths.issuperset(changed) else ()
    return UndoAnswer.from_result(
        result, paths=[path for path in changed if path in visible_paths], notes=notes
    )


def _can_undo(run: Run, trust: Trust) -> bool:
    is_owner = trust is Trust.OWNER
    return is_owner or (run.kind in _TOOL_KINDS and trust.satisfies(run.trust))


def create_owner_problem(action: str = "undo that, with muniment undo") -> ToolProblem:
    """Return the failure of a call that only the owner may make.

    Args:
        action: the forbidden action and the command for it, for the message.
    """
    return ToolProblem("owner_required", f"only the owner of the memory may {action} or on the page")


def tidy(request: DreamRequest, context: JobContext, reader: Reader, cancel: Cancel) -> DreamAnswer:
    """Tidy the memory by rules, with the trust of the reader.

    The result lists only paths that the reader may see. No language model is used, because it could merge
    other entries than those in the preview.

    Raises:
        MunimentError: as `Memory.dream`. If the caller is not the owner, removals wait for the owner's
            review.
    """
    from muniment.agent.filing import RuleWriter
    from muniment.operations.dream import dream

    visibility = _create_visibility(context, reader)
    result = dream(replace(request, trust=reader.trust), context, RuleWriter(), cancel=cancel)
    if result.error is not None:
        raise visibility.redact_error(result.error)
    merged, expired = map(visibility.filter_paths, (result.deduped_paths, result.expired_paths))
    lines = {path: [f"- {path}: repeated or replaced"] for path in merged}
    lines |= {path: [f"- {path}: expired"] for path in expired}
    unchanged = [
        f"{path} ended, according to its text; it stays"
        for path in visibility.filter_paths(result.ended_paths)
    ]
    if reader.is_owner:
        unchanged += [f"{each.path} stays: {each.reason}" for each in result.kept]
    notes = (*([result.summary] if lines else []), *result.notes, *unchanged[:PAGE_ENTRIES])
    return DreamAnswer.from_lines(replace(result, notes=notes), lines, dry_run=request.dry_run)


def pin_entry(
    unsafe_path: str, context: JobContext, _: Reader, cancel: Cancel, *, dry_run: bool
) -> PinAnswer:
    """Pin or unpin an entry, for the owner only; raise the errors of `operations.edit.toggle_pin`."""
    from muniment.operations.edit import toggle_pin

    return PinAnswer.from_result(
        toggle_pin(context, unsafe_path, recallable_only=True, dry_run=dry_run, cancel=cancel)
    )


class CommitsSince:
    """Finds the entries that were changed by any task or program since the last call.

    Args:
        context: returns the current memory.
        number: the number of the last event that is already known.
    """

    def __init__(self, context: Callable[[], JobContext], number: int) -> None:
        self._place, self._number = context, number

    def read_changes(self) -> list[str] | None:
        """Return the paths of entries that changed since the last call; None if no commit was made.

        At most `PAGE_ENTRIES` paths are returned. Entries that a recall may not return are omitted.

        Raises:
            MunimentError: the memory cannot be opened, or the ledger cannot be read.

        Cost: a query, one more for each root, and one more for each commit.
        """
        from muniment.operations.visibility import Reader
        from muniment.store.ledger import find_commit
        from muniment.store.tasks import read_events

        context = self._place()
        state, visibility = context.state, _create_visibility(context, Reader(Trust.EXTERNAL))
        names = context.map_keys_to_scopes()
        is_changed, paths = False, dict[str, None]()
        while found := read_events(state.ledger, self._number, PAGE_ENTRIES):
            self._number = found[-1].number
            for event in found:
                if event.type != "memory_changed" or names.keys().isdisjoint(event.roots):
                    continue
                is_changed = True
                recorded = find_commit(state, event.task)
                for row in () if recorded is None else recorded.changes:
                    if row.root in names and not row.is_erased and len(paths) < PAGE_ENTRIES:
                        path = f"{names[row.root]}/{row.change.path.rel}"
                        paths |= {path: None} if visibility.is_path_visible(path) else {}
        return list(paths) if is_changed else None
