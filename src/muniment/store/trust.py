"""The trust of an entry: from the ledger's knowledge of its bytes, never from its own claims.

T1 Bytes that this ledger's commits put at a path have the trust that was recorded with them. All other bytes
   are compared with the ledger, sentence by sentence and independent of their format (`passages`). They have
   the lowest trust of their sentences, or the trust of their scope if the ledger knows none of these.
T2 Text that a run writes has the request's trust only if it is the requester's text (`content.provenance`):
   the fact itself, or the fact merged into the file's text (then the lower trust of both). An entry of which
   only the provenance changes retains its trust. Any other text is a model's: at most `agent`, for any
   requester, and at most the lowest trust of everything that the run was shown.
T3 Text of lower trust never replaces, removes or merges text of higher trust without a review:
   `reasons_for_review`.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Final

from muniment.content.admission import INSTRUCTIONS, addressed_to_agent, held_for, name_gate
from muniment.content.entry import EXPIRY_KEY, TYPES, Entry, completed, parse, titled
from muniment.content.expiry import expiry_time
from muniment.content.frontmatter import MAX_FRONT_MATTER_BYTES
from muniment.content.gates import decode, encode
from muniment.content.poison import find_poison
from muniment.content.provenance import Replaces, Whose, whose
from muniment.content.titles import TITLES_KEY, current_titles, mark_of
from muniment.errors import Refused
from muniment.kernel.change import FileChange, digest
from muniment.kernel.decide import NEVER, Policy
from muniment.kernel.names import Digest, RelPath, Scope, Trust
from muniment.kernel.path import CanonicalPath
from muniment.names import __version__
from muniment.store.audit import timestamp
from muniment.store.ledger import Run, is_current, source_of
from muniment.store.passages import Authorship, read_authorship
from muniment.store.rows import Assess, Assessed
from muniment.store.state import State
from muniment.types.keys import RootKey

# -- stamp ---------------------------------------------------------------------------------------------
#
# Provenance and complete front matter for an entry that is about to be committed.
#
# A proposal's own provenance is discarded. On a change, id and creation time are copied from the replaced
# file, if they are valid, so that an entry retains its identity. All of it is only for display: the ledger is
# authoritative.

ULID_RANDOM_BYTES: Final = 10
"""Bytes of randomness in a ULID: 80 bits."""

SEE: Final = "see"
"""Provenance key of an entry: the id, or the digest, of each related entry."""

NO_RELATIONS: Final[Mapping[str, object]] = MappingProxyType({})

_MAX_MILLISECONDS: Final = 2**48 - 1
_CROCKFORD: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_ULID: Final = re.compile(f"[0-7][{_CROCKFORD}]{{25}}")
_TIME_FORMAT: Final = "%Y-%m-%dT%H:%M:%SZ"
_TIME: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z", re.ASCII)


def ulid(milliseconds: int, randomness: bytes) -> str:
    """Return a ULID: 26 characters that sort by time.

    Args:
        milliseconds: since the epoch; 0 to 2**48 - 1.
        randomness: `ULID_RANDOM_BYTES` bytes, new from the system for each call.

    Raises:
        ValueError: an argument is out of range.

    Source: github.com/ulid/spec, "Binary Layout" and "Encoding".
    """
    if not 0 <= milliseconds <= _MAX_MILLISECONDS or len(randomness) != ULID_RANDOM_BYTES:
        raise ValueError(f"a ULID needs 48 bits of time and {ULID_RANDOM_BYTES} bytes of randomness")
    number = int.from_bytes(milliseconds.to_bytes(6, "big") + randomness, "big")
    return "".join(_CROCKFORD[number >> shift & 31] for shift in range(125, -1, -5))


def new_ulid() -> str:
    """Return a ULID for the current time."""
    return ulid(time.time_ns() // 1_000_000, secrets.token_bytes(ULID_RANDOM_BYTES))


def stamp(
    data: bytes,
    base: bytes | None,
    path: CanonicalPath,
    run: Run,
    identity: str | None = None,
    *,
    relations: Mapping[str, object] = NO_RELATIONS,
) -> bytes:
    """Return the bytes to commit for a proposed entry: front matter completed, provenance set.

    Args:
        data: the proposal; only its front matter is extended.
        base: the file that it replaces, or None for a new one.
        path: of the entry; the last source for a name, and for the type if the scope has the name of a type.
        run: that changes it; its trust is that of these bytes.
        identity: of a new entry, see `ulid`; None: generate one.
        relations: to other texts, by `ledger.SUPERSEDES` and `SEE`.

    Raises:
        ToolError: `data` is not UTF-8 text. (An invalid base is treated as one without provenance.)
        TooLarge: the front matter would be too large.
    """
    entry = parse(decode(data))
    titles = current_titles(entry, path.rel)
    now = datetime.fromisoformat(run.at).astimezone(UTC).strftime(_TIME_FORMAT)
    kept = parse(base).muniment if base is not None else None
    known, created = _identity(kept or {})
    provenance = {
        "id": known or identity or new_ulid(),
        "created": created or now,
        "updated": now,
        "task": run.task,
        "trust": str(run.trust),
        "decided_by": run.decided_by,
        "policy": run.policy,
        **relations,
    }
    if mark := mark_of(titles, entry.body):
        provenance[TITLES_KEY] = mark
    scope_type = path.scope if path.scope in TYPES else "reference"
    labels = {"name": titles.name, "description": titles.description, "type": scope_type}
    told = titled(entry, path.rel)
    changed = [key for key in ("name", "description") if getattr(told, key) != labels[key]]
    return encode(completed(entry, labels, provenance, changed))


def entry_id(entry: Entry) -> str:
    """Return the id in an entry's provenance, which proves nothing; empty if missing or invalid."""
    return _identity(entry.muniment or {})[0] or ""


