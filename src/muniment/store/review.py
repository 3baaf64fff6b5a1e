"""Change-sets that wait for the owner: held, shown, rejected. `jobs/review.py` approves.

V1 A review is bound to the roots that it was asked for, not to the names of their scopes.
V2 An approval names a digest of the final text, of the claims, the roots and the trusts, and of the policy as
   it is now: what was shown is what is committed, or nothing.
V3 A review is decided once. That it was approved is read from the ledger's commit of `approval_task`, which
   commits at most once; a rejection is made under the locks of its roots, and so never beside an approval.
V4 A task waits once, whatever it proposes when it is carried out again; at most `MAX_OF_TOKEN` wait of one
   client's token, and `MAX_WAITING` in all.
"""

from __future__ import annotations

import base64
import difflib
import hashlib
import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from muniment.content.gates import visible
from muniment.errors import InvalidScope, NotFound, QuotaExceeded, ReviewClosed, printable
from muniment.kernel.binding import BoundRoot
from muniment.kernel.cancel import Patience
from muniment.kernel.change import ChangeSet, Claim, FileChange, digest, joint
from muniment.kernel.land import lock_roots
from muniment.kernel.names import Digest, Scope, Trust
from muniment.kernel.path import CanonicalPath, canonicalise
from muniment.store import audit
from muniment.store.ledger import Origin, RootKey, of_task, root_key
from muniment.store.state import State
from muniment.store.table import Table

# -- review ------------------------------------------------------------------------------------------

ID_CHARS: Final = 6
"""Characters of a review's id behind its `r`, for people to type: 30 bits, and new where one is taken."""

MAX_OF_TOKEN: Final = 20
"""Reviews that wait of the tasks of one token: no more than a person looks through at one sitting."""

MAX_WAITING: Final = 200
"""Reviews that wait in all, whoever asked."""

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_WAITING: Final = (
    "state = 'pending' AND NOT EXISTS "
    "(SELECT 1 FROM change_set WHERE task = 'approve:' || review.id AND done IS NOT NULL)"
)


@dataclass(frozen=True, slots=True)
class Pending:
    """A change-set that waits.

    Attributes:
        id: for people to type.
        origin: who asked, and why.
        at: since when it waits.
        reasons: why it waits, each in one line.
        change_set: with final bytes.
        trusts: of what each path would hold; None where the file goes.
        roots: by scope, of everything that it names.
        policy: digest of the policy under which it was asked for.
    """

    id: str
    origin: Origin
    at: str
    reasons: tuple[str, ...]
    change_set: ChangeSet
    trusts: Mapping[str, Trust | None]
    roots: Mapping[Scope, RootKey]
    policy: Digest

    def digest(self, policy: Digest) -> Digest:
        """What an approval under a policy is bound to (V2)."""
        return _digest(_proposal(self), policy)


class _Review(NamedTuple):
    id: str
    task: str
    kind: str
    at: str
    reasons: str
    proposal: str | None
    digest: Digest


_REVIEWS: Final = Table("review", _Review)


def approval_task(review_id: str) -> str:
    """The task under which a review is approved: one, so that it commits at most once.

    No caller can have named a task of his own so, since those hold no colon.
    """
    return f"approve:{review_id}"


