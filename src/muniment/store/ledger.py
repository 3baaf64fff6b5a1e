"""The ledger: what commits were begun and done, by whom, and what the memory was before and after.

A commit is two transactions: an *intent*, which holds everything that recovery needs to take it back, and
*done*, which makes it history: with the provenance of what it wrote and its audit record. In between the
files change. What is not done is taken back (`upkeep.py`).

Roots are known by a random key that belongs to their real path. Neither device nor inode counts: both change
when a disk is mounted elsewhere or a backup is put back, and the trust of every entry would be gone then.
What is known of an entry is known of its bytes, so that another directory in the same place gains nothing. A
directory that is moved begins a history of its own.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, NamedTuple

from muniment.content.entry import parse, shortened
from muniment.content.gates import on_one_line
from muniment.content.sentences import read_text
from muniment.errors import Erased, NotFound
from muniment.kernel.binding import BoundRoot
from muniment.kernel.change import FileChange, digest
from muniment.kernel.names import Digest, RelPath, Scope, Trust
from muniment.kernel.path import CanonicalPath
from muniment.store import audit
from muniment.store import tasks as outbox
from muniment.store.database import Transaction, unavailable
from muniment.store.passages import (
    NO_SOURCE,
    PERSON,
    digest_body,
    keep_passages,
    read_authorship,
)
from muniment.store.state import LedgerState, State
from muniment.store.table import Table
from muniment.types import Change, CommittedStep, Origin, SupersededEntry, TrustedText
from muniment.types.keys import RootKey

# -- change ------------------------------------------------------------------------------------------
#
# The broker's own view of a change: a canonical path, an opened root, bytes before and after.


SUPERSEDES: Final = "supersedes"
"""In the provenance of an entry: the digest of the file in whose place it stands, which no longer holds."""

MAX_WAS_CHARS: Final = 150
"""Characters of an entry that was superseded, as they are told."""


def changes_of(items: Sequence[FileChange]) -> tuple[Change, ...]:
    """The public view of what a change-set does to its files."""
    gone: dict[object, bytes] = {
        each.base: each.before for each in items if each.after is None and each.before is not None
    }
    return tuple(
        Change(each.path.text, each.kind, each.base, each.digest, _superseded(each, gone)) for each in items
    )


def _superseded(item: FileChange, gone: Mapping[object, bytes]) -> SupersededEntry | None:
    """Return the entry that an item replaces: at its path, or at the one that it had before."""
    if item.after is None:
        return None
    told = parse(item.after).muniment or {}
    replaced = told.get(SUPERSEDES)
    before = item.before if item.before is not None else gone.get(replaced)
    if before is None or replaced != digest(before):
        return None
    was = shortened(on_one_line(parse(before).body), MAX_WAS_CHARS)
    return SupersededEntry(item.path.text, str(told.get("id") or ""), was)


def classify_touched_scopes(changes: Iterable[FileChange]) -> tuple[Scope, ...]:
    """The scopes that a change-set touches, sorted."""
    return tuple(sorted({item.path.scope for item in changes}))


def least_trust(changes: Iterable[FileChange]) -> Trust | None:
    """The least of what a change-set writes; None: it only removes."""
    trusts = [item.trust for item in changes if item.trust is not None]
    return trusts[0].capped(*trusts) if trusts else None


# -- ledger ------------------------------------------------------------------------------------------

ERASED: Final = "erased"
"""Stands for the digest of a file whose bytes were erased."""


@dataclass(frozen=True, slots=True)
class Run:
    """Who asks for something, when, why, and under which policy; also where bytes are from that it wrote.

    Attributes:
        task: id; a task commits at most once.
        at: when; see `audit.timestamp`.
        trust: of the request; of bytes: of these.
        decided_by: what chose the places and words: `rules`, or a model's name.
        policy: name and short digest, such as `strict@a1f4e0db`.
        kind: `remember`, `forget`, `dream`, `undo`, `approve`, `erase`, or `edit` of a plain sandbox.
        fact: keyed digest of what was asked, see `State.keyed`; None where nothing was, or it was erased.
        undoes: the task whose changes are taken back.
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
    def is_of_person(self) -> bool:
        """Whether a person edited or moved an entry."""
        return (self.kind, self.decided_by) == ("edit", PERSON)

    @property
    def is_mixed(self) -> bool:
        """Whether a person edited an entry in which sentences of lower trust are left."""
        return self.is_of_person and self.trust is not Trust.OWNER


