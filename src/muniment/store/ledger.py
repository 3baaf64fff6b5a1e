"""The ledger: the commits that were begun and finished, their runs, and the files before and after them.

A commit takes two transactions of the ledger. The first one stores the *intent*: everything that a rollback
needs. Then the files are changed. The second one marks the commit as *done*, and adds the origin of the new
bytes and an audit record. `upkeep.py` rolls back intents that were never marked as done.

The ledger identifies a root by a random key, which it assigns to the real path of the root. Device and inode
would not do: they change when a disk is mounted elsewhere or a backup is restored, and all entries would lose
their trust. The ledger identifies an entry by its bytes. So if a path is bound to another directory, foreign
files in it get no trust. A directory that is moved begins a new history.
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
from muniment.store.database import Transaction, build_unavailable_error
from muniment.store.handles import (
    TASK_HANDLE_CHARS,
    build_task_handle,
    find_renames,
    parse_task_handle,
    read_handle,
)
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
"""Key in the front matter of an entry: the digest of the outdated file that the entry replaces."""

MAX_SUPERSEDED_CHARS: Final = 150
"""Maximum characters of the text of a superseded entry in a result."""


def build_changes(items: Sequence[FileChange]) -> tuple[Change, ...]:
    """Return the public form of file changes: one `Change`, without the bytes, for each."""
    removed_content: dict[object, bytes] = {
        each.base: each.before for each in items if each.after is None and each.before is not None
    }
    renames = {path: old.text for path, old in find_renames(items).items()}
    return tuple(
        Change(
            each.path.text,
            each.kind,
            each.base,
            each.digest,
            _find_superseded(each, removed_content),
            renames.get(each.path),
            *read_label(each.path, each.before if each.after is None else each.after),
        )
        for each in items
    )


def read_label(path: CanonicalPath, content: bytes | None) -> tuple[str, str]:
    """Return the title and the handle of an entry; two empty texts if its content is unknown."""
    if content is None:
        return "", ""
    from muniment.content.titles import read_current_titles

    entry = parse(content)
    return clean_foreign_line(read_current_titles(entry, path.rel).name), read_handle(entry, path)


def _find_superseded(item: FileChange, removed_content: Mapping[object, bytes]) -> SupersededEntry | None:
    """Return the outdated entry that a change replaces, or None.

    Args:
        item: the change; the front matter of its new bytes contains the digest of the replaced file.
        removed_content: the bytes of all files that the same change set removes, by digest.
    """
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
    """Return the lowest trust of the new bytes of a change set; None if the change set only removes files."""
    trusts = [item.trust for item in changes if item.trust is not None]
    return trusts[0].cap(*trusts) if trusts else None


# -- ledger ------------------------------------------------------------------------------------------

ERASED: Final = "erased"
"""Value that the ledger stores instead of the digest of a file whose bytes were erased."""


@dataclass(frozen=True, slots=True)
class Run:
    """The origin of a request, and of the bytes that it wrote: task, time, trust, author and policy.

    Attributes:
        task: id of the task, which commits at most once.
        at: time of the request, as `audit.timestamp` returns it.
        trust: trust of the request; if this object describes the origin of bytes, the trust of these bytes.
        decided_by: the author of paths and text: `rules`, or the name of a model.
        policy: name and short digest, such as `strict@a1f4e0db`.
        kind: `remember`, `forget`, `dream`, `undo`, `approve` or `erase`; `edit` if no job was used.
        fact: keyed digest of the requested text (`State.compute_keyed_digest`); None if missing or erased.
        undoes: for an undo: id of the task whose changes it reverses.
        answers: for the approval of a review: the kind of the task that proposed the change.
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
        """Return whether this run is the edit or move of an entry by a user."""
        return (self.kind, self.decided_by) == ("edit", PERSON)

    @property
    def is_mixed(self) -> bool:
        """Return whether this run is an edit by a user that left sentences of lower trust in the entry."""
        return self.is_manual_edit and self.trust is not Trust.OWNER