def hold(
    state: State,
    origin: Origin,
    parts: Sequence[ChangeSet],
    trusts: Mapping[str, Trust | None],
    reasons: tuple[str, ...],
    *,
    policy: Digest,
    roots: Mapping[Scope, BoundRoot],
) -> str:
    """Keep a change-set for the owner; the id of its review, or of the one that already waits for it (V4).

    Args:
        state: where it is kept.
        origin: who asks.
        parts: with final bytes; they are decided about as one.
        trusts: of what each path would hold; an approval never raises them.
        reasons: why it has to wait.
        policy: digest of the policy in force.
        roots: the bound roots; those that the parts name are kept.

    Raises:
        QuotaExceeded: too many wait (V4).
        ManagedMemoryUnavailable: the ledger cannot be written.
    """
    whole = joint(parts)
    named = {path.scope for path in _paths(whole)}
    keys = {scope: root_key(state, root) for scope, root in roots.items() if scope in named}
    waiting = Pending("", origin, origin.at, reasons, whole, trusts, keys, policy)
    with state.ledger.transaction():
        same = state.ledger.rows(
            f"SELECT id FROM review WHERE {_WAITING} AND (digest = ? OR (task = ? AND kind = ? "  # noqa: S608  a condition from above
            "AND json_extract(proposal, '$.roots') = ? AND json_extract(proposal, '$.origin[6]') IS ?))",
            (waiting.digest(policy), origin.task, origin.kind, _compact(keys), origin.fact),
        )
        if same:
            return str(same[0][0])
        by = _token_of(state, origin.task)
        _check_caps(state, by)
        return _add(state, waiting, by)


def _token_of(state: State, task: str) -> str | None:
    """The name of the token that a task of a lane was asked for with; None: it is of no lane."""
    rows = state.ledger.rows("SELECT token FROM task WHERE id = ?", (task,))
    return str(rows[0][0]) if rows else None


def _check_caps(state: State, by: str | None) -> None:
    ((in_all, of_token),) = state.ledger.rows(
        "SELECT count(*), coalesce(sum(json_extract(proposal, '$.by') IS ?), 0) "  # noqa: S608  from above
        f"FROM review WHERE {_WAITING}",
        (by,),
    )
    if in_all >= MAX_WAITING or (by is not None and of_token >= MAX_OF_TOKEN):
        raise QuotaExceeded("too many changes wait for review; have the owner decide about some first")


def pending(state: State) -> tuple[Pending, ...]:
    """Everything that waits, the oldest first, whatever roots it is for."""
    rows = state.ledger.rows(
        f"SELECT id, at, reasons, proposal FROM review WHERE {_WAITING} ORDER BY at, rowid"  # noqa: S608  from above
    )
    return tuple(_restored(*row) for row in rows)


def waiting_of(state: State, task: str) -> Pending | None:
    """What waits of a task, the oldest first."""
    rows = state.ledger.rows(
        f"SELECT id, at, reasons, proposal FROM review WHERE {_WAITING} AND task = ? ORDER BY rowid LIMIT 1",  # noqa: S608  from above
        (task,),
    )
    return _restored(*rows[0]) if rows else None


def load(state: State, review_id: str) -> Pending:
    """One that waits.

    Raises:
        NotFound: there is no such review.
        ReviewClosed: it was decided already.
    """
    rows = state.ledger.rows("SELECT id, at, reasons, proposal, state FROM review WHERE id = ?", (review_id,))
    if not rows:
        raise NotFound(f"there is no review {printable(review_id)!r}; see: muniment review list")
    ((number, at, reasons, proposal, decision),) = rows
    if of_task(state, approval_task(review_id)) is not None:
        decision = "approved"
    if decision != "pending":
        raise ReviewClosed(review_id, decision)
    return _restored(number, at, reasons, proposal)


def check_roots(state: State, waiting: Pending, roots: Mapping[Scope, BoundRoot]) -> None:
    """Refuse to decide about a review where its scopes are other directories (V1).

    Raises:
        InvalidScope: they are, or are not bound at all.
    """
    for scope, key in waiting.roots.items():
        if scope not in roots or root_key(state, roots[scope]) != key:
            raise InvalidScope(
                f"review {waiting.id} is about another directory for scope {scope!r}; decide about it in the "
                "workspace, or with the --root, with which it was asked for"
            )


def turn_down(
    state: State, review_id: str, roots: Mapping[Scope, BoundRoot], patience: Patience, at: str
) -> Pending:
    """Decide that a change-set is never committed; what it was.

    Raises:
        NotFound, ReviewClosed: as `load`.
        InvalidScope: as `check_roots`.
        DeadlineExceeded, Cancelled: somebody held the lock of a root.
        ManagedMemoryUnavailable: a root or the ledger cannot be used.
    """
    waiting = load(state, review_id)
    check_roots(state, waiting, roots)
    # Under the locks no approval is between its last look at this row and its commit.
    with lock_roots([roots[scope] for scope in waiting.roots], patience), state.ledger.transaction():
        load(state, review_id)
        close(state, review_id, "rejected", at)
    return waiting


