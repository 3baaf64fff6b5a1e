"""Find the task that an undo or a redo reverses.

Separate from `operations.review`, which reverses it: a preview only reads the ledger.

- T1 A text names a task by its id, its handle, or the beginning of its handle. Several tasks with one handle
  are an error; none of them is chosen.
- T2 A change takes effect if it was not undone. The undo of an undo is a change again (a redo). Of a change
  and all undos and redos of it, only the last one takes effect.
- T3 An undo without a task reverses the newest change that takes effect; a redo the newest undo.
- T4 A task that also changed directories that are not bound here, or whose text was erased, is never chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from muniment.content.entry import parse
from muniment.errors import BadName, NotFound, printable
from muniment.kernel.path import CanonicalPath, canonicalise
from muniment.operations.job_context import JobContext
from muniment.operations.request import MAX_LISTED_PATHS
from muniment.operations.visibility import find_owned_entries, resolve_for_owner, resolve_place
from muniment.store.handles import HANDLE_CHARS, build_task_handle, parse_handle
from muniment.store.ledger import (
    Run,
    find_commit,
    find_redos,
    find_tasks,
    list_task_ends,
    read_content_after,
    read_content_before,
    read_task_steps,
)
from muniment.store.renames import read_whole_history
from muniment.store.review import format_difference
from muniment.store.state import LedgerState
from muniment.types import CommittedStep


def resolve_task(state: LedgerState, text: str, is_known: Callable[[Run], bool] = lambda _: True) -> str:
    """Return the id of the task that a text names (rule T1); an unknown text is returned unchanged.

    Args:
        state: has the ledger.
        text: an id, a handle or the beginning of a handle.
        is_known: whether the caller may know a task, for handles.

    Raises:
        BadName: several tasks have the handle.
        ManagedMemoryUnavailable: the ledger cannot be read.

    Cost: as `find_tasks`.
    """
    found = find_tasks(state, text, is_known)
    if len(found) > 1:
        raise _create_ambiguity_error(text, found, {})
    return found[0] if found else text


def resolve_target(context: JobContext, text: str) -> str | CanonicalPath:
    """Return what the owner names: the id of a task, or the path of an entry, a folder or a scope.

    Args:
        context: the memory.
        text: an id or handle of a task; or a path, address or handle of an entry. An unknown text without a
            slash is returned unchanged, as the id of a task.

    Raises:
        BadName: several tasks or entries have the handle, or a task and an entry have it.
        PathEscape, Refusal: the text is not a valid path of this memory.
        NotFound: no entry has the handle; or the scope has no directory yet.
        ManagedMemoryUnavailable: the state cannot be used.
    """
    if "/" in text or text in context.policy.scopes:
        return resolve_place(context, text)
    tasks, handle = find_tasks(context.state, text), parse_handle(text)
    if handle is None or (text in tasks and len(handle) < HANDLE_CHARS):  # As in `find_tasks`.
        return resolve_task(context.state, text)
    if not tasks:
        return resolve_for_owner(context, text)
    if entries := find_owned_entries(context, handle):
        raise _create_ambiguity_error(text, tasks, entries)
    return resolve_task(context.state, text)


def _create_ambiguity_error(text: str, tasks: Sequence[str], entries: Mapping[CanonicalPath, str]) -> BadName:
    """Return the error about a text that names several tasks, or a task and entries; it lists them."""
    listed = [f"task {build_task_handle(task)} ({task})" for task in tasks[:MAX_LISTED_PATHS]]
    listed += [f"entry {path.text} ({each})" for path, each in islice(entries.items(), MAX_LISTED_PATHS)]
    more = ", …" if max(len(tasks), len(entries)) > MAX_LISTED_PATHS else ""
    return BadName(f"ambiguous handle {text}: use one of these: {', '.join(listed)}{more}")


def load_task_steps(context: JobContext, task: str) -> tuple[CommittedStep, ...]:
    """Return the changes of a task to the bound roots, sorted by path.

    Args:
        context: the memory.
        task: the id of the task.
    """
    return read_task_steps(context.state, context.map_keys_to_scopes(), task)


def list_undoable(context: JobContext, *, is_redo: bool = False) -> Iterator[tuple[CommittedStep, ...]]:
    """Yield the steps of each task that an undo or a redo can choose, the newest first (rules T2 to T4).

    Args:
        context: the memory.
        is_redo: choose undos that take effect, instead of changes.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be read.

    Cost: a scan of the ids of all tasks; for each task that is yielded, two queries.
    """
    ends = list_task_ends(context.state, context.map_keys_to_scopes())
    redos = find_redos(context.state)
    first_tasks: dict[str, str] = {}
    last_tasks: dict[str, str] = {}
    for each in ends:
        reversed_task = each.undoes or each.task
        first_tasks[each.task] = first_tasks.get(reversed_task, reversed_task)
        last_tasks[first_tasks[each.task]] = each.task
    for each in reversed(ends):
        is_last = last_tasks[first_tasks[each.task]] == each.task
        is_undo = each.undoes is not None and each.task not in redos
        if not is_last or is_undo != is_redo or not each.is_bound:
            continue
        steps = load_task_steps(context, each.task)
        if steps and not any(step.is_erased for step in steps):
            yield steps


def find_undoable(context: JobContext, text: str | None, *, is_redo: bool = False) -> str:
    """Return the id of the task to reverse.

    Args:
        context: the memory.
        text: a task (rule T1), or an entry, whose last task is meant; None: the newest one (rule T3).
        is_redo: choose an undo, instead of a change.

    Raises:
        NotFound: no such task, no change is left to reverse, or the task for a redo is not an undo.
        BadName, PathEscape, Refusal: as `resolve_target`.
        ManagedMemoryUnavailable: the ledger cannot be read.
    """
    if text is None:
        steps = next(list_undoable(context, is_redo=is_redo), ())
        if not steps:
            raise NotFound("no undo is left to redo" if is_redo else "no change is left to undo")
        return steps[0].task
    task = _find_last_task(context, resolve_target(context, text))
    done = find_commit(context.state, task) if is_redo else None
    if done is not None and (done.run.undoes is None or task in find_redos(context.state)):
        raise NotFound(f"{printable(text)} is not an undo; to undo it: muniment undo {printable(text)}")
    return task


def _find_last_task(context: JobContext, target: str | CanonicalPath) -> str:
    """Return the id of the last task that changed an entry; the id of a task is returned unchanged."""
    if isinstance(target, str):
        return target
    steps = read_whole_history(context.state, context.map_keys_to_scopes(), target, 1)
    if not steps:
        raise NotFound(f"no task has changed {target.text}")
    return steps[0].task


def diff_undo(context: JobContext, step: CommittedStep) -> Iterator[str]:
    """Yield the changed lines of an entry's text if a step of it is undone, in the format of a review.

    Args:
        context: the memory.
        step: a step that changed a file of a bound root.

    Raises:
        Erased: the bytes are no longer known.
    """
    path = canonicalise(step.path, context.roots)
    key = context.read_root_key(path.scope)
    sides = (
        read_content_after(context.state, key, path, step.task),
        read_content_before(context.state, key, path, step.task),
    )
    return format_difference(*(None if side is None else parse(side).body.encode() for side in sides))
