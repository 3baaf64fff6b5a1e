"""Change sets that wait for the owner: queue, preview, reject. `operations/review.py` approves.

A pending change set is stored in the ledger with bytes and claims, as a commit that was never begun.

V1 A review is bound to the roots of its request, not to the names of their scopes.
V2 An approval contains a digest of the final text, the claims, the roots and the trusts, and of the policy in
   force now: exactly the displayed change is committed, or nothing.
V3 A review is decided once. An approval is recorded as the ledger's commit of `approval_task`, which commits
   at most once. A rejection runs under the locks of the review's roots, so it cannot overlap an approval.
V4 A task waits once, even if a repeated run proposes something else. Number and bytes of pending reviews are
   limited: for one client's token, for all runs of low trust, and in total. Runs of low trust never use up
   the owner's share. A new review that exceeds a limit is rejected; pending ones are never dropped.
"""

from __future__ import annotations

import difflib
import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from muniment.content.gates import visible
from muniment.errors import InvalidScope, NotFound, QuotaExceeded, ReviewClosed, printable
from muniment.kernel.binding import BoundRoot
from muniment.kernel.cancel import Patience
from muniment.kernel.change import ChangeSet, Claim, FileChange, digest
from muniment.kernel.land import lock_roots
from muniment.kernel.names import Digest, Scope, Trust
from muniment.store import audit
from muniment.store.ledger import ChangeRow, CommitRow, Run, begin, commits, of_task, root_key
from muniment.store.state import State
from muniment.store.table import Table
from muniment.types.keys import RootKey

# -- review ------------------------------------------------------------------------------------------

ID_CHARS: Final = 6
"""Characters of a review's id after its `r`, for people to type: 30 bits; a used id is drawn again."""

MAX_OF_TOKEN: Final = 20
"""Pending reviews of the tasks of one token: as many as a user can check in one sitting."""

MAX_OF_AGENTS: Final = 150
"""Pending reviews of all runs of trust `agent` or `external`; the rest of `MAX_WAITING` is the owner's."""

MAX_WAITING: Final = 200
"""Pending reviews in total."""

MAX_BYTES_OF_TOKEN: Final = 4 << 20
MAX_BYTES_OF_AGENTS: Final = 24 << 20
MAX_WAITING_BYTES: Final = 32 << 20
"""Bytes of new text in pending reviews of one token, of all runs of low trust, and in total."""

_BELOW_WORKSPACE: Final = frozenset({Trust.AGENT, Trust.EXTERNAL})
_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_WAITING: Final = (
    "state = 'pending' AND NOT EXISTS "
    "(SELECT 1 FROM change_set WHERE task = 'approve:' || review.id AND done IS NOT NULL)"
)

_HELD: Final = "(SELECT change_set.id FROM change_set WHERE change_set.review = review.id)"
"""Order of reviews with the same time."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A change set that waits for the owner.

    Attributes:
        id: for people to type.
        run: the requester, and the purpose.
        reasons: why it waits, each in one line.
        change_set: with final bytes, each with its trust.
        roots: by scope, of all its paths.
        policy: digest of the policy at the time of the request.
    """

    id: str
    run: Run
    reasons: tuple[str, ...]
    change_set: ChangeSet
    roots: Mapping[Scope, RootKey]
    policy: Digest

    def digest(self, policy: Digest) -> Digest:
        """Return the digest that an approval under a policy is bound to (V2)."""
        changes, claims = self.change_set.changes, self.change_set.claims
        bound_to = {
            "changes": [
                [each.path.text, each.base, each.digest] for each in changes if each.after is not None
            ],
            "removals": [[each.path.text, each.base] for each in changes if each.after is None],
            "claims": [[each.path.text, each.digest] for each in claims],
            "trusts": {each.path.text: each.trust for each in changes},
            "roots": dict(self.roots),
            "policy": policy,
        }
        canonical = json.dumps(bound_to, sort_keys=True, separators=(",", ":"))
        return digest(canonical.encode())


class _Review(NamedTuple):
    id: str
    task: str
    kind: str
    state: str
    at: str
    reasons: tuple[str, ...]
    policy: Digest | None
    token: str | None
    digest: Digest


class _ClaimRow(NamedTuple):
    change_set: int
    position: int
    root: RootKey
    claim: Claim