def close(state: State, review_id: str, decision: str, at: str, outcome: str | None = None) -> None:
    """Note a decision, with its record; of an approval also the task, as which it was committed."""
    with state.ledger.transaction() as connection:
        connection.execute(
            "UPDATE review SET state = ?, outcome = ?, proposal = NULL WHERE id = ?",
            (decision, outcome, review_id),
        )
        audit.append(state, at, decision, outcome, {"review": review_id})


def _add(state: State, waiting: Pending, by: str | None) -> str:
    """Keep a review under a new id, with its record."""
    origin, bound_to = waiting.origin, waiting.digest(waiting.policy)
    new = _new_id(lambda each: not state.ledger.rows("SELECT 1 FROM review WHERE id = ?", (each,)))
    reasons = json.dumps(waiting.reasons, ensure_ascii=False)
    proposal = json.dumps({**_kept(waiting), "by": by}, ensure_ascii=False)
    with state.ledger.transaction() as connection:
        row = _Review(new, origin.task, origin.kind, waiting.at, reasons, proposal, bound_to)
        _REVIEWS.insert(connection, [row])
        whole, scopes = waiting.change_set, tuple(waiting.roots)
        created = [
            audit.described(each.path.text, state, scopes) for each in whole.changes if each.base is None
        ]
        paths = [*created, *(each.path.text for each in whole.changes if each.base is not None)]
        body = {"review": new, "digest": bound_to, "reasons": list(waiting.reasons), "paths": paths}
        audit.append(state, waiting.at, "review", origin.task, body)
    return new


def _new_id(is_free: Callable[[str], bool]) -> str:
    while True:
        each = "r" + "".join(secrets.choice(_ALPHABET) for _ in range(ID_CHARS))
        if is_free(each):
            return each


def _paths(change_set: ChangeSet) -> Iterator[CanonicalPath]:
    yield from change_set.paths
    yield from (claim.path for claim in change_set.claims)


def _proposal(waiting: Pending) -> dict[str, Any]:
    """All that an approval is bound to, as JSON; the text by its digests."""
    change_set = waiting.change_set
    return {
        "changes": [[item.path.text, item.base, item.digest] for item in _written(change_set)],
        "removals": [[item.path.text, item.base] for item in change_set.changes if item.after is None],
        "claims": [[item.path.text, item.digest] for item in change_set.claims],
        "trusts": dict(waiting.trusts),
        "roots": dict(waiting.roots),
    }


def _written(change_set: ChangeSet) -> list[FileChange]:
    return [item for item in change_set.changes if item.after is not None]


def _compact(value: Mapping[Scope, RootKey]) -> str:
    """JSON as SQLite writes it."""
    return json.dumps(dict(value), ensure_ascii=False, separators=(",", ":"))


def _digest(proposal: Mapping[str, Any], policy: Digest) -> Digest:
    canonical = json.dumps({**proposal, "policy": policy}, sort_keys=True, separators=(",", ":"))
    return Digest(hashlib.sha256(canonical.encode()).hexdigest())


def _kept(waiting: Pending) -> dict[str, Any]:
    """A review as its row keeps it: with the text itself."""
    origin = waiting.origin
    texts = [base64.b64encode(item.after or b"").decode() for item in _written(waiting.change_set)]
    asked = [origin.task, origin.kind, origin.at, origin.trust, origin.decided_by, origin.policy, origin.fact]
    return {
        **_proposal(waiting),
        "texts": texts,
        "origin": [*asked, origin.undoes],
        "policy": waiting.policy,
    }


