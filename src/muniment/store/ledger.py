"""The ledger: which commits were begun and finished, by which runs, and the memory before and after them.

A commit is two transactions. An *intent* contains everything that a rollback needs. *Done* makes it history,
with the provenance of the new bytes and its audit record. The files change between the two. Unfinished
commits are rolled back (`upkeep.py`).

A root is identified by a random key that belongs to its real path, not by device and inode. Both change when
a disk is mounted elsewhere or a backup is restored, and all entries would lose their trust. The ledger's
knowledge of an entry is about its bytes, so another directory at the same path gains nothing. A directory
that is moved begins a new history.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, NamedTuple

from muniment.content.entry import parse, shorten
from muniment.content.gates import clean_foreign_line
from muniment.content.sentences import read_text
from muniment.errors import Erased, NotFound
from muniment.kernel.binding import BoundRoot
from muniment.kernel.change import FileChange, digest
from muniment.kernel.names import Digest, RelPath, Scope, Trust
from muniment.kernel.path import CanonicalPath
from muniment.store import audit
from muniment.store import tasks as outbox
from muniment.store.database import Transaction, build_unavailable_error
from muniment.store.passages import (
    NO_SOURCE,
    PERSON,
    digest_body,
    read_text_trust,
    store_passages,
)
from muniment.store.state import LedgerState, State
from muniment.store.table import Table
from muniment.types import Change, CommittedStep, Origin, SupersededEntry, TrustedText
from muniment.types.keys import RootKey

# -- change --------------------------------------------------------------------------------------------
#
# The broker's own view of a change: a canonical path, an opened root, bytes before and after.


SUPERSEDES: Final = "supersedes"
"""Provenance key of an entry: the digest of the outdated file that it replaces."""

MAX_SUPERSEDED_CHARS: Final = 150
"""Maximum characters of a superseded entry in a result."""


def build_changes(items: Sequence[FileChange]) -> tuple[Change, ...]:
    """Return the public view of a change set."""
    removed_content: dict[object, bytes] = {
        each.base: each.before for each in items if each.after is None and each.before is not None
    }
    return tuple(
        Change(each.path.text, each.kind, each.base, each.digest, _find_superseded(each, removed_content))
        for each in items
    )


def _find_superseded(item: FileChange, removed_content: Mapping[object, bytes]) -> SupersededEntry | None:
    """Return the entry that an item replaces: at its path, or at its previous path."""
    if item.after is None:
        return None
    provenance = parse(item.after).muniment or {}
    replaced = provenance.get(SUPERSEDES)
    before = item.before if item.before is not None else removed_content.get(replaced)
    if before is None or replaced != digest(before):
        return None
    previous_text = shorten(clean_foreign_line(parse(before).body), MAX_SUPERSEDED_CHARS)
    return SupersededEntry(item.path.text, str(provenance.get("id") or ""), previous_text)


def classify_touched_scopes(changes: Iterable[FileChange]) -> tuple[Scope, ...]:
    """Return the scopes that a change set touches, sorted."""
    return tuple(sorted({item.path.scope for item in changes}))


def find_least_trust(changes: Iterable[FileChange]) -> Trust | None:
    """Return the lowest trust of the new bytes of a change set; None if it only removes."""
    trusts = [item.trust for item in changes if item.trust is not None]
    return trusts[0].cap(*trusts) if trusts else None


# -- ledger ------------------------------------------------------------------------------------------

ERASED: Final = "erased"
"""Replaces the digest of a file whose bytes were erased."""


@dataclass(frozen=True, slots=True)
class Run:
    """The origin of a request: task, time, trust and policy; also the origin of the bytes that it wrote.

    Attributes:
        task: id; a task commits at most once.
        at: see `audit.timestamp`.
        trust: of the request; for bytes, of these.
        decided_by: the author of paths and text: `rules`, or a model's name.
        policy: name and short digest, such as `strict@a1f4e0db`.
        kind: `remember`, `forget`, `dream`, `undo`, `approve`, `erase`, or `edit` of a plain sandbox.
        fact: keyed digest of the request, see `State.compute_keyed_digest`; None if missing or erased.
        undoes: the task whose changes are undone.
        answers: the kind of the task whose review this approves.
    """

    task: str
    at: str
    trust: Trust
    decided_by: str
    policy: str
    kind: str
    fact: str | None = None
    undoes: str | None = None
    answers: str | None = None

    @property
    def is_manual_edit(self) -> bool:
        """Return whether a user edited or moved an entry."""
        return (self.kind, self.decided_by) == ("edit", PERSON)

    @property
    def is_mixed(self) -> bool:
        """Return whether a user edited an entry in which sentences of lower trust remain."""
        return self.is_manual_edit and self.trust is not Trust.OWNER


class ChangeRow(NamedTuple):
    """A change in the ledger.

    Attributes:
        position: among the changes of its commit, from 0; part of its temporary name.
        change: with the scope's name at that time.
        after_digest: of the new bytes, also if these were erased.
        made: directories inside the scope that did not exist before, outermost first.
    """

    change_set: int
    position: int
    root: RootKey
    change: FileChange
    after_digest: Digest | None
    made: tuple[RelPath, ...] = ()

    @property
    def is_erased(self) -> bool:
        """Return whether its bytes were erased; then None does not mean that the file is missing."""
        return ERASED in {self.change.base, self.after_digest}


@dataclass(frozen=True, slots=True)
class CommitRow:
    """A commit in the ledger, done or begun; or a change set that waits for a review.

    Attributes:
        token: prefix of its temporary names, see `get_temporary_name`.
        done: time; None for an intent or a pending change set.
        review: for which it waits; then it is not history, and no file contains any of it.
    """

    id: int
    run: Run
    token: str
    done: str | None = None
    notes: tuple[str, ...] = ()
    review: str | None = None
    changes: tuple[ChangeRow, ...] = ()

    @property
    def known_changes(self) -> tuple[Change, ...]:
        """Return its changes, without erased ones."""
        return build_changes([item.change for item in self.changes if not item.is_erased])

    @property
    def touched_scopes(self) -> tuple[Scope, ...]:
        """Return its scopes; see `classify_touched_scopes`."""
        return classify_touched_scopes(item.change for item in self.changes)

    @property
    def trust(self) -> Trust | None:
        """Return its lowest trust; see `find_least_trust`."""
        return find_least_trust(item.change for item in self.changes)


class _Root(NamedTuple):
    id: str
    path: bytes


class _Provenance(NamedTuple):
    root: RootKey
    rel: RelPath
    digest: Digest
    run: Run
    body: int


class _LastChange(NamedTuple):
    run: Run
    after_digest: Digest | None


_ROOTS: Final = Table("root", _Root)
_CHANGES: Final = Table("change", ChangeRow, base="before_digest")
_CHANGE_SETS: Final = Table("change_set", CommitRow, generated_column="id", changes=None, answers=None)
_PROVENANCE: Final = Table("provenance", _Provenance, kind=None, fact=None, undoes=None, answers=None)
_SOURCES: Final = Table("source", Run, undoes=None, answers=None)
_IS_CURRENT_QUERY: Final = """
    SELECT 1 FROM change_kept AS kept
    JOIN change_set ON change_set.home = kept.home AND change_set.id = kept.change_set
    WHERE root = ?1 AND rel = ?2 AND after_digest = ?3 AND (number IS NOT NULL OR review IS NULL)
    AND (number IS NULL OR number >= coalesce((
        SELECT max(number) FROM change_kept AS before
        JOIN change_set ON change_set.home = before.home AND change_set.id = before.change_set
        WHERE root = ?1 AND rel = ?2 AND number <= ?4), 0)) LIMIT 1