class ChangeRow(NamedTuple):
    """A change as the ledger keeps it.

    Attributes:
        position: among the changes of its commit, from 0; chooses its temporary name.
        change: by the scope's name at that time.
        after_digest: of the new bytes, also where these were erased.
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
        """Whether its bytes are no longer known; then None says nothing about the file."""
        return ERASED in {self.change.base, self.after_digest}


@dataclass(frozen=True, slots=True)
class CommitRow:
    """A commit as the ledger keeps it, done or begun; or a change-set that waits for a review.

    Attributes:
        token: with which its temporary names begin, see `temporary_of`.
        done: when; None: an intent, unless it waits.
        review: for which it waits: then it is no history, and nothing of it is in any file.
    """

    id: int
    run: Run
    token: str
    done: str | None = None
    notes: tuple[str, ...] = ()
    review: str | None = None
    changes: tuple[ChangeRow, ...] = ()

    @property
    def known(self) -> tuple[Change, ...]:
        """What it changed, as far as that was not erased."""
        return changes_of([item.change for item in self.changes if not item.is_erased])

    @property
    def touched_scopes(self) -> tuple[Scope, ...]:
        """See `classify_touched_scopes`."""
        return classify_touched_scopes(item.change for item in self.changes)

    @property
    def trust(self) -> Trust | None:
        """See `least_trust`."""
        return least_trust(item.change for item in self.changes)


class _Root(NamedTuple):
    id: str
    path: bytes


class _Provenance(NamedTuple):
    root: RootKey
    rel: RelPath
    digest: Digest
    run: Run
    body: int


class _Last(NamedTuple):
    run: Run
    after_digest: Digest | None


_ROOTS: Final = Table("root", _Root)
_CHANGES: Final = Table("change", ChangeRow, base="before_digest")
_CHANGE_SETS: Final = Table("change_set", CommitRow, given="id", changes=None, answers=None)
_PROVENANCE: Final = Table("provenance", _Provenance, kind=None, fact=None, undoes=None, answers=None)
_SOURCES: Final = Table("source", Run, undoes=None, answers=None)
_CURRENT: Final = """
    SELECT 1 FROM change_kept AS kept
    JOIN change_set ON change_set.home = kept.home AND change_set.id = kept.change_set
    WHERE root = ?1 AND rel = ?2 AND after_digest = ?3 AND (number IS NOT NULL OR review IS NULL)
    AND (number IS NULL OR number >= coalesce((
        SELECT max(number) FROM change_kept AS before
        JOIN change_set ON change_set.home = before.home AND change_set.id = before.change_set
        WHERE root = ?1 AND rel = ?2 AND number <= ?4), 0)) LIMIT 1
