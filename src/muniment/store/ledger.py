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
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple, NewType

from muniment.errors import Erased, NotFound
from muniment.kernel.binding import BoundRoot
from muniment.kernel.change import ChangeKind, FileChange, digest
from muniment.kernel.names import Digest, RelPath, Scope, Trust
from muniment.kernel.path import CanonicalPath
from muniment.store import audit
from muniment.store import tasks as outbox
from muniment.store.state import State
from muniment.store.table import Table

# -- change ------------------------------------------------------------------------------------------
#
# The broker's own view of a change: a canonical path, an opened root, bytes before and after.


@dataclass(frozen=True, slots=True)
class Change:
    """A change as callers see it.

    Attributes:
        path: logical path.
        kind: whether the file comes, changes or goes.
        sha256_before: digest of what was there, None for a new file.
        sha256_after: digest of what the change-set puts there, None for a file that goes.
    """

    path: str
    kind: ChangeKind
    sha256_before: Digest | None
    sha256_after: Digest | None

    @classmethod
    def between(cls, path: str, before: Digest | None, after: Digest | None) -> Change:
        """The change of the file at `path` from one digest to another; None is no file."""
        kind: ChangeKind = "create" if before is None else "delete" if after is None else "modify"
        return cls(path, kind, before, after)


def change_of(item: FileChange) -> Change:
    """The public view of what a change-set does to a file."""
    return Change.between(item.path.text, item.base, item.digest)


def classify_touched_scopes(changes: Iterable[FileChange]) -> tuple[Scope, ...]:
    """The scopes that a change-set touches, sorted."""
    return tuple(sorted({item.path.scope for item in changes}))


# -- ledger ------------------------------------------------------------------------------------------

RootKey = NewType("RootKey", str)
"""What the ledger and the catalog call a root: 32 random hexadecimal digits."""

ERASED: Final = "erased"
"""Stands for the digest of a file whose bytes were erased."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Who asks for a commit, and why.

    Attributes:
        task: id; a task commits at most once.
        kind: `remember`, `forget`, `dream`, `undo`, `approve`, `erase`, or `edit` of a plain sandbox.
        at: when; see `audit.timestamp`.
        trust: of the request.
        decided_by: what chose the places and words: `rules`, or a model's name.
        policy: name and short digest, such as `strict@a1f4e0db`.
        fact: keyed digest of what was asked, see `State.keyed`.
        undoes: the task whose changes are taken back.
        answers: the kind of the task whose review this approves.
    """

    task: str
    kind: str
    at: str
    trust: Trust
    decided_by: str
    policy: str
    fact: str | None = None
    undoes: str | None = None
    answers: str | None = None


@dataclass(frozen=True, slots=True)
class KeptChange:
    """A change as the ledger keeps it.

    Attributes:
        number: among the changes of its commit, from 0; chooses its temporary name.
        made: directories inside the scope that did not exist before, outermost first.
        trust: of `after`; None where the file goes.
        is_erased: whether its bytes are no longer known; then None says nothing about the file.
    """

    number: int
    root: RootKey
    scope: Scope
    rel: RelPath
    before: bytes | None
    after: bytes | None
    made: tuple[RelPath, ...]
    trust: Trust | None
    is_erased: bool = False

    @property
    def path(self) -> str:
        """The logical path, by the scope's name at that time."""
        return f"{self.scope}/{self.rel}"

    @property
    def change(self) -> Change:
        """The public view."""
        return Change.between(self.path, _digest_of(self.before), _digest_of(self.after))


@dataclass(frozen=True, slots=True)
class Kept:
    """A commit as the ledger keeps it, done or begun.

    Attributes:
        token: with which its temporary names begin, see `temporary_of`.
        done: when; None: an intent.
    """

    id: int
    origin: Origin
    token: str
    done: str | None
    notes: tuple[str, ...]
    changes: tuple[KeptChange, ...] = ()

    @property
    def trust(self) -> Trust | None:
        """The least of what it wrote; None: it only removed."""
        trusts = [item.trust for item in self.changes if item.trust is not None]
        return trusts[0].capped(*trusts) if trusts else None


@dataclass(frozen=True, slots=True)
class KnownSource:
    """Where the bytes at a path come from, for a (root, path, digest) that this ledger knows."""

    trust: Trust
    task: str
    decided_by: str
    policy: str
    at: str


class _Root(NamedTuple):
    id: str
    path: bytes


