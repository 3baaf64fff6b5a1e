"""Change sets that wait for the owner: queue, preview, reject. `operations/review.py` approves them.

A pending change set is stored in the ledger with its bytes and claims, like a commit that was never begun. A
claim is a digest that another file must still have.

- V1. A review is bound to the directories of its request, not to the names of their scopes.
- V2. An approval contains a digest of the final text, the claims, the roots, the trusts and the policy in
  force now. So exactly the displayed change is committed, or nothing.
- V3. A review is decided once. An approval is recorded as the commit of the task `build_approval_task`, which
  commits at most once. A rejection runs under the locks of the review's roots, so it cannot overlap an
  approval.
- V4. A task has at most one pending review, even if a repeated run proposes something else. Number and bytes
  of pending reviews are limited: for the token of one client, for all runs of low trust, and in total. Runs
  of low trust never use up the owner's share. A new review that exceeds a limit is rejected; pending reviews
  are never dropped.
"""

from __future__ import annotations

import difflib
import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from muniment.content.gates import escape_invisible
from muniment.errors import BadName, InvalidScope, NotFound, QuotaExceeded, ReviewClosed, printable
from muniment.kernel.apply import lock_roots
from muniment.kernel.binding import BoundRoot
from muniment.kernel.cancel import Deadline
from muniment.kernel.change import ChangeSet, Claim, FileChange, digest
from muniment.kernel.names import Digest, Scope, Trust
from muniment.store import audit
from muniment.store.ledger import ChangeRow, CommitRow, Run, begin, find_commit, get_root_key, read_commits
from muniment.store.state import State
from muniment.store.table import Table
from muniment.types.keys import RootKey

# -- review ------------------------------------------------------------------------------------------

ID_CHARS: Final = 6
"""Number of characters of a review's id after the `r`. People type the id. A used id is drawn again."""

MAX_OF_TOKEN: Final = 20
"""Maximum pending reviews of one token: as many as a user can check in one sitting."""

MAX_OF_AGENTS: Final = 150
"""Maximum pending reviews of all runs of trust `agent` or `external`; the owner can use the rest."""

MAX_WAITING: Final = 200
"""Maximum pending reviews in total."""

MAX_BYTES_OF_TOKEN: Final = 4 << 20
MAX_BYTES_OF_AGENTS: Final = 24 << 20
MAX_WAITING_BYTES: Final = 32 << 20
"""Maximum bytes of new text in pending reviews: of one token, of all runs of low trust, and in total."""

_BELOW_WORKSPACE: Final = frozenset({Trust.AGENT, Trust.EXTERNAL})
_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_WAITING: Final = (
    "state = 'pending' AND NOT EXISTS "
    "(SELECT 1 FROM change_set WHERE task = 'approve:' || review.id AND done IS NOT NULL)"
)

MIN_ID_CHARS: Final = 4
"""Minimum characters of the id of a review that a person may type."""

_CHANGE_SET_ID: Final = "(SELECT change_set.id FROM change_set WHERE change_set.review = review.id)"
"""SQL expression that orders reviews with the same time."""


@dataclass(frozen=True, slots=True)
class PendingChange:
    """A change set that waits for the owner.

    Attributes:
        id: id of the review; short, because people type it.
        run: the run that proposed the change.
        reasons: why the change waits, each in one line.
        change_set: the changes, with final bytes and their trust.
        roots: keys of the roots of all paths, by scope.
        policy: digest of the policy at the time of the request.
    """

    id: str
    run: Run
    reasons: tuple[str, ...]
    change_set: ChangeSet
    roots: Mapping[Scope, RootKey]
    policy: Digest

    def compute_digest(self, policy: Digest) -> Digest:
        """Return the digest of everything that an approval depends on: changes, claims, roots and `policy`.

        Args:
            policy: digest of the policy in force.
        """
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


def build_approval_task(review_id: str) -> str:
    """Return the id of the task that approves a review. There is only one, so a review commits at most once.

    A caller cannot use this id for a task, because task ids of callers contain no colon.
    """
    return f"approve:{review_id}"