_REVIEWS: Final = Table("review", _Review)
_CLAIMS: Final = Table("claim", _ClaimRow)


def approval_task(review_id: str) -> str:
    """Return the task that approves a review: there is one, so that it commits at most once.

    A caller cannot use this id for a task, because task ids of callers contain no colon.
    """
    return f"approve:{review_id}"


def hold(
    state: State,
    run: Run,
    change_set: ChangeSet,
    reasons: tuple[str, ...],
    *,
    policy: Digest,
    roots: Mapping[Scope, BoundRoot],
) -> str:
    """Store a change set for the owner; return the id of its review, or of an equal pending one (V4).

    Args:
        state: has the ledger.
        run: the requester.
        change_set: with final bytes and their trusts; an approval never raises them.
        reasons: why it must wait.
        policy: digest of the policy in force.
        roots: the bound roots; the keys of those in the change set are stored.

    Raises:
        QuotaExceeded: too many reviews are pending (V4).
        ManagedMemoryUnavailable: the ledger cannot be written.
    """
    named = {path.scope for path in (*change_set.paths, *(each.path for each in change_set.claims))}
    keys = {scope: root_key(state, root) for scope, root in roots.items() if scope in named}
    waiting = Pending("", run, reasons, change_set, keys, policy)
    with state.ledger.transaction():
        bound_to = waiting.digest(policy)
        alike = "AND (digest = ? OR (task = ? AND kind = ?))"
        for each in pending(state, alike, (bound_to, run.task, run.kind)):
            if bound_to == each.digest(each.policy) or _is_repeated(each, waiting):
                return each.id
        asked = state.ledger.rows("SELECT token FROM task WHERE id = ?", (run.task,))
        by = asked[0][0] if asked else None  # Not a task of a lane.
        _check_caps(state, waiting, by)
        return _add(state, waiting, by)


def _is_repeated(one: Pending, other: Pending) -> bool:
    """Return whether two reviews of one task have the same request, even if their proposals differ."""
    return (one.roots, one.run.fact) == (other.roots, other.run.fact)


def _check_caps(state: State, new: Pending, token: str | None) -> None:
    """Check that a new review does not exceed a limit on pending reviews (V4)."""
    size_of = "(SELECT sum(length(change.after)) FROM change WHERE change.change_set = change_set.id)"
    waiting: Sequence[tuple[str | None, str, int]] = state.ledger.rows(
        f"SELECT review.token, change_set.trust, coalesce({size_of}, 0) "  # noqa: S608  from here and above
        f"FROM review JOIN change_set ON change_set.review = review.id WHERE {_WAITING}"
    )
    size = sum(len(each.after or b"") for each in new.change_set.changes)
    of_agents = [int(each) for _, trust, each in waiting if trust in _BELOW_WORKSPACE]
    of_token = [int(each) for by, _, each in waiting if by == token]
    limits = [("in all", [int(each) for *_, each in waiting], MAX_WAITING, MAX_WAITING_BYTES)]
    if new.run.trust in _BELOW_WORKSPACE:
        limits.append(("of agents", of_agents, MAX_OF_AGENTS, MAX_BYTES_OF_AGENTS))
    if token is not None:
        limits.append(("of this client", of_token, MAX_OF_TOKEN, MAX_BYTES_OF_TOKEN))
    for whose, sizes, most, most_bytes in limits:
        if len(sizes) >= most or sum(sizes) + size > most_bytes:
            raise QuotaExceeded(
                f"too many changes wait for review: {len(sizes)} {whose} with {sum(sizes)} bytes; this one "
                f"has {size}; the limits are {most} and {most_bytes} bytes; have the owner approve or reject "
                "some, see: muniment review list"
            )


def pending(state: State, more: str = "", values: Sequence[object] = ()) -> tuple[Pending, ...]:
    """Return the pending reviews, the oldest first, for any roots; `more` is SQL that restricts them.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be used.
    """
    with state.ledger.transaction():  # As in `load`.
        rows = _REVIEWS.read(state.ledger, f"WHERE {_WAITING} {more} ORDER BY at, {_HELD}", values)
        return tuple(_restored(state, each) for each in rows)


def waiting_of(state: State, task: str) -> Pending | None:
    """Return the oldest pending review of a task."""
    return next(iter(pending(state, "AND task = ?", (task,))), None)