"""
_LAST_CHANGES: Final = Table("step", _LastChange, trust="coalesce(trust, asked)", answers=None)


def build_erased_name(state: State, root: RootKey, rel: RelPath) -> RelPath:
    """Return the name that replaces the path of an erased file; it reveals nothing without the key."""
    return RelPath(f"{ERASED}-{state.compute_keyed_digest(f'{root}/{rel}')[:32]}")


def get_root_key(state: State, bound: BoundRoot) -> RootKey:
    """Return the key of a bound root; its path gets one at its first use."""
    path = state.get_root_name(bound.trusted_path)
    if (cached_key := state.root_keys.get(path)) is not None:
        return RootKey(cached_key)
    find = "SELECT id FROM root WHERE path = ?"
    found = state.ledger.rows(find, (path,))
    if found and state.is_shared:  # The roots of such a ledger are never moved.
        state.root_keys[path] = found[0][0]
    if not found:
        with state.ledger.transaction() as connection:
            _ROOTS.insert(
                connection, [_Root(state.create_root_key(path), path)], suffix="ON CONFLICT DO NOTHING"
            )
        found = state.ledger.rows(find, (path,))
    if not found:
        raise build_unavailable_error(state.ledger.name, "its list of roots was changed by another program")
    return RootKey(found[0][0])


def move_roots(state: State, map_path: Callable[[bytes], bytes]) -> None:
    """Assign the roots to other paths without changing their keys, for a ledger that was moved.

    Args:
        state: has the ledger.
        map_path: returns the new path for an old one. A root that was recorded at the new path before, in
            another home, gets an impossible path.
    """
    with state.ledger.transaction() as connection:
        every = _ROOTS.read(state.ledger)
        moved = [
            each._replace(path=map_path(each.path)) for each in every if map_path(each.path) != each.path
        ]
        overwritten = [each for each in every if each.path in {new.path for new in moved}]
        update_path = "UPDATE root SET path = ? WHERE id = ?"
        connection.executemany(
            update_path, [(f"moved-over:{each.id}".encode(), each.id) for each in overwritten]
        )
        connection.executemany(update_path, [(each.path, each.id) for each in moved])


def move_root(state: State, before: Path, bound: BoundRoot) -> None:
    """Move the history of an old path to a bound root, unless the root already has a history.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be written.
    """
    after, old = state.get_root_name(bound.trusted_path), os.fsencode(before)
    if state.ledger.rows("SELECT 1 FROM root WHERE path = ?", (old,)):
        without_history = "NOT EXISTS (SELECT 1 FROM root WHERE path = ?1)"
        with state.ledger.transaction() as connection:
            rename = f"UPDATE root SET path = ?1 WHERE path = ?2 AND {without_history}"  # noqa: S608
            connection.execute(rename, (after, old))


def begin(state: State, row: CommitRow) -> int:
    """Write an intent, or a pending change set, and return its id. Durable on return.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be written, or another process began the task meanwhile.
    """

    def insert_rows(connection: Transaction) -> int:
        number = _CHANGE_SETS.add(state.ledger, row).id
        _CHANGES.insert(connection, (item._replace(change_set=number) for item in row.changes))
        return number

    return state.ledger.run_transaction(insert_rows)


def finish(state: State, row: CommitRow) -> None:
    """Mark a commit as done: with provenance, event and record. Durable on return.

    Args:
        state: has the ledger.
        row: the intent that was begun, with its id, the time when it was done, and its notes.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be written, and the commit is still an intent; or it was
            rolled back meanwhile.
    """
    run, at = row.run, row.done or ""

    def mark_done(connection: Transaction) -> None:
        done = "UPDATE change_set SET done = ?, notes = ? WHERE id = ? AND done IS NULL AND review IS NULL"
        if connection.execute(done, (at, json.dumps(row.notes), row.id)).rowcount != 1:
            raise build_unavailable_error(
                state.ledger.name, "the commit was rolled back before it was finished"
            )
        _record_provenance(state, connection, run, row.changes)
        _append_change_event(state, row)
        origin = {
            name: getattr(run, name) for name in ("kind", "trust", "decided_by", "policy", "fact", "undoes")
        }
        changes = [
            {"path": item.change.path.text, "before": item.change.base, "after": item.after_digest}
            for item in row.changes
        ]
        audit.append(state, at, "commit", run.task, {**origin, "changes": changes})

    state.ledger.run_transaction(mark_done)


def _record_provenance(state: State, connection: Transaction, run: Run, changes: Iterable[ChangeRow]) -> None:
    """Record the origin of the new bytes of changes, and the digests of their text.

    An undo records nothing: restored text has its original origin, and foreign text stays foreign.
    """
    texts = [
        (item, read_text(item.change.after or b"", item.change.path.rel))
        for item in changes
        if item.after_digest is not None and run.undoes is None
    ]
    sources = [
        _Provenance(
            item.root,
            item.change.path.rel,
            item.after_digest,
            replace(run, trust=item.change.trust or run.trust),
            NO_SOURCE if run.is_manual_edit and item.change.before is not None else digest_body(state, text),
        )
        for item, text in texts
        if item.after_digest is not None
    ]
    delete_known = "DELETE FROM provenance WHERE root = ? AND rel = ? AND digest = ?"
    connection.executemany(delete_known, [(each.root, each.rel, each.digest) for each in sources])
    _PROVENANCE.insert(connection, sources)
    source_texts = zip(sources, texts, strict=True)
    store_passages(state, connection, [(each.body, text, each.run.trust) for each, (_, text) in source_texts])


def abandon(state: State, number: int, roots: Collection[RootKey] | None = None) -> None:
    """Delete an intent if none of it is left in the files of `roots` (None: of any root).

    After it is deleted for all roots, its task may run again.
    """
    with state.ledger.transaction() as connection:
        for (root,) in connection.execute(
            "SELECT DISTINCT root FROM change WHERE change_set = ?", (number,)
        ).fetchall():
            if roots is None or root in roots:
                connection.execute("DELETE FROM change WHERE change_set = ? AND root = ?", (number, root))
        connection.execute(
            "DELETE FROM change_set WHERE id = ?1 AND done IS NULL AND review IS NULL "
            "AND NOT EXISTS (SELECT 1 FROM change WHERE change_set = ?1)",
            (number,),
        )


def record_conflicts(state: State, number: int, skipped: Collection[tuple[RootKey, RelPath]]) -> None:
    """Record the parts of an interrupted intent that a user may have used or edited.

    This is the origin of its text. Files that were not rolled back become a commit, to preserve their bytes
    before.

    Args:
        state: has the ledger.
        number: of the intent, which stays unchanged.
        skipped: files that were not rolled back.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be written.
    """
    with state.ledger.transaction() as connection:
        for intent in read_commits(state, "id = ?", (number,)):
            _record_provenance(state, connection, intent.run, intent.changes)
            found = tuple(each for each in intent.changes if (each.root, each.change.path.rel) in skipped)
            if found:
                run = replace(intent.run, task=f"recovery-{secrets.token_hex(8)}", fact=None)
                notes = (f"interrupted ({intent.run.task}); another program changed these files since",)
                begun = replace(intent, run=run, notes=notes, changes=found)
                finish(state, replace(begun, id=begin(state, begun), done=audit.timestamp()))


def find_commit(state: LedgerState, task: str) -> CommitRow | None:
    """Return the finished commit of a task, if there is one."""
    found = read_commits(state, "task = ? AND done IS NOT NULL", (task,))
    return found[0] if found else None


def list_unfinished(state: State, roots: Iterable[RootKey]) -> tuple[CommitRow, ...]:
    """Return the intents that touch any of `roots`, the newest first."""
    wanted = set(roots)
    found = read_commits(state, "done IS NULL AND review IS NULL")
    return tuple(row for row in reversed(found) if any(item.root in wanted for item in row.changes))


def read_commits(
    state: LedgerState, condition: str = "TRUE", values: Sequence[object] = ()
) -> tuple[CommitRow, ...]:
    """Return the change sets that match an SQL condition, the oldest first, with their bytes."""
    of_it = "WHERE change_set = ? ORDER BY position"
    return tuple(
        replace(row, changes=_CHANGES.read(state.ledger, of_it, (row.id,)))
        for row in _CHANGE_SETS.read(state.ledger, f"WHERE {condition} ORDER BY id", values)
    )


def find_source(state: State, root: RootKey, rel: RelPath, content_digest: Digest) -> Run | None:
    """Return the origin of the bytes with `content_digest` at a path; None if no commit wrote them.

    A commit in progress counts, so that a reader does not treat its files as foreign.
    """
    at = "WHERE root = ? AND rel = ? AND digest = ? LIMIT 1"
    return _SOURCES.read_first(state.ledger, at, (root, rel, content_digest))


def is_current(state: State, root: RootKey, rel: RelPath, content_digest: Digest) -> bool:
    """Return whether bytes with `content_digest` belong at a path; True if roots are not a working copy.

    In a working copy they must be those of the last commit that the copy has, or of a later commit, done or
    begun: another machine may be ahead, or this one may be writing them.

    Cost: one query.
    """
    if state.position is None:
        return True
    return bool(state.ledger.rows(_IS_CURRENT_QUERY, (root, rel, content_digest, state.position.number)))


def is_known(state: State, root: RootKey, rel: RelPath, content_digest: Digest) -> bool:
    """Return whether bytes with the digest `content_digest` were at a path before or after any commit."""
    query = "SELECT 1 FROM step WHERE root = ?1 AND rel = ?2 AND ?3 IN (before_digest, after_digest) LIMIT 1"
    return bool(state.ledger.rows(query, (root, rel, content_digest)))


def _append_change_event(state: State, row: CommitRow) -> None:
    """Append the event that the memory has changed."""
    run = row.run
    task_rows = state.ledger.rows("SELECT token, client FROM task WHERE id = ?", (run.task,))
    token, client = task_rows[0] if task_rows else (None, None)
    outbox.append_event(
        state,
        outbox.OutboxEvent(
            "memory_changed",
            row.done or "",
            run.task,
            {"source": f"workspace_memory_{run.answers or run.kind}"},
            roots=tuple(sorted({item.root for item in row.changes})),
            token=token,
            client=client,
        ),
    )


# -- history -------------------------------------------------------------------------------------------
#
# The history of the memory, read from the ledger: changes, their authors, and earlier contents of files.
#
# Roots are identified by their keys, so a path means the file of the directory that is bound now, even if its
# scope had another name. For erased files, only their former existence is known (`ERASED`).
#
# Queries only: this part does not read memory and does not write.

MAX_STEPS: Final = 1_000
"""Maximum steps of one result; query by path for older ones."""


_HISTORY: Final = Table(
    "step",
    CommittedStep,
    at="done",
    asked="kind",
    path="root || '/' || rel",
    kind="CASE WHEN before_digest IS NULL THEN 'new' WHEN after_digest IS NULL THEN 'removed' "
    "ELSE 'changed' END",
    is_erased=f"'{ERASED}' IN (coalesce(before_digest, ''), coalesce(after_digest, ''))",
)


def read_history(
    state: State,
    roots: Mapping[RootKey, Scope],
    under_path: CanonicalPath | None = None,
    limit: int = MAX_STEPS,
) -> tuple[CommittedStep, ...]:
    """Return the committed steps, the newest first; at most `limit`.

    Args:
        state: has the ledger.
        roots: the roots to include, with the current names of their scopes.
        under_path: a file, or a directory or scope with everything under it; None: everything.
        limit: maximum number of steps.
    """
    names = {scope: key for key, scope in roots.items()}
    keys = (
        list(roots) if under_path is None else [names[under_path.scope]] if under_path.scope in names else []
    )
    rel = "" if under_path is None else under_path.rel
    erased = build_erased_name(state, keys[0], under_path.rel) if under_path is not None and keys else ""
    # As an expression it makes SQLite read from the newest row and stop at the limit. For one path the index
    # is faster.
    column = "root" if rel else "root || ''"
    found = _HISTORY.read(
        state.ledger,
        f"WHERE done IS NOT NULL AND {column} IN ({_build_placeholders(keys)}) "
        "AND (? = '' OR rel IN (?, ?) OR substr(rel, 1, length(?) + 1) = ? || '/') "
        "ORDER BY change_set DESC, position LIMIT ?",
        (*keys, rel, rel, erased, rel, rel, limit),
    )
    paths = (each.path.partition("/") for each in found)
    paths_with_scope = (f"{roots[RootKey(root)]}/{name}" for root, _, name in paths)
    return tuple(replace(each, path=path) for each, path in zip(found, paths_with_scope, strict=True))


def read_content_after(state: State, root: RootKey, path: CanonicalPath, task: str) -> bytes | None:
    """Return the bytes of a file as a task left it; None if the task removed the file.

    Raises:
        NotFound: the task did not change this file.
        Erased: the bytes were erased.
    """
    return _read_side(state, root, path, task, "after")


def read_content_before(state: State, root: RootKey, path: CanonicalPath, task: str) -> bytes | None:
    """Return the bytes of a file before a task; None if the task created it.

    Raise as `read_content_after`.
    """
    return _read_side(state, root, path, task, "before")


def _read_side(
    state: State, root: RootKey, path: CanonicalPath, task: str, side: Literal["before", "after"]
) -> bytes | None:
    rows = state.ledger.rows(
        f"SELECT {side}, {side}_digest FROM step "  # noqa: S608  one of two words
        "WHERE task = ? AND done IS NOT NULL AND root = ? AND rel IN (?, ?)",
        (task, root, path.rel, build_erased_name(state, root, path.rel)),
    )
    if not rows:
        raise NotFound(f"{task} did not change {path.text}; see: muniment history {path.text}")
    content, digest = rows[0]
    if digest == ERASED:
        left = "left" if side == "after" else "found"
        raise Erased(f"the text that {task} {left} at {path.text} was erased")
    return bytes(content) if content is not None else None


def count_by_day(
    state: State, roots: Mapping[RootKey, Scope], since: str
) -> tuple[tuple[str, Scope, int], ...]:
    """Count the files that commits changed, by day and scope, the oldest first; skip empty days.

    Args:
        state: has the ledger.
        roots: the roots to include, with the current names of their scopes.
        since: the first day, ISO-8601 UTC.
    """
    rows = state.ledger.rows(
        "SELECT substr(done, 1, 10) AS day, root, count(*) FROM step "  # noqa: S608  only marks are put in
        f"WHERE done >= ? AND root IN ({_build_placeholders(roots)}) GROUP BY day, root ORDER BY day, root",
        (since, *roots),
    )
    return tuple((day, roots[root], count) for day, root, count in rows)


def explain_origin(
    state: State, root: RootKey, path: CanonicalPath, present: bytes | None, trust_of_scope: Trust
) -> Origin:
    """Return the origin of a file.

    Args:
        state: has the ledger.
        root: of the file.
        path: of the file.
        present: its current bytes; None if the file is missing.
        trust_of_scope: the trust of text there that Muniment did not write.

    Raises:
        NotFound: no file is there, and the ledger knows of no earlier one.
        Erased: the file was erased.
    """
    source = None if present is None else find_source(state, root, path.rel, digest(present))
    found = None
    if present is not None and (source is None or source.is_mixed):
        found = read_text_trust(state, root, path.rel, present, trust_of_scope)
    sentences = () if found is None else found.sentences
    if source is not None:
        return _build_origin(path, "committed", source.trust, source, sentences)
    last = _find_last_change(state, root, path.rel)
    if found is not None and last is None:
        return _build_origin(path, "foreign", found.trust, None, sentences)
    if last is None and _find_last_change(state, root, build_erased_name(state, root, path.rel)) is not None:
        raise Erased(f"the entry at {path.text} was erased")
    if last is None:
        raise NotFound(f"entry {path.text} not found, now or in the history")
    if found is not None:
        return _build_origin(path, "edited", found.trust, last.run, sentences)
    return _build_origin(path, "removed" if last.after_digest is None else "missing", None, last.run)


def _build_origin(
    path: CanonicalPath,
    state: Literal["committed", "edited", "foreign", "removed", "missing"],
    trust: Trust | None,
    run: Run | None,
    sentences: tuple[TrustedText, ...] = (),
) -> Origin:
    found = Origin(path=path.text, state=state, trust=trust, sentences=sentences)
    if run is None:
        return found
    names = ("task", "at", "decided_by", "policy", "fact")
    known = {name: getattr(run, name) for name in names}
    return replace(found, asked=run.kind, request_trust=run.trust, **known)


def find_undoing_task(state: State, task: str) -> str | None:
    """Return the task that undid the changes of `task`, unless that was undone in turn."""
    undone: dict[str, str] = {}
    for undoing, undoes in state.ledger.rows(
        "SELECT task, undoes FROM change_set WHERE undoes IS NOT NULL AND done IS NOT NULL ORDER BY id DESC"
    ):
        if undoing not in undone:
            undone.setdefault(undoes, undoing)
    return undone.get(task)


def _build_placeholders(keys: Collection[RootKey]) -> str:
    """Return placeholders for roots after IN, which some engines do not accept empty."""
    return ", ".join("?" * len(keys)) or "NULL"


def _find_last_change(state: State, root: RootKey, rel: RelPath) -> _LastChange | None:
    """Return the last change of a file in the ledger."""
    at = "WHERE root = ? AND rel = ? AND done IS NOT NULL ORDER BY change_set DESC LIMIT 1"
    return _LAST_CHANGES.read_first(state.ledger, at, (root, rel))