class _Change(NamedTuple):
    change_set: int
    position: int
    root: RootKey
    scope: Scope
    rel: RelPath
    before: bytes | None
    before_digest: str | None
    after: bytes | None
    after_digest: str | None
    made: tuple[RelPath, ...]
    trust: Trust | None


class _Provenance(NamedTuple):
    root: RootKey
    rel: RelPath
    digest: Digest
    source: KnownSource


_ROOTS: Final = Table("root", _Root)
_CHANGES: Final = Table("change", _Change)
_CHANGE_SETS: Final = Table("change_set", Kept, given="id", changes=None, answers=None)
_PROVENANCE: Final = Table("provenance", _Provenance)


def erased_name(state: State, root: RootKey, rel: RelPath) -> RelPath:
    """What stands in the ledger for the name of a file that was erased; tells nothing without the key."""
    return RelPath(f"{ERASED}-{state.keyed(f'{root}/{rel}')[:32]}")


def root_key(state: State, bound: BoundRoot) -> RootKey:
    """The key of a bound root, given to its path at first sight."""
    path = os.fsencode(bound.trusted_path)
    find = "SELECT id FROM root WHERE path = ?"
    found = state.ledger.rows(find, (path,))
    if not found:
        with state.ledger.transaction() as connection:
            _ROOTS.insert(connection, [_Root(secrets.token_hex(16), path)], "INSERT OR IGNORE")
        found = state.ledger.rows(find, (path,))
    return RootKey(found[0][0])


def begin(state: State, origin: Origin, token: str, changes: Sequence[KeptChange]) -> int:
    """Write an intent; the id of the commit. Durable on return.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be written, or another process began the task meanwhile.
    """
    with state.ledger.transaction() as connection:
        number = _CHANGE_SETS.add(connection, Kept(0, origin, token, None, ()))
        rows = [
            _Change(
                number,
                item.number,
                item.root,
                item.scope,
                item.rel,
                item.before,
                _digest_of(item.before),
                item.after,
                _digest_of(item.after),
                item.made,
                item.trust,
            )
            for item in changes
        ]
        _CHANGES.insert(connection, rows)
    return number


def finish(
    state: State, number: int, origin: Origin, changes: Sequence[KeptChange], notes: Sequence[str], at: str
) -> None:
    """Make a commit history: done, with provenance, event and record. Durable on return.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be written. The commit is still an intent.
    """
    with state.ledger.transaction() as connection:
        connection.execute(
            "UPDATE change_set SET done = ?, notes = ? WHERE id = ?", (at, json.dumps(notes), number)
        )
        sources = [
            _Provenance(
                item.root,
                item.rel,
                digest(item.after),
                KnownSource(
                    item.trust or origin.trust, origin.task, origin.decided_by, origin.policy, origin.at
                ),
            )
            for item in changes
            # What an undo brings back is from where it was from, and foreign text stays foreign.
            if item.after is not None and origin.undoes is None
        ]
        _PROVENANCE.insert(connection, sources, "INSERT OR REPLACE")
        _tell(state, origin, changes, at)
        audit.append(
            state,
            at,
            "commit",
            origin.task,
            {
                "kind": origin.kind,
                "trust": origin.trust,
                "decided_by": origin.decided_by,
                "policy": origin.policy,
                "fact": origin.fact,
                "undoes": origin.undoes,
                "changes": [
                    {"path": item.path, "before": _digest_of(item.before), "after": _digest_of(item.after)}
                    for item in changes
                ],
            },
        )


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
            "DELETE FROM change_set WHERE id = ?1 AND done IS NULL "
            "AND NOT EXISTS (SELECT 1 FROM change WHERE change_set = ?1)",
            (number,),
        )


def of_task(state: State, task: str) -> Kept | None:
    """The commit of a task, if it is done."""
    found = commits(state, "task = ? AND done IS NOT NULL", (task,))
    return found[0] if found else None


def unfinished(state: State, roots: Iterable[RootKey]) -> tuple[Kept, ...]:
    """Intents that touch any of `roots`, the newest first."""
    wanted = set(roots)
    found = commits(state, "done IS NULL")
    return tuple(kept for kept in reversed(found) if any(item.root in wanted for item in kept.changes))


def commits(state: State, condition: str = "TRUE", values: Sequence[object] = ()) -> tuple[Kept, ...]:
    """The commits for which an SQL condition over `change_set` holds, the oldest first, with their bytes."""
    found = _CHANGE_SETS.read(state.ledger, f"WHERE {condition} ORDER BY id", values)
    return tuple(replace(kept, changes=_changes(state, kept.id)) for kept in found)