def queue_for_review(
    state: State,
    run: Run,
    change_set: ChangeSet,
    reasons: tuple[str, ...],
    *,
    policy: Digest,
    roots: Mapping[Scope, BoundRoot],
) -> str:
    """Store a change set for the owner; return the id of its review, or of an equal pending review.

    Args:
        state: has the ledger.
        run: the run that proposed the change.
        change_set: changes with final bytes and their trusts; an approval never raises these trusts.
        reasons: why the change must wait.
        policy: digest of the policy in force.
        roots: the bound roots. The review is bound to those that the change set uses.

    Raises:
        QuotaExceeded: too many reviews are pending, or their texts are too large.
        ManagedMemoryUnavailable: the ledger cannot be written.
    """
    scopes = {path.scope for path in (*change_set.paths, *(each.path for each in change_set.claims))}
    keys = {scope: get_root_key(state, root) for scope, root in roots.items() if scope in scopes}
    pending_change = PendingChange("", run, reasons, change_set, keys, policy)
    with state.ledger.transaction():
        bound_to = pending_change.compute_digest(policy)
        same_request = "AND (digest = ? OR (task = ? AND kind = ?))"
        for each in read_pending(state, same_request, (bound_to, run.task, run.kind)):
            if bound_to == each.compute_digest(each.policy) or _is_same_request(each, pending_change):
                return each.id
        task_rows = state.ledger.rows("SELECT token FROM task WHERE id = ?", (run.task,))
        token = task_rows[0][0] if task_rows else None  # Not a task of a lane.
        _check_limits(state, pending_change, token)
        return _insert_review(state, pending_change, token)


def _is_same_request(one: PendingChange, other: PendingChange) -> bool:
    """Return whether two reviews of one task have the same request and roots; their changes may differ."""
    return (one.roots, one.run.fact) == (other.roots, other.run.fact)


def _check_limits(state: State, pending_change: PendingChange, token: str | None) -> None:
    """Check that one more review does not exceed a limit on pending reviews.

    Args:
        state: has the ledger.
        pending_change: the new review.
        token: name of the token that sent the request; None if it is unknown.

    Raises:
        QuotaExceeded: a limit would be exceeded.
    """
    size_of = "(SELECT sum(length(change.after)) FROM change WHERE change.change_set = change_set.id)"
    waiting: Sequence[tuple[str | None, str, int]] = state.ledger.rows(
        f"SELECT review.token, change_set.trust, coalesce({size_of}, 0) "  # noqa: S608  from here and above
        f"FROM review JOIN change_set ON change_set.review = review.id WHERE {_WAITING}"
    )
    size = sum(len(each.after or b"") for each in pending_change.change_set.changes)
    of_agents = [int(each) for _, trust, each in waiting if trust in _BELOW_WORKSPACE]
    of_token = [int(each) for by, _, each in waiting if by == token]
    limits = [("in all", [int(each) for *_, each in waiting], MAX_WAITING, MAX_WAITING_BYTES)]
    if pending_change.run.trust in _BELOW_WORKSPACE:
        limits.append(("of agents", of_agents, MAX_OF_AGENTS, MAX_BYTES_OF_AGENTS))
    if token is not None:
        limits.append(("of this client", of_token, MAX_OF_TOKEN, MAX_BYTES_OF_TOKEN))
    for limit_name, sizes, max_count, max_bytes in limits:
        if len(sizes) >= max_count or sum(sizes) + size > max_bytes:
            raise QuotaExceeded(
                f"too many changes wait for review: {len(sizes)} {limit_name} with {sum(sizes)} bytes; "
                f"this change has {size} bytes; the limits are {max_count} and {max_bytes} bytes; "
                "the owner must approve or reject some first, see: muniment review list"
            )


def read_pending(
    state: State, condition: str = "", values: Sequence[object] = ()
) -> tuple[PendingChange, ...]:
    """Return the pending reviews of all roots, the oldest first.

    Args:
        state: has the ledger.
        condition: SQL that restricts the reviews; begins with AND.
        values: parameters of the condition.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be used.
    """
    with state.ledger.transaction():  # As in `load_pending`.
        rows = _REVIEWS.read(
            state.ledger, f"WHERE {_WAITING} {condition} ORDER BY at, {_CHANGE_SET_ID}", values
        )
        return tuple(_load_row(state, each) for each in rows)


def find_pending(state: State, task: str) -> PendingChange | None:
    """Return the oldest pending review of a task, or None."""
    return next(iter(read_pending(state, "AND task = ?", (task,))), None)


def resolve_review(state: State, text: str) -> str:
    """Return the id of the pending review that begins with a text; an unknown text is returned unchanged.

    Args:
        state: has the ledger.
        text: an id, or at least its first `MIN_ID_CHARS` characters.

    Raises:
        BadName: several ids begin with the text.
    """
    if len(text) < MIN_ID_CHARS or not text.isalnum() or not text.isascii():
        return text
    rows = state.ledger.rows(
        "SELECT id FROM review WHERE state = 'pending' AND id >= ? AND id < ? ORDER BY id", (text, f"{text}~")
    )
    found = [review for (review,) in rows]
    if len(found) > 1:
        raise BadName(f"ambiguous id {text}: use one of {', '.join(found)}")
    return found[0] if found else text


