"""The ports of the kernel: the ledger as journal, the catalog as facts, content checks as gates."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from muniment import events
from muniment.content.admission import check_entry, held_for, is_cut
from muniment.errors import ContentRejected, ToolError
from muniment.kernel.binding import BoundRoot
from muniment.kernel.change import FileChange, Judged, digest
from muniment.kernel.decide import Policy
from muniment.kernel.names import Digest, RelPath, Scope
from muniment.kernel.path import CanonicalPath
from muniment.kernel.write import Intent, Recovered
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
    finish,
    is_known,
    keep_conflicts,
    root_key,
    source_of,
    unfinished,
)
from muniment.store.state import State


class LedgerJournal:
    """The ledger as a journal.

    Args:
        state: has the ledger.
        roots: the roots that calls may refer to.
        run: the run that commits; None if the journal is only used for a rollback.
    """

    def __init__(self, state: State, roots: Mapping[Scope, BoundRoot], run: Run | None = None) -> None:
        self._state, self._run = state, run
        self._keys = {scope: root_key(state, root) for scope, root in roots.items()}
        self._scopes = {key: scope for scope, key in self._keys.items()}

    def begin(self, judged: Judged, token: str) -> int:
        """Store an intent in the ledger, durably, and return its number.

        Raises:
            ManagedMemoryUnavailable: the ledger cannot be written, or another process began the task.
        """
        return begin(self._state, self._kept(0, judged, token))

    def finish(self, number: int, judged: Judged, notes: Sequence[str]) -> None:
        """Mark an intent as finished, durably, with provenance, event and audit record."""
        kept = self._kept(number, judged)
        finish(self._state, replace(kept, done=timestamp(), notes=tuple(notes)))

    def abandon(self, number: int, scopes: Collection[Scope], recovered: Recovered | None = None) -> None:
        """Remove an intent; see `Journal`. If `recovered` is given, add a record and an event."""
        paths = [] if recovered is None else [each.path.text for each in recovered.intent.changes.values()]
        conflicts = [] if recovered is None else [path.text for path in recovered.left]

        def close(_: Transaction) -> None:
            if recovered is not None:
                left = {(self._keys[path.scope], path.rel) for path in recovered.left}
                keep_conflicts(self._state, number, left)
            abandon(self._state, number, [self._keys[scope] for scope in scopes])
            if recovered is not None:
                body = {"paths": paths, "conflicts": conflicts}
                audit.append(self._state, timestamp(), "recovery", recovered.intent.task, body)

        self._state.ledger.carry_out(close)
        if recovered is not None:
            task = recovered.intent.task
            events.emit("commit_recovered", task_id=task, files=len(paths), conflicts=conflicts)

    def unfinished(self, scopes: Collection[Scope]) -> Sequence[Intent]:
        """Return the unfinished intents; see `Journal`."""
        found = unfinished(self._state, [self._keys[scope] for scope in scopes])
        return [self._intent(kept, frozenset(scopes)) for kept in found]

    def knows(self, path: CanonicalPath, of: Digest) -> bool:
        """Return whether a text is known; see `Journal`."""
        return is_known(self._state, self._keys[path.scope], path.rel, of)

    def _intent(self, kept: CommitRow, scopes: Collection[Scope]) -> Intent:
        names = {key: scope for key, scope in self._scopes.items() if scope in scopes}
        ours = [
            (CanonicalPath(names[each.root], each.change.path.rel), each)
            for each in kept.changes
            if each.root in names
        ]
        changes = {each.position: replace(each.change, path=path) for path, each in ours}
        made = tuple(CanonicalPath(path.scope, rel) for path, each in ours for rel in each.made)
        return Intent(kept.id, kept.token, changes, made, kept.run.task)

    def _kept(self, number: int, judged: Judged, token: str = "") -> CommitRow:
        if self._run is None:
            raise ValueError("this journal has no run, so it cannot commit")
        rows = (
            ChangeRow(
                number,
                position,
                self._keys[each.path.scope],
                each,
                each.digest,
                tuple(path.rel for path in judged.made[position]),
            )
            for position, each in enumerate(judged.change_set.changes)
        )
        return CommitRow(number, self._run, token, changes=tuple(rows))


class CatalogFacts:
    """The catalog as facts; a root is refreshed at its first use.

    Args:
        view_of: returns the current view of a scope.
    """

    def __init__(self, view_of: Callable[[Scope], View]) -> None:
        self._view_of = view_of
        self._views: dict[Scope, View] = {}

    def view(self, scope: Scope) -> View:
        """Return the view of a scope."""
        if scope not in self._views:
            self._views[scope] = self._view_of(scope)
        return self._views[scope]

    def alike(self, directory: CanonicalPath, name: str) -> frozenset[str]:
        """Return the similar names in a directory; see `Facts`."""
        return self.view(directory.scope).alike(directory.rel, name)

    def usage(self, scope: Scope, counts: Callable[[RelPath], bool] | None) -> tuple[int, int]:
        """Return the usage of a scope; see `Facts`."""
        return self.view(scope).usage(counts)

    def is_index(self, scope: Scope, content: bytes) -> bool:
        """Return whether content is that of an index file; see `Facts`."""
        return self.view(scope).has_written(digest(content))


def gates_of(state: State, policy: Policy, roots: Mapping[Scope, BoundRoot]) -> Callable[[FileChange], None]:
    """Return the gates for new text and for names that look like others.

    A text that does not pass may still be shortened, if the file failed the same check before. The store must
    have written that file, or the remaining text must be displayable.
    """

    def gate(change: FileChange) -> None:
        after, before, path = change.after or b"", change.before, change.path
        if change.base is None:
            check_creatable(path)
        refusal = _refusal(after, path, policy)
        if refusal is None:
            return
        was = None if before is None or not is_cut(before, after) else _refusal(before, path, policy)
        if before is None or was is None or _kind(was) != _kind(refusal):
            raise refusal
        is_ours = source_of(state, root_key(state, roots[path.scope]), path.rel, digest(before)) is not None
        if not is_ours and held_for(after, path.text, policy.trust_of(path.scope)) is not None:
            raise refusal

    return gate


def _refusal(content: bytes, path: CanonicalPath, policy: Policy) -> ToolError | None:
    try:
        check_entry(content, path.rel, policy.content)
    except ToolError as refusal:
        return refusal
    return None


def _kind(refusal: ToolError) -> tuple[str, str | None]:
    return refusal.code, refusal.rule if isinstance(refusal, ContentRejected) else None