class ChangeRow(NamedTuple):
    """The change of one file, as a row of the ledger.

    Attributes:
        change_set: id of the commit.
        position: number of the change in its commit, from 0; part of the temporary name of the file.
        root: key of the root.
        change: paths, bytes and trust; the path contains the name that the scope had at that time.
        after_digest: digest of the new bytes, `ERASED` if they were erased, None if the file was removed.
        made: directories inside the scope that the change created, outermost first.
    """

    change_set: int
    position: int
    root: RootKey
    change: FileChange
    after_digest: Digest | None
    made: tuple[RelPath, ...] = ()

    @property
    def is_erased(self) -> bool:
        """Return whether bytes of the change were erased.

        If so, None instead of bytes does not mean that the file is missing.
        """
        return ERASED in {self.change.base, self.after_digest}


@dataclass(frozen=True, slots=True)
class CommitRow:
    """A commit in the ledger, begun or done; or a change set that waits for a review.

    Attributes:
        id: number of the row; assigned by the ledger.
        run: the origin of the commit.
        token: the commit derives its temporary file names from it (`get_temporary_name`).
        done: time when the commit was done; None for an intent or a pending change set.
        notes: texts for the user.
        review: id of the review that the change set waits for; None for a commit. A pending change set is not
            part of the history, and no file contains any of it.
        changes: one row for each changed file.
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
        """Return the public form of all changes of this commit, except erased ones."""
        return build_changes([item.change for item in self.changes if not item.is_erased])

    @property
    def touched_scopes(self) -> tuple[Scope, ...]:
        """Return the scopes that this commit changes, sorted."""
        return classify_touched_scopes(item.change for item in self.changes)

    @property
    def trust(self) -> Trust | None:
        """Return the lowest trust of the new bytes of this commit; None if it only removes files."""
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
    """Return the name that replaces the path of an erased file.

    The name reveals nothing without the key of the ledger.
    """
    return RelPath(f"{ERASED}-{state.compute_keyed_digest(f'{root}/{rel}')[:32]}")


def get_root_key(state: State, bound: BoundRoot) -> RootKey:
    """Return the ledger's key of a bound root; if its path has none, assign one."""
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
    """Change the paths of all roots but not their keys, after the ledger was moved to another home.

    Args:
        state: has the ledger.
        map_path: returns the new path for an old one. If another root was already recorded at a new path,
            that root gets a path that cannot exist.
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

    Args:
        state: has the ledger.
        before: the old path.
        bound: the root.

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
    """Store a commit that begins (an intent), or a pending change set; return its id.

    The row is on disk when this returns.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be written, or another process began the task meanwhile.
    """

    def insert_rows(connection: Transaction) -> int:
        number = _CHANGE_SETS.add(state.ledger, row).id
        _CHANGES.insert(connection, (item._replace(change_set=number) for item in row.changes))
        return number

    return state.ledger.run_transaction(insert_rows)


def finish(state: State, row: CommitRow) -> None:
    """Mark a commit as done, and add the origin of its bytes, an event and an audit record.

    All of this is on disk when the function returns.

    Args:
        state: has the ledger.
        row: the intent with its id, the time when it was done, and its notes.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be written, and the commit is still an intent; or another
            process has rolled the commit back.
    """
    run, at = row.run, row.done or ""

    def mark_done(connection: Transaction) -> None:
        done = "UPDATE change_set SET done = ?, notes = ? WHERE id = ? AND done IS NULL AND review IS NULL"
        if connection.execute(done, (at, json.dumps(row.notes), row.id)).rowcount != 1:
            raise build_unavailable_error(
                state.ledger.name, "another process rolled the commit back before it was done; try again"
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

    An undo records nothing: the text that it restores has its original origin, and foreign text stays
    foreign.

    Args:
        state: has the ledger.
        connection: a transaction of the ledger.
        run: the run that made the changes.
        changes: the changes.
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
    """Delete an unfinished commit (intent) that was rolled back.

    If it was rolled back in some roots only, the rows of the other roots stay. After it is deleted
    completely, its task may run again.

    Args:
        state: has the ledger.
        number: id of the intent.
        roots: keys of the roots in which it was rolled back; None: all roots.
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
    """Record the parts of an interrupted commit that a user may have edited, or used for an edit.

    The run of that commit is recorded as the origin of all its new bytes. The files that were not rolled back
    become a new commit, which preserves their earlier bytes.

    Args:
        state: has the ledger.
        number: id of the unfinished commit (intent), which stays unchanged.
        skipped: files that were not rolled back, each with the key of its root.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be written.
    """
    with state.ledger.transaction() as connection:
        for intent in read_commits(state, "id = ?", (number,)):
            _record_provenance(state, connection, intent.run, intent.changes)
            found = tuple(each for each in intent.changes if (each.root, each.change.path.rel) in skipped)
            if found:
                run = replace(intent.run, task=f"recovery-{secrets.token_hex(8)}", fact=None)
                notes = (f"interrupted ({intent.run.task}); another program changed these files since then",)
                begun = replace(intent, run=run, notes=notes, changes=found)
                finish(state, replace(begun, id=begin(state, begun), done=audit.timestamp()))