"""
_STEPS: Final = Table("step", _Last, trust="coalesce(trust, asked)", answers=None)


def erased_name(state: State, root: RootKey, rel: RelPath) -> RelPath:
    """What stands in the ledger for the name of a file that was erased; tells nothing without the key."""
    return RelPath(f"{ERASED}-{state.keyed(f'{root}/{rel}')[:32]}")


def root_key(state: State, bound: BoundRoot) -> RootKey:
    """The key of a bound root, given to its path at first sight."""
    path = state.name_of_root(bound.trusted_path)
    if (known := state.root_keys.get(path)) is not None:
        return RootKey(known)
    find = "SELECT id FROM root WHERE path = ?"
    found = state.ledger.rows(find, (path,))
    if found and state.is_shared:  # Nothing moves the roots of such a ledger.
        state.root_keys[path] = found[0][0]
    if not found:
        with state.ledger.transaction() as connection:
            _ROOTS.insert(connection, [_Root(state.key_of_root(path), path)], more="ON CONFLICT DO NOTHING")
        found = state.ledger.rows(find, (path,))
    if not found:
        raise unavailable(state.ledger.name, "its roots are not as they were written")
    return RootKey(found[0][0])


def move_roots(state: State, place: Callable[[bytes], bytes]) -> None:
    """Have the roots belong to other paths, and keep their keys; for a ledger that was brought elsewhere.

    Args:
        state: whose ledger.
        place: where a root is now, from where it was. What was known to stand there before, in another home,
            is known under a path that is none.
    """
    with state.ledger.transaction() as connection:
        every = _ROOTS.read(state.ledger)
        moved = [each._replace(path=place(each.path)) for each in every if place(each.path) != each.path]
        over = [each for each in every if each.path in {new.path for new in moved}]
        told = "UPDATE root SET path = ? WHERE id = ?"
        connection.executemany(told, [(f"moved-over:{each.id}".encode(), each.id) for each in over])
        connection.executemany(told, [(each.path, each.id) for each in moved])


def move_root(state: State, before: Path, bound: BoundRoot) -> None:
    """Have a bound root keep the history of the path at which it lay before, unless it has one of its own.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be written.
    """
    after, old = state.name_of_root(bound.trusted_path), os.fsencode(before)
    if state.ledger.rows("SELECT 1 FROM root WHERE path = ?", (old,)):
        lone = "NOT EXISTS (SELECT 1 FROM root WHERE path = ?1)"
        with state.ledger.transaction() as connection:
            connection.execute(f"UPDATE root SET path = ?1 WHERE path = ?2 AND {lone}", (after, old))  # noqa: S608


def begin(state: State, kept: CommitRow) -> int:
    """Write an intent, or a change-set that waits; the id of it. Durable on return.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be written, or another process began the task meanwhile.
    """

    def keep(connection: Transaction) -> int:
        number = _CHANGE_SETS.add(state.ledger, kept).id
        _CHANGES.insert(connection, (item._replace(change_set=number) for item in kept.changes))
        return number

    return state.ledger.carry_out(keep)


def finish(state: State, kept: CommitRow) -> None:
    """Make a commit history: with provenance, event and record. Durable on return.

    Args:
        state: whose ledger.
        kept: the intent that was begun, with its id, when it was done, and its notes.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be written, and the commit is still an intent; or it is
            none any more.
    """
    run, at = kept.run, kept.done or ""

    def keep(connection: Transaction) -> None:
        done = "UPDATE change_set SET done = ?, notes = ? WHERE id = ? AND done IS NULL AND review IS NULL"
        if connection.execute(done, (at, json.dumps(kept.notes), kept.id)).rowcount != 1:
            raise unavailable(state.ledger.name, "the commit was rolled back before it was finished")
        _record_provenance(state, connection, run, kept.changes)
        _tell(state, kept)
        told = {
            name: getattr(run, name) for name in ("kind", "trust", "decided_by", "policy", "fact", "undoes")
        }
        changes = [
            {"path": item.change.path.text, "before": item.change.base, "after": item.after_digest}
            for item in kept.changes
        ]
        audit.append(state, at, "commit", run.task, {**told, "changes": changes})

    state.ledger.carry_out(keep)


def _record_provenance(state: State, connection: Transaction, run: Run, changes: Iterable[ChangeRow]) -> None:
    """Record where the new bytes of changes are from, and the digests of their text.

    An undo records nothing: what it brings back is from where it was from, and foreign text stays foreign.
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
            NO_SOURCE if run.is_of_person and item.change.before is not None else digest_body(state, text),
        )
        for item, text in texts
        if item.after_digest is not None
    ]
    known = "DELETE FROM provenance WHERE root = ? AND rel = ? AND digest = ?"
    connection.executemany(known, [(each.root, each.rel, each.digest) for each in sources])
    _PROVENANCE.insert(connection, sources)
    kept_texts = zip(sources, texts, strict=True)
    keep_passages(state, connection, [(each.body, text, each.run.trust) for each, (_, text) in kept_texts])