def entry_created(entry: Entry) -> datetime | None:
    """Return the creation time in an entry's provenance, which proves nothing, or None."""
    created = _identity(entry.muniment or {})[1]
    return None if created is None else datetime.fromisoformat(created)


def _identity(muniment: Mapping[str, object]) -> tuple[str | None, str | None]:
    """Return id and creation time of a provenance line; None for missing or invalid ones."""
    identity, created = muniment.get("id"), muniment.get("created")
    return (
        identity if isinstance(identity, str) and _ULID.fullmatch(identity) else None,
        created if isinstance(created, str) and _is_time(created) else None,
    )


def _is_time(text: str) -> bool:
    if _TIME.fullmatch(text) is None:
        return False
    try:
        datetime.strptime(text, _TIME_FORMAT).replace(tzinfo=UTC)
    except ValueError:
        return False
    return True


# -- trust -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ruling:
    """The trust of a draft's new bytes.

    Attributes:
        note: explanation for a user; None if not needed.
        by: the trust of the run that replaces or removes existing text; None: the same.
    """

    trust: Trust
    note: str | None = None
    by: Trust | None = None


TrustRule = Callable[[FileChange, Trust | None], Ruling]
"""Returns the ruling about a draft, from the draft and the trust of the bytes that it replaces, if any."""


Known = Mapping[tuple[Scope, RelPath, Digest], tuple[Trust, str]]
"""Trust and time of committed files, by path and bytes; cached results of `source_of`."""

NONE_KNOWN: Final[Known] = MappingProxyType({})

UNKNOWN_BYTES: Final = "unknown_bytes"
"""The gate that withholds a file of a working copy if the ledger does not confirm its bytes at its path."""