def load_pending(state: State, review_id: str) -> PendingChange:
    """Return the pending review with this id.

    Raises:
        NotFound: the review does not exist.
        ReviewClosed: the review was already approved or rejected.
        ManagedMemoryUnavailable: the ledger cannot be used.
    """
    with state.ledger.transaction():  # Another process cannot decide the review between these reads.
        found = _REVIEWS.read_first(state.ledger, "WHERE id = ?", (review_id,))
        if found is None:
            raise NotFound(f"review {printable(review_id)!r} not found; see: muniment review list")
        is_approved = find_commit(state, build_approval_task(review_id)) is not None
        if is_approved or found.state != "pending":
            raise ReviewClosed(review_id, "approved" if is_approved else found.state)
        return _load_row(state, found)


def check_roots(state: State, pending_change: PendingChange, roots: Mapping[Scope, BoundRoot]) -> None:
    """Check that each scope of a review is bound to the same directory as in the request.

    Raises:
        InvalidScope: a scope is bound to another directory, or not bound.
    """
    for scope, key in pending_change.roots.items():
        if scope not in roots or get_root_key(state, roots[scope]) != key:
            raise InvalidScope(
                f"review {pending_change.id} belongs to another directory for scope {scope!r}; decide it in "
                "the workspace of its request, or with the same --root"
            )


def reject_pending(
    state: State, review_id: str, roots: Mapping[Scope, BoundRoot], deadline: Deadline, at: str
) -> PendingChange:
    """Reject a pending review, so that its change set is never committed; return the review.

    Args:
        state: has the ledger.
        review_id: id of the review.
        roots: the bound roots.
        deadline: limits the wait for the locks of the roots.
        at: time of the rejection, as `audit.timestamp` returns it.

    Raises:
        NotFound, ReviewClosed: as `load_pending`.
        InvalidScope: as `check_roots`.
        DeadlineExceeded, Cancelled: another process held the lock of a root.
        ManagedMemoryUnavailable: a root or the ledger cannot be used.
    """
    pending_change = load_pending(state, review_id)
    check_roots(state, pending_change, roots)
    state.require_writable()
    # Under the locks, no approval can be between its last read of this row and its commit.
    with lock_roots([roots[scope] for scope in pending_change.roots], deadline), state.ledger.transaction():
        load_pending(state, review_id)
        record_decision(state, review_id, "rejected", at)
    return pending_change


def record_decision(state: State, review_id: str, decision: str, at: str, outcome: str | None = None) -> None:
    """Record the decision about a review, and delete its pending change set.

    Args:
        state: has the ledger.
        review_id: id of the review.
        decision: `approved` or `rejected`.
        at: time of the decision.
        outcome: for an approval: id of the task that committed the changes.
    """
    with state.ledger.transaction() as connection:
        decided = "UPDATE review SET state = ?, outcome = ? WHERE id = ?"
        connection.execute(decided, (decision, outcome, review_id))
        connection.execute("DELETE FROM change_set WHERE review = ?", (review_id,))
        audit.append(state, at, decision, outcome, {"review": review_id})


def _insert_review(state: State, pending_change: PendingChange, token: str | None) -> str:
    """Store a review under a new id, with an audit record; return the id.

    Args:
        state: has the ledger.
        pending_change: the review, without id.
        token: name of the token that sent the request; None if it is unknown.
    """
    run, keys, change_set = pending_change.run, pending_change.roots, pending_change.change_set
    bound_to = pending_change.compute_digest(pending_change.policy)
    new = _new_id(lambda each: not state.ledger.rows("SELECT 1 FROM review WHERE id = ?", (each,)))
    with state.ledger.transaction() as connection:
        of_it = (
            new,
            run.task,
            run.kind,
            "pending",
            run.at,
            pending_change.reasons,
            pending_change.policy,
            token,
            bound_to,
        )
        _REVIEWS.insert(connection, [_Review(*of_it)])
        rows = tuple(
            ChangeRow(0, number, keys[each.path.scope], replace(each, before=None), each.digest)
            for number, each in enumerate(change_set.changes)
        )
        # Under a separate task id: the task itself may still commit, if it no longer has to wait.
        review_run = replace(run, task=f"review:{new}")
        number = begin(state, CommitRow(0, review_run, "", review=new, changes=rows))
        claims = (
            _ClaimRow(number, index, keys[each.path.scope], each)
            for index, each in enumerate(change_set.claims)
        )
        _CLAIMS.insert(connection, claims)
        scopes = tuple(keys)
        created = [
            audit.describe_path(each.path.text, state, scopes)
            for each in change_set.changes
            if each.base is None
        ]
        paths = [*created, *(each.path.text for each in change_set.changes if each.base is not None)]
        body = {"review": new, "digest": bound_to, "reasons": list(pending_change.reasons), "paths": paths}
        audit.append(state, run.at, "review", run.task, body)
    return new


