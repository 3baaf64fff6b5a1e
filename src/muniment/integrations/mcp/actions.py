"""Read and change the memory for tools, resources and prompts; `tools` defines M1 to M3."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final

from muniment.cancelling import Cancel
from muniment.errors import NotFound
from muniment.integrations.mcp.answers import (
    DreamAnswer,
    HistoryAnswer,
    McpHistoryStep,
    PinAnswer,
    ShowAnswer,
    UndoAnswer,
)
from muniment.integrations.telling import ToolProblem, marked
from muniment.kernel.names import INDEX_NAME, Scope, Trust
from muniment.kernel.path import CanonicalPath

if TYPE_CHECKING:
    from muniment.operations.place import Place
    from muniment.operations.visibility import Reader, Visibility
    from muniment.store.ledger import Run
    from muniment.types import DreamRequest

PAGE: Final = 200
"""Maximum entries of one page of the resources."""

MAX_SHOWN_BYTES: Final = 256 * 1024
"""Maximum bytes of a displayed entry; clients accept a response of one MiB, which contains the entry twice.
"""

_OWN_KINDS: Final = frozenset({"remember", "forget", "dream", "undo"})
"""Kinds of tasks that a tool or a program requests; approvals and edits are made by people."""

MAX_STEPS_TOLD: Final = 50
"""Maximum steps of one history."""


def _visibility(place: Place, reader: Reader) -> Visibility:
    """Return what a reader may see; imported here, since a handshake does not need it."""
    from muniment.operations.visibility import Visibility

    return Visibility(place, reader)


def listing(place: Place, reader: Reader, after: str | None) -> tuple[list[tuple[str, str]], str | None]:
    """List the entries that a recall may return, after a path; the first page starts with the indexes.

    Returns:
        Logical paths, sorted, each with a name created by code; and the start of the next page, if there is
        one.

    Cost: a stat of every file, and the rows of all entries.
    """
    from muniment.store.index import shown_path

    visibility = _visibility(place, reader)
    found = [
        path
        for scope in place.roots
        for row in visibility.view(scope).entries()
        if visibility.is_recallable(path := CanonicalPath(scope, row.rel), row)
        and (after is None or path.text > after)
    ]
    page = sorted(found, key=lambda path: path.text)[:PAGE]
    indexes = [] if after is not None else [each.path for each in shown_indexes(place, reader)]
    named = [(path, f"index of {path.partition('/')[0]}") for path in indexes]
    named += [(path.text, f"{path.scope}/{shown_path(path.rel)}") for path in page]
    return named, page[-1].text if len(found) > PAGE else None


def shown_indexes(place: Place, reader: Reader) -> list[ShowAnswer]:
    """Return the existing indexes, as data (M1)."""
    return [found for scope in place.roots if (found := _index_of(place, reader, scope)) is not None]


def shown(place: Place, reader: Reader, unsafe_path: str) -> ShowAnswer:
    """Return an entry, or the index of a scope, as data (M1).

    Raises:
        PathEscape, Refusal: it is not a path of the memory.
        NotFound: it does not exist, or a recall may not return it.
        ManagedMemoryUnavailable: the state cannot be used.
    """
    path = place.path(unsafe_path)
    if path.rel in {"", INDEX_NAME}:
        if (found := _index_of(place, reader, path.scope)) is None:
            raise NotFound(f"the scope {path.scope} has no index yet")
        return found
    if (holding := _visibility(place, reader).entry(path)) is None:
        raise NotFound(f"entry {path.text} not found; recall and the resources list the entries")
    if len(holding.data) > MAX_SHOWN_BYTES:
        raise ToolProblem(
            "too_large", f"{path.text} is larger than {MAX_SHOWN_BYTES} bytes; recall parts of it"
        )
    return ShowAnswer(path=path.text, trust=holding.trust, text=marked(holding.entry.text))


def _index_of(place: Place, reader: Reader, scope: Scope) -> ShowAnswer | None:
    from muniment.operations.indexes import shown_index

    _visibility(place, reader).view(scope)  # Update the catalog with edits by hand.
    text = shown_index(place, place.policy, scope, reader.trust)
    return None if text is None else ShowAnswer(path=f"{scope}/{INDEX_NAME}", trust=None, text=marked(text))


def history(place: Place, reader: Reader, unsafe_path: str) -> HistoryAnswer:
    """Return the newest visible steps at or below a path (M1, `operations.visibility`).

    Raises as `operations.review.history_of`.
    """
    from muniment.operations.review import history_of

    visible = _visibility(place, reader).steps(history_of(place, unsafe_path or None))
    steps = list(islice(visible, MAX_STEPS_TOLD + 1))
    shown = [McpHistoryStep.model_validate(each) for each in steps[:MAX_STEPS_TOLD]]
    return HistoryAnswer(steps=shown, more=len(steps) > MAX_STEPS_TOLD)


def take_back(task_id: str, place: Place, reader: Reader, cancel: Cancel) -> UndoAnswer:
    """Undo a task, if the caller may (M2); the result lists only visible paths (M1).

    Raises:
        ToolProblem: a caller with higher trust, or a person, requested the task.
        MunimentError: as `Memory.undo`.
    """
    from muniment.operations.review import undo
    from muniment.store.ledger import of_task

    kept = of_task(place.state, task_id)
    if kept is not None and not _may_take_back(kept.run, reader.trust):
        raise owner_required()
    before = _visibility(place, reader)
    seen = set() if kept is None else set(before.paths_of(kept))
    result = undo(task_id, place, trust=reader.trust, cancel=cancel)
    if result.error is not None:
        raise result.error if reader.owns(task_id) else before.conceal(result.error)
    changed = [change.path for change in result.changes]
    seen |= set(_visibility(place, reader).paths(changed))
    notes = result.notes if seen.issuperset(changed) else ()
    return UndoAnswer.of(result, paths=[path for path in changed if path in seen], notes=notes)


def _may_take_back(run: Run, trust: Trust) -> bool:
    is_owner = trust is Trust.OWNER
    return is_owner or (run.kind in _OWN_KINDS and trust.satisfies(run.trust))


def owner_required(what: str = "undo that, with muniment undo") -> ToolProblem:
    """Return the problem of a call that only the owner may make."""
    return ToolProblem("owner_required", f"only the owner of the memory may {what} or on the page")


def tidy(request: DreamRequest, place: Place, reader: Reader, cancel: Cancel) -> DreamAnswer:
    """Tidy the memory by rules, with the trust of the reader; the result lists only visible paths (M1).

    No language model is used: it could merge other entries than those in the preview.

    Raises:
        MunimentError: as `Memory.dream`; unless the owner calls, removals become a pending review.
    """
    from muniment.agent.filing import RuleWriter
    from muniment.operations.dream import dream

    visibility = _visibility(place, reader)
    result = dream(replace(request, trust=reader.trust), place, RuleWriter(), cancel=cancel)
    if result.error is not None:
        raise visibility.conceal(result.error)
    merged, expired = map(visibility.paths, (result.deduped_paths, result.expired_paths))
    lines = {path: [f"- {path}: repeated or replaced"] for path in merged}
    lines |= {path: [f"- {path}: expired"] for path in expired}
    stays = [
        f"{path} ended, according to its text; it stays" for path in visibility.paths(result.ended_paths)
    ]
    if reader.is_owner:
        stays += [f"{each.path} stays: {each.reason}" for each in result.kept]
    notes = (*([result.summary] if lines else []), *result.notes, *stays[:PAGE])
    return DreamAnswer.of_lines(replace(result, notes=notes), lines, dry_run=request.dry_run)


def pin_entry(unsafe_path: str, place: Place, _: Reader, cancel: Cancel, *, dry_run: bool) -> PinAnswer:
    """Pin or unpin an entry, for the owner only; raise as `operations.edit.pin`."""
    from muniment.operations.edit import pin

    return PinAnswer.of(pin(place, unsafe_path, recallable_only=True, dry_run=dry_run, cancel=cancel))


class CommitsSince:
    """The commits of other tasks and programs to the roots of a memory.

    Args:
        place: returns the current memory.
        number: of the last known event.
    """

    def __init__(self, place: Callable[[], Place], number: int) -> None:
        self._place, self._number = place, number

    def since(self) -> list[str] | None:
        """Return the paths of entries that changed since the last call, at most `PAGE`; None: no change.

        If a recall may not return a changed entry, its path is omitted (M1).

        Raises:
            MunimentError: as `place`; or the ledger cannot be read.

        Cost: a query, one for each root, and one more for each commit.
        """
        from muniment.operations.visibility import Reader
        from muniment.store.ledger import of_task
        from muniment.store.tasks import read

        place = self._place()
        state, visibility = place.state, _visibility(place, Reader(Trust.EXTERNAL))
        names = place.scopes_by_key()
        is_changed, paths = False, dict[str, None]()
        while found := read(state.ledger, self._number, PAGE):
            self._number = found[-1].number
            for event in found:
                if event.type != "memory_changed" or names.keys().isdisjoint(event.roots):
                    continue
                is_changed = True
                kept = of_task(state, event.task)
                for row in () if kept is None else kept.changes:
                    if row.root in names and not row.is_erased and len(paths) < PAGE:
                        path = f"{names[row.root]}/{row.change.path.rel}"
                        paths |= {path: None} if visibility.shows(path) else {}
        return list(paths) if is_changed else None