def abandon(state: State, number: int, roots: Collection[RootKey] | None = None) -> None:
    """Forget an intent, as far as nothing of it is left in the files of `roots`; None: anywhere.

    Once no root is left its task may try again.
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


def keep_conflicts(state: State, number: int, left: Collection[tuple[RootKey, RelPath]]) -> None:
    """Record what must outlive an interrupted intent, since somebody may have copied or edited its text.

    That is where its text is from. Files that were left alone become a commit, to keep their bytes before.

    Args:
        state: whose ledger.
        number: of the intent, which stays as it is.
        left: files that were left alone.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be written.
    """
    with state.ledger.transaction() as connection:
        for intent in commits(state, "id = ?", (number,)):
            _record_provenance(state, connection, intent.run, intent.changes)
            found = tuple(each for each in intent.changes if (each.root, each.change.path.rel) in left)
            if found:
                run = replace(intent.run, task=f"recovery-{secrets.token_hex(8)}", fact=None)
                notes = (f"interrupted ({intent.run.task}); these files were changed by somebody else since",)
                begun = replace(intent, run=run, notes=notes, changes=found)
                finish(state, replace(begun, id=begin(state, begun), done=audit.timestamp()))


def of_task(state: LedgerState, task: str) -> CommitRow | None:
    """The commit of a task, if it is done."""
    found = commits(state, "task = ? AND done IS NOT NULL", (task,))
    return found[0] if found else None


def unfinished(state: State, roots: Iterable[RootKey]) -> tuple[CommitRow, ...]:
    """Intents that touch any of `roots`, the newest first."""
    wanted = set(roots)
    found = commits(state, "done IS NULL AND review IS NULL")
    return tuple(kept for kept in reversed(found) if any(item.root in wanted for item in kept.changes))


def commits(
    state: LedgerState, condition: str = "TRUE", values: Sequence[object] = ()
) -> tuple[CommitRow, ...]:
    """The change-sets for which an SQL condition holds, the oldest first, with their bytes."""
    of_it = "WHERE change_set = ? ORDER BY position"
    return tuple(
        replace(kept, changes=_CHANGES.read(state.ledger, of_it, (kept.id,)))
        for kept in _CHANGE_SETS.read(state.ledger, f"WHERE {condition} ORDER BY id", values)
    )


def source_of(state: State, root: RootKey, rel: RelPath, of: Digest) -> Run | None:
    """Where the bytes with the digest `of` at a path come from; None: not from this ledger's commits.

    A commit that is under way counts, so that no reader takes its files for somebody else's.
    """
    at = "WHERE root = ? AND rel = ? AND digest = ? LIMIT 1"
    return _SOURCES.first(state.ledger, at, (root, rel, of))


def is_current(state: State, root: RootKey, rel: RelPath, of: Digest) -> bool:
    """Return whether bytes with the digest `of` belong at a path; true if the roots are no working copy.

    In a working copy they must be those of the last commit that the copy has, or of a later commit, done or
    begun: another machine may be ahead, or this one may be writing them.

    Cost: one query.
    """
    if state.position is None:
        return True
    return bool(state.ledger.rows(_CURRENT, (root, rel, of, state.position.number)))


def is_known(state: State, root: RootKey, rel: RelPath, of: Digest) -> bool:
    """Whether bytes with the digest `of` stood at a path before or after a commit, begun ones included."""
    query = "SELECT 1 FROM step WHERE root = ?1 AND rel = ?2 AND ?3 IN (before_digest, after_digest) LIMIT 1"
    return bool(state.ledger.rows(query, (root, rel, of)))


def _tell(state: State, kept: CommitRow) -> None:
    """Add the event that the memory has changed."""
    run = kept.run
    asked = state.ledger.rows("SELECT token, client FROM task WHERE id = ?", (run.task,))
    token, client = asked[0] if asked else (None, None)
    outbox.append(
        state,
        outbox.OutboxEvent(
            "memory_changed",
            kept.done or "",
            run.task,
            {"source": f"workspace_memory_{run.answers or run.kind}"},
            roots=tuple(sorted({item.root for item in kept.changes})),
            token=token,
            client=client,
        ),
    )


# -- history -----------------------------------------------------------------------------------------
#
# What became of the memory, read from the ledger: who changed what, what a file was, and where it is from.
#
# Roots are known by their keys, so a path means the file of the directory that is bound now, whatever its
# scope was called then. Of what was erased only that it was there is left (`ERASED`).
#
# Queries only; nothing here reads memory or writes.

MAX_STEPS: Final = 1_000
"""Steps that one question is answered with; older ones are asked for by path."""


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


def history(
    state: State,
    roots: Mapping[RootKey, Scope],
    below: CanonicalPath | None = None,
    limit: int = MAX_STEPS,
) -> tuple[CommittedStep, ...]:
    """What was committed, the newest first; at most `limit`.

    Args:
        state: whose ledger.
        roots: the roots to tell of, with the present names of their scopes.
        below: a file, or a directory or scope with all beneath; None: everything.
        limit: how many steps at most.
    """
    names = {scope: key for key, scope in roots.items()}
    keys = list(roots) if below is None else [names[below.scope]] if below.scope in names else []
    rel = "" if below is None else below.rel
    erased = erased_name(state, keys[0], below.rel) if below is not None and keys else ""
    # As another text it has SQLite go from the newest on, and end at the limit; of one path the index knows
    # better.
    column = "root" if rel else "root || ''"
    found = _HISTORY.read(
        state.ledger,
        f"WHERE done IS NOT NULL AND {column} IN ({_marks(keys)}) "
        "AND (? = '' OR rel IN (?, ?) OR substr(rel, 1, length(?) + 1) = ? || '/') "
        "ORDER BY change_set DESC, position LIMIT ?",
        (*keys, rel, rel, erased, rel, rel, limit),
    )
    paths = (each.path.partition("/") for each in found)
    told = (f"{roots[RootKey(root)]}/{name}" for root, _, name in paths)
    return tuple(replace(each, path=path) for each, path in zip(found, told, strict=True))


def content_at(state: State, root: RootKey, path: CanonicalPath, task: str) -> bytes | None:
    """The bytes of a file as a task left it; None if it removed the file.

    Raises:
        NotFound: the task did not change this file.
        Erased: the bytes are no longer known.
    """
    return _side(state, root, path, task, "after")


def content_before(state: State, root: RootKey, path: CanonicalPath, task: str) -> bytes | None:
    """The bytes of a file as a task found it; None if it made the file. Raises as `content_at`."""
    return _side(state, root, path, task, "before")


def _side(
    state: State, root: RootKey, path: CanonicalPath, task: str, side: Literal["before", "after"]
) -> bytes | None:
    rows = state.ledger.rows(
        f"SELECT {side}, {side}_digest FROM step "  # noqa: S608  one of two words
        "WHERE task = ? AND done IS NOT NULL AND root = ? AND rel IN (?, ?)",
        (task, root, path.rel, erased_name(state, root, path.rel)),
    )
    if not rows:
        raise NotFound(f"{task} did not change {path.text}; see: muniment history {path.text}")
    content, digest = rows[0]
    if digest == ERASED:
        left = "left" if side == "after" else "found"
        raise Erased(f"what {task} {left} at {path.text} was erased")
    return bytes(content) if content is not None else None


def count_by_day(
    state: State, roots: Mapping[RootKey, Scope], since: str
) -> tuple[tuple[str, Scope, int], ...]:
    """How many files commits changed, by day and scope, the oldest first; days without any are left out.

    Args:
        state: whose ledger.
        roots: the roots to tell of, with the present names of their scopes.
        since: the first day, ISO-8601 UTC.
    """
    rows = state.ledger.rows(
        "SELECT substr(done, 1, 10) AS day, root, count(*) FROM step "  # noqa: S608  only marks are put in
        f"WHERE done >= ? AND root IN ({_marks(roots)}) GROUP BY day, root ORDER BY day, root",
        (since, *roots),
    )
    return tuple((day, roots[root], count) for day, root, count in rows)


def why(
    state: State, root: RootKey, path: CanonicalPath, present: bytes | None, trust_of_scope: Trust
) -> Origin:
    """Where a file comes from.

    Args:
        state: whose ledger.
        root: of the file.
        path: of the file.
        present: what is there now; None: nothing is.
        trust_of_scope: the trust of what Muniment did not write there.

    Raises:
        NotFound: nothing is there, and nothing ever was as far as the ledger knows.
        Erased: what was there was erased.
    """
    source = None if present is None else source_of(state, root, path.rel, digest(present))
    found = None
    if present is not None and (source is None or source.is_mixed):
        found = read_authorship(state, root, path.rel, present, trust_of_scope)
    sentences = () if found is None else found.sentences
    if source is not None:
        return _origin(path, "committed", source.trust, source, sentences)
    last = _last(state, root, path.rel)
    if found is not None and last is None:
        return _origin(path, "foreign", found.trust, None, sentences)
    if last is None and _last(state, root, erased_name(state, root, path.rel)) is not None:
        raise Erased(f"what was remembered at {path.text} was erased")
    if last is None:
        raise NotFound(f"nothing is remembered at {path.text}, nor was it")
    if found is not None:
        return _origin(path, "edited", found.trust, last.run, sentences)
    return _origin(path, "removed" if last.after_digest is None else "missing", None, last.run)


def _origin(
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


def undone_by(state: State, task: str) -> str | None:
    """The task that took back the changes of `task`, unless that was undone in turn."""
    undone: dict[str, str] = {}
    for undoing, undoes in state.ledger.rows(
        "SELECT task, undoes FROM change_set WHERE undoes IS NOT NULL AND done IS NOT NULL ORDER BY id DESC"
    ):
        if undoing not in undone:
            undone.setdefault(undoes, undoing)
    return undone.get(task)


def _marks(keys: Collection[RootKey]) -> str:
    """Marks for roots behind IN, which not every engine takes with nothing in it."""
    return ", ".join("?" * len(keys)) or "NULL"


def _last(state: State, root: RootKey, rel: RelPath) -> _Last | None:
    """The last change of a file that the ledger knows."""
    at = "WHERE root = ? AND rel = ? AND done IS NOT NULL ORDER BY change_set DESC LIMIT 1"
    return _STEPS.first(state.ledger, at, (root, rel))