def source_of(state: State, root: RootKey, rel: RelPath, of: Digest) -> KnownSource | None:
    """Where the bytes with the digest `of` at a path come from; None: not from this ledger's commits.

    A commit that is under way counts, so that no reader takes its files for somebody else's.
    """
    found = state.ledger.rows(
        "SELECT trust, task, decided_by, policy, at FROM provenance "
        "WHERE root = ?1 AND rel = ?2 AND digest = ?3 "
        "UNION ALL SELECT change.trust, task, decided_by, policy, at "
        "FROM change_set JOIN change ON change_set = change_set.id "
        "WHERE done IS NULL AND undoes IS NULL AND root = ?1 AND rel = ?2 AND after_digest = ?3 LIMIT 1",
        (root, rel, of),
    )
    return next(
        (KnownSource(Trust(trust), task, by, policy, at) for trust, task, by, policy, at in found), None
    )


def is_known(state: State, root: RootKey, rel: RelPath, of: Digest) -> bool:
    """Whether bytes with the digest `of` stood at a path before or after a commit, begun ones included."""
    query = (
        "SELECT 1 FROM change WHERE root = ?1 AND rel = ?2 AND ?3 IN (before_digest, after_digest) LIMIT 1"
    )
    return bool(state.ledger.rows(query, (root, rel, of)))


def _tell(state: State, origin: Origin, changes: Sequence[KeptChange], at: str) -> None:
    """Add the event that the memory has changed."""
    asked = state.ledger.rows("SELECT token, client FROM task WHERE id = ?", (origin.task,))
    token, client = asked[0] if asked else (None, None)
    outbox.append(
        state,
        outbox.Event(
            "memory_changed",
            at,
            origin.task,
            {"source": f"workspace_memory_{origin.answers or origin.kind}"},
            roots=tuple(sorted({item.root for item in changes})),
            token=token,
            client=client,
        ),
    )


def _changes(state: State, number: int) -> tuple[KeptChange, ...]:
    return tuple(
        KeptChange(
            each.position,
            each.root,
            each.scope,
            each.rel,
            each.before,
            each.after,
            each.made,
            each.trust,
            ERASED in {each.before_digest, each.after_digest},
        )
        for each in _CHANGES.read(state.ledger, "WHERE change_set = ? ORDER BY position", (number,))
    )


def _digest_of(content: bytes | None) -> Digest | None:
    return None if content is None else digest(content)


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

Kind = Literal["new", "changed", "removed"]


@dataclass(frozen=True, slots=True)
class Step:
    """One file as one task left it.

    Attributes:
        at: when it was committed; ISO-8601, UTC.
        task: which task did it.
        asked: what that was: `remember`, `undo`, …
        path: by the present name of its scope.
        kind: what became of the file.
        trust: of its new bytes; None where it went.
        undoes: the task whose changes were taken back.
        is_erased: whether its bytes are no longer known.
    """

    at: str
    task: str
    asked: str
    path: str
    kind: Kind
    trust: Trust | None
    decided_by: str
    policy: str
    undoes: str | None
    is_erased: bool


@dataclass(frozen=True, slots=True)
class Why:
    """Where a file comes from.

    Attributes:
        path: which file.
        state: `committed`: it is what its task left. `edited`: by hand, since the task. `foreign`: Muniment
            never wrote it. `removed`: its task removed it. `missing`: it went by hand, since the task.
        trust: of what is there now; None where nothing is.
        source: what the ledger knows of the present bytes, or else of the last ones that it knows.
        asked: the kind of that task.
        fact: keyed digest of what the task was asked; None where it was asked nothing, or that was erased.
    """

    path: str
    state: Literal["committed", "edited", "foreign", "removed", "missing"]
    trust: Trust | None
    source: KnownSource | None
    asked: str | None
    fact: str | None