def find_commit(state: LedgerState, task: str) -> CommitRow | None:
    """Return the finished commit of a task, or None."""
    found = read_commits(state, "task = ? AND done IS NOT NULL", (task,))
    return found[0] if found else None


def find_tasks(
    state: LedgerState, text: str, is_known: Callable[[Run], bool] = lambda _: True
) -> tuple[str, ...]:
    """Return the ids of the finished tasks that a text names: its id, or its handle or the beginning of one.

    Args:
        state: has the ledger.
        text: the text that a caller typed.
        is_known: whether the caller may know a task, for handles; an id is never checked.

    Returns:
        An id that equals the text, and all other ids with the handle, the newest first. The beginning of a
        handle is ignored if an id equals it: callers choose ids, such as `t123`. A complete handle is not:
        otherwise a caller could choose it as the id of a task, which would then be undone instead.

    Cost: for a handle, a scan of the ids of all tasks, about 5 µs each.
    """
    is_id = bool(state.ledger.rows("SELECT 1 FROM change_set WHERE task = ? AND done IS NOT NULL", (text,)))
    found, prefix = [text] if is_id else [], parse_task_handle(text)
    if prefix is not None and not (is_id and len(prefix) < TASK_HANDLE_CHARS):
        rows = state.ledger.rows("SELECT task FROM change_set WHERE done IS NOT NULL ORDER BY id DESC")
        same = (task for (task,) in rows if task != text and build_task_handle(task).startswith(prefix))
        found += [task for task in same if (done := find_commit(state, task)) and is_known(done.run)]
    return tuple(found)


class TaskEnd(NamedTuple):
    """A finished task, for the choice of a task to undo.

    Attributes:
        task: the id.
        undoes: the id of the task that it undid; None: it is not an undo.
        is_bound: whether it changed only bound roots, and is not an erasure.
    """

    task: str
    undoes: str | None
    is_bound: bool


def list_task_ends(state: LedgerState, roots: Iterable[RootKey]) -> tuple[TaskEnd, ...]:
    """Return all finished tasks, the oldest first.

    Args:
        state: has the ledger.
        roots: the keys of the bound roots.
    """
    keys = list(roots)
    rows = state.ledger.rows(
        "SELECT task, undoes, kind <> 'erase' AND NOT EXISTS (SELECT 1 FROM change "  # noqa: S608
        f"WHERE change_set = change_set.id AND root NOT IN ({_build_placeholders(keys)})) "
        "FROM change_set WHERE done IS NOT NULL ORDER BY id",
        keys,
    )
    return tuple(TaskEnd(task, undoes, bool(is_bound)) for task, undoes, is_bound in rows)


def list_unfinished(state: State, roots: Iterable[RootKey]) -> tuple[CommitRow, ...]:
    """Return the unfinished commits that change a file in any of `roots`, the newest first."""
    wanted = set(roots)
    found = read_commits(state, "done IS NULL AND review IS NULL")
    return tuple(row for row in reversed(found) if any(item.root in wanted for item in row.changes))