def _restored(review_id: str, at: str, reasons: str, proposal: str) -> Pending:
    kept = json.loads(proposal)
    task, kind, asked_at, trust, by, policy, fact, undoes = kept["origin"]
    scopes = kept["roots"]
    written = [
        FileChange(canonicalise(path, scopes), base, base64.b64decode(text))
        for (path, base, _), text in zip(kept["changes"], kept["texts"], strict=True)
    ]
    going = [FileChange(canonicalise(path, scopes), base, None) for path, base in kept["removals"]]
    claims = [Claim(canonicalise(path, scopes), seen) for path, seen in kept["claims"]]
    change_set = ChangeSet((*written, *going), tuple(claims))
    return Pending(
        review_id,
        Origin(task, kind, asked_at, Trust(trust), by, policy, fact, undoes),
        at,
        tuple(json.loads(reasons)),
        change_set,
        {path: None if each is None else Trust(each) for path, each in kept["trusts"].items()},
        kept["roots"],
        kept["policy"],
    )


# -- preview -----------------------------------------------------------------------------------------
#
# A pending change-set as its owner sees it. Pure.
#
# Canonical: every line of the text stands behind a mark of its own, so that it forges none of ours;
# whatever does not show by itself is written as its code point; the last line is the digest that an
# approval names.
#
# Does not hold: that a text shown so cannot deceive; lookalikes and white space of many widths stay.

MAX_DIFF_LINES: Final = 1_000
"""Lines of a file, on either side, up to which it is compared line by line; hostile text takes a second."""


def preview(waiting: Pending, current: Callable[[str], bytes | None], policy: Digest) -> str:
    """A review as the owner decides about it; ends with the digest that an approval names.

    Args:
        waiting: what waits.
        current: the bytes that a logical path holds now; None where no file is.
        policy: digest of the policy in force.
    """
    return "\n".join(_preview(waiting, current, policy)) + "\n"


def _preview(waiting: Pending, current: Callable[[str], bytes | None], policy: Digest) -> Iterator[str]:
    origin, change_set = waiting.origin, waiting.change_set
    yield f"review {waiting.id}: {origin.kind} by {visible(origin.decided_by)}, {waiting.at}"
    yield f"asked by {origin.task}, of trust {origin.trust}"
    yield from (f"waits because {visible(reason)}" for reason in waiting.reasons)
    if policy != waiting.policy:
        yield "the policy has changed since it was asked for"
    for change in change_set.changes:
        yield from _file(change.path.text, change.base, change.after, waiting, current)
    yield ""
    for claim in change_set.claims:
        now = current(claim.path.text)
        holds = claim.digest == (None if now is None else digest(now))
        was = "it was not there" if claim.digest is None else f"as it was, {claim.digest[:16]}"
        yield f"rests on {visible(claim.path.text)}: {was}{'' if holds else ' (changed since)'}"
    yield f"digest {waiting.digest(policy)}"


def _file(
    path: str,
    base: Digest | None,
    after: bytes | None,
    waiting: Pending,
    current: Callable[[str], bytes | None],
) -> Iterator[str]:
    before = current(path)
    trust = waiting.trusts.get(path)
    done = "removed" if after is None else f"{'new' if base is None else 'changed'}, trust {trust}"
    yield ""
    yield f"{visible(path)} ({done})"
    if base != (None if before is None else digest(before)):
        yield "it was changed since: this cannot be approved any more"
    yield from _diff(_shown(before), _shown(after))
    if before is not None and after is not None:
        yield "whole text:"
        yield from (f"| {line}" for line in _shown(after))


def _shown(content: bytes | None) -> list[str]:
    """The lines of a file, each with everything that does not show made visible."""
    if content is None:
        return []
    text = content.decode("utf-8", "backslashreplace")
    lines = [visible(f"{line}\n").removesuffix("\n").replace("\r", "\\u{d}") for line in text.split("\n")]
    return [*lines[:-1], f"{lines[-1]}\\ no line feed"] if lines[-1] else lines[:-1]


def _diff(before: list[str], after: list[str]) -> Iterator[str]:
    """What changes, line by line: `-` goes, `+` comes; unchanged lines are left out."""
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