def load(state: State, review_id: str) -> Pending:
    """Return a pending review.

    Raises:
        NotFound: the review does not exist.
        ReviewClosed: it is already decided.
        ManagedMemoryUnavailable: the ledger cannot be used.
    """
    with state.ledger.transaction():  # Another process cannot decide the review between these reads.
        found = _REVIEWS.first(state.ledger, "WHERE id = ?", (review_id,))
        if found is None:
            raise NotFound(f"review {printable(review_id)!r} not found; see: muniment review list")
        is_approved = of_task(state, approval_task(review_id)) is not None
        if is_approved or found.state != "pending":
            raise ReviewClosed(review_id, "approved" if is_approved else found.state)
        return _restored(state, found)


def check_roots(state: State, waiting: Pending, roots: Mapping[Scope, BoundRoot]) -> None:
    """Check that the scopes of a review are the directories of its request (V1).

    Raises:
        InvalidScope: a scope is another directory, or not bound.
    """
    for scope, key in waiting.roots.items():
        if scope not in roots or root_key(state, roots[scope]) != key:
            raise InvalidScope(
                f"review {waiting.id} is about another directory for scope {scope!r}; decide it in the "
                "workspace, or with the --root, that was used for the request"
            )


def turn_down(
    state: State, review_id: str, roots: Mapping[Scope, BoundRoot], patience: Patience, at: str
) -> Pending:
    """Reject a review, so that its change set is never committed; return the review.

    Raises:
        NotFound, ReviewClosed: as `load`.
        InvalidScope: as `check_roots`.
        DeadlineExceeded, Cancelled: another process held the lock of a root.
        ManagedMemoryUnavailable: a root or the ledger cannot be used.
    """
    waiting = load(state, review_id)
    check_roots(state, waiting, roots)
    state.require_writable()
    # Under the locks, no approval can be between its last read of this row and its commit.
    with lock_roots([roots[scope] for scope in waiting.roots], patience), state.ledger.transaction():
        load(state, review_id)
        close(state, review_id, "rejected", at)
    return waiting


def close(state: State, review_id: str, decision: str, at: str, outcome: str | None = None) -> None:
    """Record a decision; for an approval also the task that committed it."""
    with state.ledger.transaction() as connection:
        decided = "UPDATE review SET state = ?, outcome = ? WHERE id = ?"
        connection.execute(decided, (decision, outcome, review_id))
        connection.execute("DELETE FROM change_set WHERE review = ?", (review_id,))
        audit.append(state, at, decision, outcome, {"review": review_id})


def _add(state: State, waiting: Pending, by: str | None) -> str:
    """Store a review under a new id, with its record."""
    run, keys, whole = waiting.run, waiting.roots, waiting.change_set
    bound_to = waiting.digest(waiting.policy)
    new = _new_id(lambda each: not state.ledger.rows("SELECT 1 FROM review WHERE id = ?", (each,)))
    with state.ledger.transaction() as connection:
        of_it = (new, run.task, run.kind, "pending", run.at, waiting.reasons, waiting.policy, by, bound_to)
        _REVIEWS.insert(connection, [_Review(*of_it)])
        rows = tuple(
            ChangeRow(0, number, keys[each.path.scope], replace(each, before=None), each.digest)
            for number, each in enumerate(whole.changes)
        )
        # Under a separate task id: the task itself may still commit, if it no longer has to wait.
        own = replace(run, task=f"review:{new}")
        number = begin(state, CommitRow(0, own, "", review=new, changes=rows))
        claims = (_ClaimRow(number, at, keys[each.path.scope], each) for at, each in enumerate(whole.claims))
        _CLAIMS.insert(connection, claims)
        scopes = tuple(keys)
        created = [
            audit.described(each.path.text, state, scopes) for each in whole.changes if each.base is None
        ]
        paths = [*created, *(each.path.text for each in whole.changes if each.base is not None)]
        body = {"review": new, "digest": bound_to, "reasons": list(waiting.reasons), "paths": paths}
        audit.append(state, run.at, "review", run.task, body)
    return new


def _new_id(is_free: Callable[[str], bool]) -> str:
    while True:
        each = "r" + "".join(secrets.choice(_ALPHABET) for _ in range(ID_CHARS))
        if is_free(each):
            return each