def assessing(state: State, key: RootKey, scope: Scope, policy: Policy, known: Known = NONE_KNOWN) -> Assess:
    """Return a function that assesses files of a root for the catalog (T1) and gates foreign text.

    Args:
        state: has the ledger.
        key: of the root.
        scope: of the root.
        policy: defines the trust of its files, and how long they are retained.
        known: cached results that need no ledger query.
    """
    ours = policy.trust_of(scope)
    retention = policy.retention

    def ends_by(trust: Trust, at: str | None, ends: str | None) -> str | None:
        days = retention.untrusted if trust is Trust.EXTERNAL else retention.default
        kept = None if days == NEVER or at is None else _days_after(at, days)
        return min(filter(None, (ends, kept)), key=expiry_time, default=None)

    def assess(rel: RelPath, found: Digest, data: bytes) -> Assessed:
        put, ends, mixed = known.get((scope, rel, found)), _ends(data), False
        if put is None and not is_current(state, key, rel, found):
            return Assessed(Trust.EXTERNAL, ends, UNKNOWN_BYTES)
        if put is None and (source := source_of(state, key, rel, found)) is not None:
            put = source.trust, source.at
            if source.is_mixed:
                mixed = bool(read_authorship(state, key, rel, data, ours).body_of(Trust.OWNER))
        if put is None:
            by = read_authorship(state, key, rel, data, ours)
            mixed = bool(by.body_of(Trust.OWNER))
            return Assessed(
                by.trust, ends_by(by.trust, by.since, ends), held_for(data, f"{scope}/{rel}", by.trust), mixed
            )
        trust, at = put
        return Assessed(trust, ends_by(trust, at, ends), None, mixed)

    return assess


def trust_at(state: State, key: RootKey, path: CanonicalPath, content: bytes, policy: Policy) -> Trust:
    """Return the trust of bytes that are at a path, or are restored there (T1)."""
    source = source_of(state, key, path.rel, digest(content))
    return authorship_at(state, key, path, content, policy, source).trust


def authorship_at(
    state: State, key: RootKey, path: CanonicalPath, content: bytes, policy: Policy, source: Run | None
) -> Authorship:
    """Return the trust of bytes and of their sentences at a path (T1).

    Args:
        state: has the ledger.
        key: of the root.
        path: of the bytes.
        content: the bytes.
        policy: defines the trust of the scope's files.
        source: of these bytes at this path, from `source_of`.
    """
    if source is not None and not source.is_mixed:
        return Authorship(source.trust)
    found = read_authorship(state, key, path.rel, content, policy.trust_of(path.scope))
    return found if source is None else Authorship(source.trust, found.sentences)


def by_person(state: State, key: RootKey, before: bytes, policy: Policy) -> TrustRule:
    """Return the rule for a user's edit: only sentences that the user wrote have the owner's trust.

    In a file that others wrote by hand, they have at most the trust of its scope.

    Args:
        state: has the ledger.
        key: of the root.
        before: the entry that is edited.
        policy: as for `trust_at`.
    """

    def rule(draft: FileChange, _held: Trust | None) -> Ruling:
        if draft.after is None:
            return Ruling(Trust.OWNER)
        rel = draft.path.rel
        is_known = source_of(state, key, rel, digest(before)) is not None
        ours = Trust.OWNER if is_known else policy.trust_of(draft.path.scope)
        return Ruling(read_authorship(state, key, rel, draft.after, ours).trust, by=Trust.OWNER)

    return rule


def basis(policy: Policy, scope: Scope) -> str:
    """Return the inputs of rows, without vectors, that are not files; the version defines the gates."""
    terms = policy.retention
    return f"{__version__} {EXPIRY_KEY} {policy.trust_of(scope)} {terms.default} {terms.untrusted}"


def constant(trust: Trust) -> TrustRule:
    """Return the rule of a caller that is responsible for all committed text."""
    return lambda _draft, _held: Ruling(trust)