def read_commits(
    state: LedgerState, condition: str = "TRUE", values: Sequence[object] = ()
) -> tuple[CommitRow, ...]:
    """Return the change sets that match an SQL condition, the oldest first, with their bytes.

    Args:
        state: has the ledger.
        condition: for the columns of the table `change_set`.
        values: parameters of the condition.
    """
    of_it = "WHERE change_set = ? ORDER BY position"
    return tuple(
        replace(row, changes=_CHANGES.read(state.ledger, of_it, (row.id,)))
        for row in _CHANGE_SETS.read(state.ledger, f"WHERE {condition} ORDER BY id", values)
    )


def find_source(state: State, root: RootKey, rel: RelPath, content_digest: Digest) -> Run | None:
    """Return the run that wrote the bytes with `content_digest` at a path; None if no commit wrote them.

    A commit in progress counts, so that a reader does not treat its files as foreign.
    """
    condition = "WHERE root = ? AND rel = ? AND digest = ? LIMIT 1"
    return _SOURCES.read_first(state.ledger, condition, (root, rel, content_digest))


def is_current(state: State, root: RootKey, rel: RelPath, content_digest: Digest) -> bool:
    """Return whether the bytes of a file in a working copy are current; True without a working copy.

    The bytes must be from the last commit that the working copy contains, or from a later commit, begun or
    done: another machine may be ahead, or this machine may be writing them.

    Args:
        state: has the ledger and the position of the working copy.
        root: key of the root of the file.
        rel: path of the file.
        content_digest: digest of the bytes.

    Cost: one query.
    """
    if state.position is None:
        return True
    return bool(state.ledger.rows(_IS_CURRENT_QUERY, (root, rel, content_digest, state.position.number)))


def is_known(state: State, root: RootKey, rel: RelPath, content_digest: Digest) -> bool:
    """Return whether a commit, begun or done, wrote or replaced the bytes with `content_digest` at a path."""
    query = "SELECT 1 FROM step WHERE root = ?1 AND rel = ?2 AND ?3 IN (before_digest, after_digest) LIMIT 1"
    return bool(state.ledger.rows(query, (root, rel, content_digest)))


def _append_change_event(state: State, row: CommitRow) -> None:
    """Append the event `memory_changed` for a commit."""
    from muniment.store import tasks as outbox

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
"""Maximum number of steps in one result. To read older ones, query by path."""


class _StepRow(NamedTuple):
    """A step with the bytes of its file; without title and handles."""

    step: CommittedStep
    before: bytes | None
    after: bytes | None


_HISTORY: Final = Table(
    "step",
    _StepRow,
    at="done",
    asked="kind",
    path="root || '/' || rel",
    kind="CASE WHEN before_digest IS NULL THEN 'new' WHEN after_digest IS NULL THEN 'removed' "
    "ELSE 'changed' END",
    is_erased=f"'{ERASED}' IN (coalesce(before_digest, ''), coalesce(after_digest, ''))",
    title=None,
    previous_title=None,
    handle=None,
    task_handle=None,
)