def _restored(state: State, row: _Review) -> Pending:
    (kept,) = commits(state, "review = ?", (row.id,))
    claims = _CLAIMS.read(state.ledger, "WHERE change_set = ? ORDER BY position", (kept.id,))
    change_set = ChangeSet(tuple(each.change for each in kept.changes), tuple(each.claim for each in claims))
    keys = {each.change.path.scope: each.root for each in kept.changes}
    keys |= {each.claim.path.scope: each.root for each in claims}
    return Pending(
        row.id, replace(kept.run, task=row.task), row.reasons, change_set, keys, row.policy or Digest("")
    )


# -- preview -------------------------------------------------------------------------------------------
#
# The owner's view of a pending change set. Pure.
#
# Canonical: every line of the text is preceded by a mark, so that it cannot imitate a generated line.
# Invisible characters are written as their code points. The last line is the digest for an approval.
#
# Not guaranteed: that a displayed text cannot deceive; lookalikes and white space of various widths stay.

MAX_DIFF_LINES: Final = 1_000
"""Lines of a file, on either side, up to which it is compared line by line; hostile text takes a second."""


def preview(waiting: Pending, current: Callable[[str], bytes | None], policy: Digest) -> str:
    """Return a review as text for the owner; it ends with the digest for an approval.

    Args:
        waiting: the review.
        current: returns the current bytes at a logical path; None if the file is missing.
        policy: digest of the policy in force.
    """
    return "\n".join(_preview(waiting, current, policy)) + "\n"


def _preview(waiting: Pending, current: Callable[[str], bytes | None], policy: Digest) -> Iterator[str]:
    run, change_set = waiting.run, waiting.change_set
    yield f"review {waiting.id}: {run.kind} by {visible(run.decided_by)}, {run.at}"
    yield f"requested by {run.task}, trust {run.trust}"
    yield from (f"waits because {visible(reason)}" for reason in waiting.reasons)
    if policy != waiting.policy:
        yield "the policy has changed since the request"
    for change in change_set.changes:
        yield from _file(change, current)
    yield ""
    for claim in change_set.claims:
        now = current(claim.path.text)
        holds = claim.digest == (None if now is None else digest(now))
        was = "missing before" if claim.digest is None else f"unchanged, {claim.digest[:16]}"
        yield f"depends on {visible(claim.path.text)}: {was}{'' if holds else ' (changed since)'}"
    yield f"digest {waiting.digest(policy)}"


def _file(change: FileChange, current: Callable[[str], bytes | None]) -> Iterator[str]:
    before, after = current(change.path.text), change.after
    new = f"{'new' if change.base is None else 'changed'}, trust {change.trust}"
    yield ""
    yield f"{visible(change.path.text)} ({'removed' if after is None else new})"
    if change.base != (None if before is None else digest(before)):
        yield "the file has changed since the request: this review cannot be approved any more"
    yield from _diff(_shown(before), _shown(after))
    if before is not None and after is not None:
        yield "complete text:"
        yield from (f"| {line}" for line in _shown(after))


def changed_lines(before: bytes | None, after: bytes | None) -> Iterator[str]:
    """Yield the difference between two contents of a file, as in a preview; None means no file."""
    return _diff(_shown(before), _shown(after))


def _shown(content: bytes | None) -> list[str]:
    """Return the lines of a file, with invisible characters made visible."""
    if content is None:
        return []
    text = content.decode("utf-8", "backslashreplace")
    lines = [visible(f"{line}\n").removesuffix("\n").replace("\r", "\\u{d}") for line in text.split("\n")]
    return [*lines[:-1], f"{lines[-1]}\\ no line feed"] if lines[-1] else lines[:-1]


def _diff(before: list[str], after: list[str]) -> Iterator[str]:
    """Yield the changed lines: `-` for removed ones, `+` for added ones."""
    if max(len(before), len(after)) > MAX_DIFF_LINES:
        yield from (f"- {line}" for line in before)
        yield from (f"+ {line}" for line in after)
        return
    matcher = difflib.SequenceMatcher(None, before, after)
    for tag, start, end, new_start, new_end in matcher.get_opcodes():
        if tag != "equal":
            yield f"@ line {start + 1}"
            yield from (f"- {line}" for line in before[start:end])
            yield from (f"+ {line}" for line in after[new_start:new_end])
