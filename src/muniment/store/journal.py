"""Implementations of the kernel's interfaces: the ledger as journal, the catalog as facts, content checks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from muniment import events
from muniment.content.admission import check_entry, find_withholding_gate, is_text_with_lines_removed
from muniment.errors import ContentRejected, ToolError
from muniment.kernel.binding import BoundRoot
from muniment.kernel.change import FileChange, JudgedChanges, digest
from muniment.kernel.decide import Policy
from muniment.kernel.names import Digest, RelPath, Scope
from muniment.kernel.path import CanonicalPath
from muniment.kernel.write import Intent, Recovery
from muniment.policy.grammar import check_creatable
from muniment.store import audit
from muniment.store.audit import timestamp
from muniment.store.catalog import View
from muniment.store.database import Transaction
from muniment.store.ledger import (
    ChangeRow,
    CommitRow,
    Run,
    abandon,
    begin,
    find_source,
    finish,
    get_root_key,
    is_known,
    list_unfinished,
    record_conflicts,
)
from muniment.store.state import State


class LedgerJournal:
    """Stores the kernel's intents, that is, commits that have begun, in the ledger (interface `Journal`).

    Args:
        state: has the ledger.
        roots: the bound roots that calls may refer to.
        run: the run that commits; None if the journal is only used for a rollback.
    """

    def __init__(self, state: State, roots: Mapping[Scope, BoundRoot], run: Run | None = None) -> None:
        self._state, self._run = state, run
        self._keys = {scope: get_root_key(state, root) for scope, root in roots.items()}
        self._scopes = {key: scope for scope, key in self._keys.items()}

    def begin(self, judged: JudgedChanges, token: str) -> int:
        """Record in the ledger that a commit begins, and return the number of this intent.

        The intent is on disk when this returns.

        Args:
            judged: the changes to commit.
            token: source of the temporary file names of the commit.

        Raises:
            ManagedMemoryUnavailable: the ledger cannot be written, or another process began the task.
        """
        return begin(self._state, self._build_commit_row(0, judged, token))

    def finish(self, number: int, judged: JudgedChanges, notes: Sequence[str]) -> None:
        """Mark a commit as done, and add the origin of its bytes, an event and an audit record.

        Args:
            number: number of the intent, from `begin`.
            judged: the committed changes.
            notes: texts for the user.
        """
        row = self._build_commit_row(number, judged)
        finish(self._state, replace(row, done=timestamp(), notes=tuple(notes)))

    def abandon(self, number: int, scopes: Collection[Scope], recovered: Recovery | None = None) -> None:
        """Delete an unfinished commit (intent) in some scopes, after it was rolled back there.

        Args:
            number: number of the intent.
            scopes: the scopes in which no change of the intent is left.
            recovered: the result of a rollback after a crash; then add an audit record and log an event.
        """
        paths = [] if recovered is None else [each.path.text for each in recovered.intent.changes.values()]
        conflicts = [] if recovered is None else [path.text for path in recovered.skipped]

        def close(_: Transaction) -> None:
            if recovered is not None:
                left = {(self._keys[path.scope], path.rel) for path in recovered.skipped}
                record_conflicts(self._state, number, left)
            abandon(self._state, number, [self._keys[scope] for scope in scopes])
            if recovered is not None:
                body = {"paths": paths, "conflicts": conflicts}
                audit.append(self._state, timestamp(), "recovery", recovered.intent.task, body)

        self._state.ledger.run_transaction(close)
        if recovered is not None:
            task = recovered.intent.task
            events.emit("commit_recovered", task_id=task, files=len(paths), conflicts=conflicts)

    def list_unfinished(self, scopes: Collection[Scope]) -> Sequence[Intent]:
        """Return the unfinished commits that change files in `scopes`, the newest first."""
        found = list_unfinished(self._state, [self._keys[scope] for scope in scopes])
        return [self._build_intent(kept, frozenset(scopes)) for kept in found]

    def is_known(self, path: CanonicalPath, content_digest: Digest) -> bool:
        """Return whether a commit wrote or replaced the bytes with `content_digest` at `path`."""
        return is_known(self._state, self._keys[path.scope], path.rel, content_digest)

    def _build_intent(self, row: CommitRow, scopes: Collection[Scope]) -> Intent:
        names = {key: scope for key, scope in self._scopes.items() if scope in scopes}
        in_scope = [
            (CanonicalPath(names[each.root], each.change.path.rel), each)
            for each in row.changes
            if each.root in names
        ]
        changes = {each.position: replace(each.change, path=path) for path, each in in_scope}
        new_directories = tuple(
            CanonicalPath(path.scope, rel) for path, each in in_scope for rel in each.made
        )
        return Intent(row.id, row.token, changes, new_directories, row.run.task)

    def _build_commit_row(self, number: int, judged: JudgedChanges, token: str = "") -> CommitRow:
        if self._run is None:
            raise ValueError("this journal has no run, so it cannot commit")
        rows = (
            ChangeRow(
                number,
                position,
                self._keys[each.path.scope],
                each,
                each.digest,
                tuple(path.rel for path in judged.new_directories[position]),
            )
            for position, each in enumerate(judged.change_set.changes)
        )
        return CommitRow(number, self._run, token, changes=tuple(rows))


class CatalogRootInfo:
    """Answers the kernel's questions about roots from the catalog (interface `RootInfo`).

    The rows of a root are updated at its first use.

    Args:
        open_view: returns the current view of a scope.
    """

    def __init__(self, open_view: Callable[[Scope], View]) -> None:
        self._open_view = open_view
        self._views: dict[Scope, View] = {}

    def view(self, scope: Scope) -> View:
        """Return the view of a scope; open it at its first use."""
        if scope not in self._views:
            self._views[scope] = self._open_view(scope)
        return self._views[scope]

    def find_aliases(self, directory: CanonicalPath, name: str) -> frozenset[str]:
        """Return the names in a directory that equal `name`, apart from case and Unicode normalization."""
        return self.view(directory.scope).find_aliases(directory.rel, name)

    def usage(self, scope: Scope, is_counted: Callable[[RelPath], bool] | None) -> tuple[int, int]:
        """Return number and total bytes of those entries of a scope for which `is_counted` is True.

        None: of all entries.
        """
        return self.view(scope).usage(is_counted)

    def is_index(self, scope: Scope, content: bytes) -> bool:
        """Return whether `content` is that of an index file that Muniment wrote in this scope."""
        return self.view(scope).has_written(digest(content))


def build_gates(
    state: State, policy: Policy, roots: Mapping[Scope, BoundRoot]
) -> Callable[[FileChange], None]:
    """Return a function that raises if the new text or the name of a changed file is not allowed.

    A text that is not allowed may still be shortened, if the file before did not pass the same check. In
    addition, either a commit must have written that file, or the remaining text must be one that may be
    shown.
    """

    def gate(change: FileChange) -> None:
        after, before, path = change.after or b"", change.before, change.path
        if change.base is None:
            check_creatable(path)
        refusal = _find_rejection(after, path, policy)
        if refusal is None:
            return
        previous_error = (
            None
            if before is None or not is_text_with_lines_removed(before, after)
            else _find_rejection(before, path, policy)
        )
        if (
            before is None
            or previous_error is None
            or _identify_rejection(previous_error) != _identify_rejection(refusal)
        ):
            raise refusal
        is_recorded = (
            find_source(state, get_root_key(state, roots[path.scope]), path.rel, digest(before)) is not None
        )
        if (
            not is_recorded
            and find_withholding_gate(after, path.text, policy.get_trust(path.scope)) is not None
        ):
            raise refusal

    return gate


def _find_rejection(content: bytes, path: CanonicalPath, policy: Policy) -> ToolError | None:
    try:
        check_entry(content, path.rel, policy.content)
    except ToolError as refusal:
        return refusal
    return None


def _identify_rejection(refusal: ToolError) -> tuple[str, str | None]:
    return refusal.code, refusal.rule if isinstance(refusal, ContentRejected) else None