def _new_id(is_free: Callable[[str], bool]) -> str:
    while True:
        each = "r" + "".join(secrets.choice(_ALPHABET) for _ in range(ID_CHARS))
        if is_free(each):
            return each


def _load_row(state: State, row: _Review) -> PendingChange:
    (commit_row,) = read_commits(state, "review = ?", (row.id,))
    claims = _CLAIMS.read(state.ledger, "WHERE change_set = ? ORDER BY position", (commit_row.id,))
    change_set = ChangeSet(
        tuple(each.change for each in commit_row.changes), tuple(each.claim for each in claims)
    )
    keys = {each.change.path.scope: each.root for each in commit_row.changes}
    keys |= {each.claim.path.scope: each.root for each in claims}
    return PendingChange(
        row.id,
        replace(commit_row.run, task=row.task),
        row.reasons,
        change_set,
        keys,
        row.policy or Digest(""),
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
"""Maximum lines of a file, on either side, for a line-by-line comparison; hostile text takes a second."""


def format_preview(
    pending_change: PendingChange, current: Callable[[str], bytes | None], policy: Digest
) -> str:
    """Return a review as text for the owner; the last line is the digest that an approval needs.

    Args:
        pending_change: the review.
        current: returns the current bytes at a logical path; None if the file is missing.
        policy: digest of the policy in force.
    """
    return "\n".join(_iterate_preview(pending_change, current, policy)) + "\n"


def _iterate_preview(
    pending_change: PendingChange, current: Callable[[str], bytes | None], policy: Digest
) -> Iterator[str]:
    run, change_set = pending_change.run, pending_change.change_set
    yield f"review {pending_change.id}: {run.kind} by {escape_invisible(run.decided_by)}, {run.at}"
    yield f"requested by {run.task}, trust {run.trust}"
    yield from (f"waits because {escape_invisible(reason)}" for reason in pending_change.reasons)
    if policy != pending_change.policy:
        yield "the policy has changed since the request"
    for change in change_set.changes:
        yield from _format_file(change, current)
    yield ""
    for claim in change_set.claims:
        now = current(claim.path.text)
        holds = claim.digest == (None if now is None else digest(now))
        before = "no such file" if claim.digest is None else f"digest {claim.digest[:16]}"
        yield f"depends on {escape_invisible(claim.path.text)}: {before}{'' if holds else ' (changed since)'}"
    yield f"digest {pending_change.compute_digest(policy)}"


def _format_file(change: FileChange, current: Callable[[str], bytes | None]) -> Iterator[str]:
    before, after = current(change.path.text), change.after
    new = f"{'new' if change.base is None else 'changed'}, trust {change.trust}"
    yield ""
    yield f"{escape_invisible(change.path.text)} ({'removed' if after is None else new})"
    if change.base != (None if before is None else digest(before)):
        yield "the file has changed since the request: this review cannot be approved any more; reject it"
    yield from _format_diff(_split_visible_lines(before), _split_visible_lines(after))
    if before is not None and after is not None:
        yield "complete text:"
        yield from (f"| {line}" for line in _split_visible_lines(after))


def format_difference(before: bytes | None, after: bytes | None) -> Iterator[str]:
    """Yield the difference between two versions of a file, formatted as in a preview.

    Args:
        before: content of the old version; None: the file is missing.
        after: content of the new version; None: the file is missing.
    """
    return _format_diff(_split_visible_lines(before), _split_visible_lines(after))


def _split_visible_lines(content: bytes | None) -> list[str]:
    """Return the lines of a file, with invisible characters as visible code points; None has no lines."""
    if content is None:
        return []
    text = content.decode("utf-8", "backslashreplace")
    lines = [
        escape_invisible(f"{line}\n").removesuffix("\n").replace("\r", "\\u{d}") for line in text.split("\n")
    ]
    return [*lines[:-1], f"{lines[-1]}\\ no line feed"] if lines[-1] else lines[:-1]


def _format_diff(before: list[str], after: list[str]) -> Iterator[str]:
    """Yield the changed lines of a file: removed lines begin with `-`, added lines with `+`."""
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