def read_history(
    state: State,
    roots: Mapping[RootKey, Scope],
    under_path: CanonicalPath | None = None,
    limit: int = MAX_STEPS,
    since: str = "",
) -> tuple[CommittedStep, ...]:
    """Return the committed steps, the newest first; at most `limit`.

    Args:
        state: has the ledger.
        roots: the roots to include, with the current names of their scopes.
        under_path: a file, or a directory or scope with everything under it; None: everything.
        limit: maximum number of steps.
        since: only steps since this time, ISO-8601 in UTC; empty: all.
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
        f"WHERE done IS NOT NULL AND done >= ? AND {column} IN ({_build_placeholders(keys)}) "
        "AND (? = '' OR rel IN (?, ?) OR substr(rel, 1, length(?) + 1) = ? || '/') "
        "ORDER BY change_set DESC, position LIMIT ?",
        (since, *keys, rel, rel, erased, rel, rel, limit),
    )
    return tuple(_complete_step(each, roots) for each in found)


def read_task_steps(state: State, roots: Mapping[RootKey, Scope], task: str) -> tuple[CommittedStep, ...]:
    """Return the committed steps of a task in the given roots, sorted by path.

    Args:
        state: has the ledger.
        roots: the roots to include, with the current names of their scopes.
        task: the id of the task.
    """
    keys = list(roots)
    found = _HISTORY.read(
        state.ledger,
        f"WHERE done IS NOT NULL AND task = ? AND root IN ({_build_placeholders(keys)}) ORDER BY rel",
        (task, *keys),
    )
    return tuple(_complete_step(each, roots) for each in found)


def _complete_step(row: _StepRow, roots: Mapping[RootKey, Scope]) -> CommittedStep:
    """Return a step with the present name of its scope, the titles of its entry, and the handles."""
    root, _, rel = row.step.path.partition("/")
    path = CanonicalPath(roots[RootKey(root)], RelPath(rel))
    title, handle = read_label(path, row.before if row.step.kind == "removed" else row.after)
    return replace(
        row.step,
        path=path.text,
        title=title,
        previous_title=read_label(path, row.before)[0] if row.step.kind == "changed" else "",
        handle=handle,
        task_handle=build_task_handle(row.step.task),
    )


def read_content_after(state: State, root: RootKey, path: CanonicalPath, task: str) -> bytes | None:
    """Return the bytes of a file as a task left it; None if the task removed the file.

    Raises:
        NotFound: the task did not change this file.
        Erased: the bytes were erased.
    """
    return _read_side(state, root, path, task, "after")


def read_content_before(state: State, root: RootKey, path: CanonicalPath, task: str) -> bytes | None:
    """Return the bytes of a file before a task; None if the task created the file.

    Raises:
        NotFound, Erased: as `read_content_after`.
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
    """Count the files that commits changed, by day and scope, the oldest day first.

    Days without changes are omitted.

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
    """Return the origin of a file: the task that wrote it, and the trust of its text.

    Args:
        state: has the ledger.
        root: key of the root of the file.
        path: path of the file.
        present: current bytes of the file; None if it is missing.
        trust_of_scope: trust of text in this scope that Muniment did not write.

    Raises:
        NotFound: the file does not exist, and the ledger has no earlier version of it.
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
    """Return the task that undid the changes of `task`; None if they are not undone at present."""
    undone: dict[str, str] = {}
    for undoing, undoes in state.ledger.rows(
        "SELECT task, undoes FROM change_set WHERE undoes IS NOT NULL AND done IS NOT NULL ORDER BY id DESC"
    ):
        if undoing not in undone:
            undone.setdefault(undoes, undoing)
    return undone.get(task)


REVERSALS: Final = "SELECT task, undoes FROM {} WHERE undoes IS NOT NULL AND done IS NOT NULL ORDER BY id"
"""Query for the finished tasks that undid another one, the oldest first; `{}` is the table."""


def find_redos(state: State) -> frozenset[str]:
    """Return the ids of all finished tasks that undid an undo; an undo of such a task is an undo again."""
    return select_redos(state.ledger.rows(REVERSALS.format("change_set")))


def select_redos(rows: Iterable[tuple[str, str]]) -> frozenset[str]:
    """Return the ids of the redos among the rows of `REVERSALS`."""
    is_undo: dict[str, bool] = {}
    for task, undoes in rows:
        is_undo[task] = not is_undo.get(undoes, False)
    return frozenset(task for task in is_undo if not is_undo[task])


def _build_placeholders(keys: Collection[RootKey]) -> str:
    """Return the SQL placeholders for root keys in an IN list.

    Without keys, this is `NULL`: some engines do not accept an empty list.
    """
    return ", ".join("?" * len(keys)) or "NULL"


def _find_last_change(state: State, root: RootKey, rel: RelPath) -> _LastChange | None:
    """Return the last finished change of a file: its run, and the digest after it; or None."""
    condition = "WHERE root = ? AND rel = ? AND done IS NOT NULL ORDER BY change_set DESC LIMIT 1"
    return _LAST_CHANGES.read_first(state.ledger, condition, (root, rel))