def by_words(
    fact: str, request: Trust, least_shown: Callable[[], Trust | None], replaces: Replaces
) -> TrustRule:
    """Return the rule of a run that stores a fact (T2).

    Args:
        fact: the text to remember.
        request: its trust.
        least_shown: called, if needed, for the lowest trust of the text that the run was shown; None: no
            text.
        replaces: as for `whose`.
    """

    def rule(draft: FileChange, held: Trust | None) -> Ruling:
        if draft.after is None:
            return Ruling(request)
        old = None if draft.before is None or held is None else parse(draft.before)
        match whose(parse(draft.after).body, fact, None if old is None else old.body, replaces):
            case Whose.SAME if held is not None:
                return Ruling(held)
            case Whose.FACT:
                return Ruling(request)
            case Whose.KEPT if held is not None and old is not None and not old.has_end:
                # In an entry with an end date, the fact would expire with it.
                return Ruling(request.capped(held))
        trust = request.capped(Trust.AGENT, *filter(None, [least_shown()]))
        if trust is request:
            return Ruling(trust)
        return Ruling(trust, f"{draft.path.text} is not the text of the request: its trust is {trust}")

    return rule


def reasons_for_review(
    draft: FileChange, held: Trust | None, by: Trust, policy: Policy, *, is_new_text: bool
) -> Iterator[str]:
    """Yield the reasons why a draft must wait for the owner; none if it need not.

    Args:
        draft: with the trust of its new bytes.
        held: the highest trust of the sentences that it replaces or removes; None if it creates.
        by: the trust of the run that replaces or removes; the owner's handwritten text is judged as the
            owner's.
        policy: defines which scopes are reviewed, and how agent-directed and external text is handled.
        is_new_text: False if the text existed before, and is only restored or shortened.

    Raises:
        Refused: the policy rejects text of trust `external`.
    """
    path = "a new entry" if draft.base is None else draft.path.text  # A model chose this name.
    if policy.commit_of(draft.path.scope) == "review":
        yield f"every change of {draft.path.scope} is reviewed"
    if held is not None and not by.satisfies(held):
        done = "remove" if draft.after is None else "replace"
        yield f"text of trust {by} would {done} {path}, which has trust {held}"
    if draft.after is not None and draft.trust is not None and is_new_text:
        trust = Trust.OWNER if by is Trust.OWNER else draft.trust
        yield from _reasons_in_text(path, draft.after, trust, policy)
        is_new_name = draft.base is None and policy.content.instructions == "quarantine"
        if is_new_name and name_gate(draft.path.text, draft.trust) == INSTRUCTIONS:
            yield "the name of a new entry addresses an agent"


def _reasons_in_text(path: str, text: bytes, trust: Trust, policy: Policy) -> Iterator[str]:
    taken = policy.provenance.untrusted_sources if trust is Trust.EXTERNAL else "allow"
    if taken == "reject":
        raise Refused(
            "the policy of this memory rejects external text", rule="untrusted_sources", layer=policy.name
        )
    if taken == "quarantine":
        yield f"{path} is external text"
    for reason in _risks(decode(text), trust, policy):
        yield f"{path} {reason}"


def is_risky(text: str, trust: Trust, policy: Policy) -> bool:
    """Return whether a text requires a review, independent of the text that it replaces."""
    return next(_risks(text, trust, policy), None) is not None


def _risks(text: str, trust: Trust, policy: Policy) -> Iterator[str]:
    """Yield the problems of a text, each as a predicate for its path."""
    if policy.content.instructions == "quarantine" and (rule := addressed_to_agent(text, trust)) is not None:
        yield f"addresses an agent ({rule})"
    if policy.content.poison == "quarantine" and trust in {Trust.AGENT, Trust.EXTERNAL}:
        found = find_poison(text)
        if found is not None:
            yield f"{found.reason}, which agents would treat as a fact ({found.rules[0]})"


def _ends(data: bytes) -> str | None:
    """Return the expiry date of an entry; None if it has none."""
    head = data[:MAX_FRONT_MATTER_BYTES]
    return parse(head).expires if EXPIRY_KEY.encode() in head else None


def _days_after(at: str, days: int) -> str:
    return timestamp(datetime.fromisoformat(at) + timedelta(days=days))