def history(
    state: State, roots: Mapping[RootKey, Scope], below: CanonicalPath | None = None
) -> tuple[Step, ...]:
    """What was committed, the newest first; at most `MAX_STEPS`.

    Args:
        state: whose ledger.
        roots: the roots to tell of, with the present names of their scopes.
        below: a file, or a directory or scope with all beneath; None: everything.
    """
    names = {scope: key for key, scope in roots.items()}
    keys = list(roots) if below is None else [names[below.scope]] if below.scope in names else []
    rel = "" if below is None else below.rel
    erased = erased_name(state, keys[0], below.rel) if below is not None and keys else ""
    rows = state.ledger.rows(
        "SELECT done, task, kind, root, rel, before_digest, after_digest, change.trust, decided_by, policy, "  # noqa: S608  only marks are put in
        "undoes FROM change_set JOIN change ON change_set = change_set.id "
        f"WHERE done IS NOT NULL AND root IN ({', '.join('?' * len(keys))}) "
        "AND (? = '' OR rel IN (?, ?) OR substr(rel, 1, length(?) + 1) = ? || '/') "
        "ORDER BY change_set.id DESC, position LIMIT ?",
        (*keys, rel, rel, erased, rel, rel, MAX_STEPS),
    )
    return tuple(
        Step(
            done,
            task,
            asked,
            f"{roots[root]}/{rel}",
            _kind(before, after),
            None if trust is None else Trust(trust),
            decided_by,
            policy,
            undoes,
            ERASED in {before, after},
        )
        for done, task, asked, root, rel, before, after, trust, decided_by, policy, undoes in rows
    )


def content_at(state: State, root: RootKey, path: CanonicalPath, task: str) -> bytes | None:
    """The bytes of a file as a task left it; None if it removed the file.

    Raises:
        NotFound: the task did not change this file.
        Erased: the bytes are no longer known.
    """
    rows = state.ledger.rows(
        "SELECT after, after_digest FROM change_set JOIN change ON change_set = change_set.id "
        "WHERE task = ? AND done IS NOT NULL AND root = ? AND rel IN (?, ?)",
        (task, root, path.rel, erased_name(state, root, path.rel)),
    )
    if not rows:
        raise NotFound(f"{task} did not change {path.text}; see: muniment history {path.text}")
    content, digest = rows[0]
    if digest == ERASED:
        raise Erased(f"what {task} left at {path.text} was erased")
    return bytes(content) if content is not None else None


def why(
    state: State, root: RootKey, path: CanonicalPath, present: Digest | None, trust_of_scope: Trust
) -> Why:
    """Where a file comes from.

    Args:
        state: whose ledger.
        root: of the file.
        path: of the file.
        present: digest of what is there now; None: nothing is.
        trust_of_scope: the trust of what Muniment did not write there.

    Raises:
        NotFound: nothing is there, and nothing ever was as far as the ledger knows.
        Erased: what was there was erased.
    """
    source = None if present is None else source_of(state, root, path.rel, present)
    if source is not None:
        asked, fact = _asked(state, source.task)
        return Why(path.text, "committed", source.trust, source, asked, fact)
    last, left = _last(state, root, path.rel)
    if present is not None:
        status: Literal["edited", "foreign"] = "foreign" if last is None else "edited"
        asked, fact = _asked(state, last.task) if last else (None, None)
        return Why(path.text, status, trust_of_scope, last, asked, fact)
    if last is None and _last(state, root, erased_name(state, root, path.rel))[0] is not None:
        raise Erased(f"what was remembered at {path.text} was erased")
    if last is None:
        raise NotFound(f"nothing is remembered at {path.text}, nor was it")
    asked, fact = _asked(state, last.task)
    return Why(path.text, "removed" if left is None else "missing", None, last, asked, fact)


def undone_by(state: State, task: str) -> str | None:
    """The task that took back the changes of `task`, unless that was undone in turn."""
    undone: dict[str, str] = {}
    for undoing, undoes in state.ledger.rows(
        "SELECT task, undoes FROM change_set WHERE undoes IS NOT NULL AND done IS NOT NULL ORDER BY id DESC"
    ):
        if undoing not in undone:
            undone.setdefault(undoes, undoing)
    return undone.get(task)


def _kind(before: str | None, after: str | None) -> Kind:
    return "new" if before is None else "removed" if after is None else "changed"


def _asked(state: State, task: str) -> tuple[str | None, str | None]:
    """Kind and fact of a task."""
    rows = state.ledger.rows("SELECT kind, fact FROM change_set WHERE task = ?", (task,))
    return rows[0] if rows else (None, None)


def _last(state: State, root: RootKey, rel: RelPath) -> tuple[KnownSource | None, str | None]:
    """The last change of a file that the ledger knows, and the digest of what it left."""
    rows = state.ledger.rows(
        "SELECT coalesce(change.trust, change_set.trust), task, decided_by, policy, at, after_digest "
        "FROM change_set JOIN change ON change_set = change_set.id "
        "WHERE root = ? AND rel = ? AND done IS NOT NULL ORDER BY change_set.id DESC LIMIT 1",
        (root, rel),
    )
    if not rows:
        return None, None
    trust, task, decided_by, policy, at, left = rows[0]
    return KnownSource(Trust(trust), task, decided_by, policy, at), left
