"""The ledger: what commits were begun and done, by whom, and what the memory was before and after.

A commit is two transactions: an *intent*, which holds everything that recovery needs to take it back, and
*done*, which makes it history: with the provenance of what it wrote and its audit record. In between the
files change. What is not done is taken back (`recovery.py`).

Roots are known by a random key that belongs to their real path. Neither device nor inode counts: both change
when a disk is mounted elsewhere or a backup is put back, and the trust of every entry would be gone then.
What is known of an entry is known of its bytes, so that another directory in the same place gains nothing. A
directory that is moved begins a history of its own.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NewType

from muniment.confine.binding import BoundRoot
from muniment.confine.writing import temporary_name
from muniment.names import Digest, RelPath, Scope, Trust
from muniment.store import audit, outbox
from muniment.store.change import Change
from muniment.store.state import State
from muniment.tools.overlay import digest

RootKey = NewType("RootKey", str)
"""What the ledger and the catalog call a root: 32 random hexadecimal digits."""

ERASED: Final = "erased"
"""Stands for the digest of a file whose bytes were erased."""

_TOKEN_BYTES: Final = 6
_COUNTER_BYTES: Final = 2
_FIRST_OF_INDEX: Final = 1 << 15


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
    changes: tuple[KeptChange, ...]

    @property
    def trust(self) -> Trust | None:
        """The least of what it wrote; None: it only removed."""
        trusts = [item.trust for item in self.changes if item.trust is not None]
        return trusts[0].capped(*trusts) if trusts else None


@dataclass(frozen=True, slots=True)
class Source:
    """Where the bytes at a path come from, for a (root, path, digest) that this ledger knows."""

    trust: Trust
    task: str
    decided_by: str
    policy: str
    at: str


def new_token() -> str:
    """Random text for the temporary names of one commit."""
    return secrets.token_hex(_TOKEN_BYTES)


def temporary_of(token: str, number: int) -> str:
    """The temporary name for the write of a number, below 32 768, of the commit with that token."""
    return temporary_name(lambda _: bytes.fromhex(token) + number.to_bytes(_COUNTER_BYTES, "big"))


def temporary_of_index(token: str, number: int) -> str:
    """As `temporary_of`, for the number of a write of an index file; these claim nothing."""
    return temporary_of(token, _FIRST_OF_INDEX + number)


def is_of_index(temporary: str) -> bool:
    """Whether a temporary name of a commit is one of `temporary_of_index`."""
    number = temporary.removesuffix(".tmp")[-2 * _COUNTER_BYTES :]
    return int(number, 16) >= _FIRST_OF_INDEX


def temporary_prefix(token: str) -> str:
    """With what every temporary name of that commit begins."""
    return temporary_of(token, 0).removesuffix(f"{bytes(_COUNTER_BYTES).hex()}.tmp")


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
            connection.execute(
                "INSERT OR IGNORE INTO root (id, path) VALUES (?, ?)", (secrets.token_hex(16), path)
            )
        found = state.ledger.rows(find, (path,))
    return RootKey(found[0][0])


def begin(state: State, origin: Origin, token: str, changes: Sequence[KeptChange]) -> int:
    """Write an intent; the id of the commit. Durable on return.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be written, or another process began the task meanwhile.
    """
    with state.ledger.transaction() as connection:
        number = connection.execute(
            "INSERT INTO change_set (task, kind, at, trust, decided_by, policy, fact, undoes, token) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                origin.task,
                origin.kind,
                origin.at,
                origin.trust,
                origin.decided_by,
                origin.policy,
                origin.fact,
                origin.undoes,
                token,
            ),
        ).lastrowid
        assert number is not None  # noqa: S101  for the type checker: a row was inserted
        connection.executemany(
            "INSERT INTO change VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    number,
                    item.number,
                    item.root,
                    item.scope,
                    item.rel,
                    item.before,
                    _digest_of(item.before),
                    item.after,
                    _digest_of(item.after),
                    json.dumps(item.made),
                    item.trust,
                )
                for item in changes
            ],
        )
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
        connection.executemany(
            "INSERT OR REPLACE INTO provenance VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    item.root,
                    item.rel,
                    digest(item.after),
                    item.trust,
                    origin.task,
                    origin.decided_by,
                    origin.policy,
                    origin.at,
                )
                for item in changes
                # What an undo brings back is from where it was from, and foreign text stays foreign.
                if item.after is not None and origin.undoes is None
            ],
        )
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
    found: list[Kept] = []
    for number, *origin, token, done, notes in state.ledger.rows(
        "SELECT id, task, kind, at, trust, decided_by, policy, fact, undoes, token, done, notes "  # noqa: S608  the condition is of this package
        f"FROM change_set WHERE {condition} ORDER BY id",
        values,
    ):
        task, kind, at, trust, *rest = origin
        found.append(
            Kept(
                number,
                Origin(task, kind, at, Trust(trust), *rest),
                token,
                done,
                tuple(json.loads(notes)),
                _changes(state, number),
            )
        )
    return tuple(found)


def source_of(state: State, root: RootKey, rel: RelPath, of: Digest) -> Source | None:
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
    return Source(Trust(found[0][0]), *found[0][1:]) if found else None


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
            position,
            root,
            scope,
            rel,
            before,
            after,
            tuple(json.loads(made)),
            None if trust is None else Trust(trust),
            ERASED in digests,
        )
        for position, root, scope, rel, before, after, made, trust, *digests in state.ledger.rows(
            "SELECT position, root, scope, rel, before, after, made, trust, before_digest, after_digest "
            "FROM change WHERE change_set = ? ORDER BY position",
            (number,),
        )
    )


def _digest_of(content: bytes | None) -> Digest | None:
    return None if content is None else digest(content)
