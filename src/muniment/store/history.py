"""What became of the memory, read from the ledger: who changed what, what a file was, and where it is from.

Roots are known by their keys, so a path means the file of the directory that is bound now, whatever its scope
was called then. Of what was erased only that it was there is left (`ERASED`).

Queries only; nothing here reads memory or writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from muniment.errors import Erased, NotFound
from muniment.names import Digest, RelPath, Scope, Trust
from muniment.policy.grammar import CanonicalPath
from muniment.store.ledger import ERASED, RootKey, Source, erased_name, source_of
from muniment.store.state import State

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
    source: Source | None
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


def _last(state: State, root: RootKey, rel: RelPath) -> tuple[Source | None, str | None]:
    """The last change of a file that the ledger knows, and the digest of what it left."""
    rows = state.ledger.rows(
        "SELECT coalesce(change.trust, change_set.trust), task, decided_by, policy, at, after_digest "
        "FROM change_set JOIN change ON change_set = change_set.id "
        "WHERE root = ? AND rel = ? AND done IS NOT NULL ORDER BY change_set.id DESC LIMIT 1",
        (root, rel),
    )
    if not rows:
        return None, None
    trust, *rest, left = rows[0]
    return Source(Trust(trust), *rest), left
