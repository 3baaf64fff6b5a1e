"""The trust of an entry: derived from the ledger's knowledge of its bytes, never from its own front matter.

- T1. If a commit of this ledger put bytes at a path, they have the trust that was recorded with them. All
  other bytes are compared with the ledger, sentence by sentence and independent of their format
  (`passages.py`). They have the lowest trust of their sentences; if the ledger knows none of these, they have
  the trust of their scope.
- T2. Text that a run writes has the trust of the request only if it is the requester's text
  (`content.provenance`): the fact itself, or the fact merged into the text of the file. In the second case
  the lower trust of both counts. If only the provenance of an entry changes, the entry retains its trust. Any
  other text was written by a model. For any requester, it has at most the trust `agent`, and at most the
  lowest trust of all text that the run was shown.
- T3. Text of lower trust never replaces, removes or merges text of higher trust without a review
  (`find_review_reasons`).
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from muniment.content.entry import (
    TYPES,
    Entry,
    Titles,
    complete_front_matter,
    parse,
    read_titles,
)
from muniment.content.expiry import compute_expiry_time
from muniment.content.frontmatter import EXPIRY_KEY, MAX_FRONT_MATTER_BYTES
from muniment.content.gates import decode, encode
from muniment.errors import Refused
from muniment.kernel.change import FileChange, digest
from muniment.kernel.decide import NEVER, Policy
from muniment.kernel.names import Digest, RelPath, Scope, Trust
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath
from muniment.store.audit import timestamp
from muniment.store.handles import CROCKFORD, read_entry_id
from muniment.store.ledger import Run, find_source, is_current
from muniment.store.passages import TextTrust, read_text_trust
from muniment.store.rows import AssessFile, Assessment
from muniment.store.state import State
from muniment.types.keys import RootKey

if TYPE_CHECKING:
    from muniment.content.provenance import CanReplace

# -- stamp ---------------------------------------------------------------------------------------------
#
# Provenance and complete front matter for an entry that is about to be committed.
#
# A proposal's own provenance is discarded. On a change, id and creation time are copied from the replaced
# file, if they are valid, so that an entry retains its identity. All of it is only for display: the ledger is
# authoritative.

ULID_RANDOM_BYTES: Final = 10
"""Number of random bytes in a ULID."""

SEE: Final = "see"
"""Key in the front matter of an entry: the id, or the digest, of each related entry."""

NO_RELATIONS: Final[Mapping[str, object]] = MappingProxyType({})

_MAX_MILLISECONDS: Final = 2**48 - 1
_TIME_FORMAT: Final = "%Y-%m-%dT%H:%M:%SZ"
_TIME: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z", re.ASCII)


def encode_ulid(milliseconds: int, randomness: bytes) -> str:
    """Return a ULID: a unique id of 26 characters that sorts by time.

    Args:
        milliseconds: time since the epoch; 0 to 2**48 - 1.
        randomness: `ULID_RANDOM_BYTES` new bytes from the system.

    Raises:
        ValueError: an argument is out of range.

    Source: github.com/ulid/spec, "Binary Layout" and "Encoding".
    """
    if not 0 <= milliseconds <= _MAX_MILLISECONDS or len(randomness) != ULID_RANDOM_BYTES:
        raise ValueError(f"a ULID needs 48 bits of time and {ULID_RANDOM_BYTES} bytes of randomness")
    number = int.from_bytes(milliseconds.to_bytes(6, "big") + randomness, "big")
    return "".join(CROCKFORD[number >> shift & 31] for shift in range(125, -1, -5))


def generate_ulid() -> str:
    """Return a new ULID for the current time."""
    return encode_ulid(time.time_ns() // 1_000_000, secrets.token_bytes(ULID_RANDOM_BYTES))


def stamp_entry(
    data: bytes,
    base: bytes | None,
    path: CanonicalPath,
    run: Run,
    identity: str | None = None,
    *,
    relations: Mapping[str, object] = NO_RELATIONS,
    is_name_new: bool = False,
) -> bytes:
    """Return the bytes to commit for a proposed entry: with complete front matter and its provenance.

    Args:
        data: the proposed entry; only its front matter is extended.
        base: the file that it replaces; None for a new entry.
        path: path of the entry. Used for the name if all other sources are missing, and for the type if the
            scope has the name of a type.
        run: the run that changes the entry; its trust is the trust of these bytes.
        identity: id of a new entry, see `encode_ulid`; None: generate one.
        relations: relations to other texts, by the keys `ledger.SUPERSEDES` and `SEE`.
        is_name_new: whether code or a model chose the name of the file for this text. A later change of the
            text may then rename the file (`operations.naming`).

    Raises:
        ToolError: `data` is not UTF-8 text. (An invalid `base` is treated as one without provenance.)
        TooLarge: the front matter would be too large.
    """
    from muniment.content.titles import read_current_titles

    entry = parse(decode(data))
    titles = read_current_titles(entry, path.rel)
    now = datetime.fromisoformat(run.at).astimezone(UTC).strftime(_TIME_FORMAT)
    previous = parse(base or b"")
    known, created = read_entry_id(previous), _parse_created(previous)
    provenance = {
        "id": known or identity or generate_ulid(),
        "created": created or now,
        "updated": now,
        "task": run.task,
        "trust": str(run.trust),
        "decided_by": run.decided_by,
        "policy": run.policy,
        **relations,
    }
    provenance |= dict(_mark_generated_parts(entry, previous, titles, path, is_name_new=is_name_new))
    scope_type = path.scope if path.scope in TYPES else "reference"
    labels = {"name": titles.name, "description": titles.description, "type": scope_type}
    previous_titles = read_titles(entry, path.rel)
    changed = [key for key in ("name", "description") if getattr(previous_titles, key) != labels[key]]
    return encode(complete_front_matter(entry, labels, provenance, changed))


def _mark_generated_parts(
    entry: Entry, previous: Entry, titles: Titles, path: CanonicalPath, *, is_name_new: bool
) -> Iterator[tuple[str, str]]:
    """Yield key and mark of the titles and of the name of an entry, if code made them."""
    from muniment.content.titles import (
        NAME_KEY,
        TITLES_KEY,
        build_name_mark,
        build_title_mark,
        is_name_unchosen,
    )

    if mark := build_title_mark(titles, entry.body):
        yield TITLES_KEY, mark
    stem = path.name.removesuffix(FILE_SUFFIX)
    if is_name_new or is_name_unchosen(previous, stem):
        yield NAME_KEY, build_name_mark(stem)


def read_entry_created(entry: Entry) -> datetime | None:
    """Return the creation time in the front matter of an entry, or None. It proves nothing."""
    created = _parse_created(entry)
    return None if created is None else datetime.fromisoformat(created)


def _parse_created(entry: Entry) -> str | None:
    """Return the creation time in the provenance of an entry; None if it is missing or invalid."""
    created = (entry.muniment or {}).get("created")
    return created if isinstance(created, str) and _is_time(created) else None


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
class TrustDecision:
    """The trust of the new bytes of a change.

    Attributes:
        trust: trust of the new bytes.
        note: explanation for the user; None if not needed.
        author_trust: trust of the run that replaces or removes existing text; None: the same as `trust`.
    """

    trust: Trust
    note: str | None = None
    author_trust: Trust | None = None


TrustRule = Callable[[FileChange, Trust | None], TrustDecision]
"""Decides the trust of a change. The arguments are the change, and the trust of the bytes that it replaces or
None.
"""


KnownSources = Mapping[tuple[Scope, RelPath, Digest], tuple[Trust, str]]
"""Trust and time of committed files, by scope, path and digest; cached results of `find_source`."""

NO_KNOWN_SOURCES: Final[KnownSources] = MappingProxyType({})

UNKNOWN_BYTES: Final = "unknown_bytes"
"""Reason for withholding a file of a working copy: the ledger does not confirm that its bytes belong at its
path.
"""


def build_assessment(
    state: State, key: RootKey, scope: Scope, policy: Policy, known_sources: KnownSources = NO_KNOWN_SOURCES
) -> AssessFile:
    """Return a function that computes trust, expiry and withholding of a file for the catalog.

    Args:
        state: has the ledger.
        key: key of the root.
        scope: scope of the root.
        policy: defines the trust of the scope's files, and how long entries are retained.
        known_sources: cached results that need no ledger query.
    """
    scope_trust = policy.get_trust(scope)
    retention = policy.retention

    def compute_expiry(trust: Trust, at: str | None, ends: str | None) -> str | None:
        days = retention.untrusted if trust is Trust.EXTERNAL else retention.default
        retention_end = None if days == NEVER or at is None else _add_days(at, days)
        return min(filter(None, (ends, retention_end)), key=compute_expiry_time, default=None)

    def assess(rel: RelPath, found: Digest, data: bytes) -> Assessment:
        source_trust, ends, mixed = known_sources.get((scope, rel, found)), _read_expiry(data), False
        if source_trust is None and not is_current(state, key, rel, found):
            return Assessment(Trust.EXTERNAL, ends, UNKNOWN_BYTES)
        if source_trust is None and (source := find_source(state, key, rel, found)) is not None:
            source_trust = source.trust, source.at
            if source.is_mixed:
                mixed = bool(
                    read_text_trust(state, key, rel, data, scope_trust).select_sentences(Trust.OWNER)
                )
        if source_trust is None:
            from muniment.content.admission import find_withholding_gate

            by = read_text_trust(state, key, rel, data, scope_trust)
            mixed = bool(by.select_sentences(Trust.OWNER))
            return Assessment(
                by.trust,
                compute_expiry(by.trust, by.since, ends),
                find_withholding_gate(data, f"{scope}/{rel}", by.trust),
                mixed,
            )
        trust, at = source_trust
        return Assessment(trust, compute_expiry(trust, at, ends), None, mixed)

    return assess


def compute_trust(state: State, key: RootKey, path: CanonicalPath, content: bytes, policy: Policy) -> Trust:
    """Return the trust of bytes that are at a path, or that will be restored there.

    Args:
        state: has the ledger.
        key: key of the root.
        path: path of the bytes.
        content: the bytes.
        policy: defines the trust of the scope's files.
    """
    source = find_source(state, key, path.rel, digest(content))
    return compute_text_trust(state, key, path, content, policy, source).trust


def compute_text_trust(
    state: State, key: RootKey, path: CanonicalPath, content: bytes, policy: Policy, source: Run | None
) -> TextTrust:
    """Return the trust of bytes at a path, in total and for each sentence.

    Args:
        state: has the ledger.
        key: key of the root.
        path: path of the bytes.
        content: the bytes.
        policy: defines the trust of the scope's files.
        source: result of `find_source` for these bytes at this path.
    """
    if source is not None and not source.is_mixed:
        return TextTrust(source.trust)
    found = read_text_trust(state, key, path.rel, content, policy.get_trust(path.scope))
    return found if source is None else TextTrust(source.trust, found.sentences)


def build_edit_rule(state: State, key: RootKey, before: bytes, policy: Policy) -> TrustRule:
    """Return the trust rule for an edit by a user: only sentences that the user wrote have the owner's trust.

    In a file that no commit wrote, such sentences have at most the trust of the scope.

    Args:
        state: has the ledger.
        key: key of the root.
        before: bytes of the entry before the edit.
        policy: as for `compute_trust`.
    """

    def rule(draft: FileChange, _previous_trust: Trust | None) -> TrustDecision:
        if draft.after is None:
            return TrustDecision(Trust.OWNER)
        rel = draft.path.rel
        is_known = find_source(state, key, rel, digest(before)) is not None
        scope_trust = Trust.OWNER if is_known else policy.get_trust(draft.path.scope)
        return TrustDecision(
            read_text_trust(state, key, rel, draft.after, scope_trust).trust, author_trust=Trust.OWNER
        )

    return rule


def build_constant_rule(trust: Trust) -> TrustRule:
    """Return a trust rule that gives every change `trust`, for callers that are responsible for all text."""
    return lambda _draft, _held: TrustDecision(trust)


def build_fact_rule(
    fact: str, request: Trust, find_least_shown_trust: Callable[[], Trust | None], can_replace: CanReplace
) -> TrustRule:
    """Return the trust rule of a run that stores a fact.

    Only the fact itself, or the fact merged into an entry, can have the trust of the request. Other text has
    at most the trust `agent` (T2 in the module docstring).

    Args:
        fact: the text to remember.
        request: trust of the request.
        find_least_shown_trust: returns the lowest trust of the text that the run was shown, None without such
            text; called only if needed.
        can_replace: as for `determine_authorship`.
    """
    from muniment.content.provenance import Authorship, determine_authorship

    def rule(draft: FileChange, previous_trust: Trust | None) -> TrustDecision:
        if draft.after is None:
            return TrustDecision(request)
        old = None if draft.before is None or previous_trust is None else parse(draft.before)
        match determine_authorship(
            parse(draft.after).body, fact, None if old is None else old.body, can_replace
        ):
            case Authorship.SAME if previous_trust is not None:
                return TrustDecision(previous_trust)
            case Authorship.FACT:
                return TrustDecision(request)
            case Authorship.EXTENDED if (
                previous_trust is not None and old is not None and not old.has_end_date
            ):
                # In an entry with an end date, the fact would expire with it.
                return TrustDecision(request.cap(previous_trust))
        trust = request.cap(Trust.AGENT, *filter(None, [find_least_shown_trust()]))
        if trust is request:
            return TrustDecision(trust)
        return TrustDecision(trust, f"{draft.path.text} is not the requested text, so its trust is {trust}")

    return rule


def find_review_reasons(
    draft: FileChange, previous_trust: Trust | None, author_trust: Trust, policy: Policy, *, is_new_text: bool
) -> Iterator[str]:
    """Yield the reasons why a change must wait for the owner's review; none if it need not wait.

    Args:
        draft: the change, with the trust of its new bytes.
        previous_trust: highest trust of the sentences that the change replaces or removes; None for a new
            entry.
        author_trust: trust of the run. If it is the owner's, new text is checked as the owner's text.
        policy: defines which scopes are reviewed, and how external text and instructions for agents are
            handled.
        is_new_text: False if the text existed before, and is only restored or shortened.

    Raises:
        Refused: the policy rejects text of trust `external`.
    """
    from muniment.content.admission import INSTRUCTIONS_GATE, find_name_gate

    path = draft.path.text
    if draft.base is None:  # A model chose this name.
        path = "a new entry" if previous_trust is None else "an entry that gets a new name"
    if policy.get_commit_mode(draft.path.scope) == "review":
        yield f"every change of {draft.path.scope} is reviewed"
    if previous_trust is not None and not author_trust.satisfies(previous_trust):
        done = "remove" if draft.after is None else "replace"
        yield f"text of trust {author_trust} would {done} {path}, which has trust {previous_trust}"
    if draft.after is not None and draft.trust is not None and is_new_text:
        trust = Trust.OWNER if author_trust is Trust.OWNER else draft.trust
        yield from _find_text_reasons(path, draft.after, trust, policy)
        is_new_name = draft.base is None and policy.content.instructions == "quarantine"
        if is_new_name and find_name_gate(draft.path.text, draft.trust) == INSTRUCTIONS_GATE:
            yield "the name of a new entry addresses an agent"


def _find_text_reasons(path: str, text: bytes, trust: Trust, policy: Policy) -> Iterator[str]:
    source_mode = policy.provenance.untrusted_sources if trust is Trust.EXTERNAL else "allow"
    if source_mode == "reject":
        raise Refused(
            "the policy of this memory rejects external text", rule="untrusted_sources", layer=policy.name
        )
    if source_mode == "quarantine":
        yield f"{path} is external text"
    for reason in _find_risks(decode(text), trust, policy):
        yield f"{path} {reason}"


def is_risky(text: str, trust: Trust, policy: Policy) -> bool:
    """Return whether a new text would require a review because of its content.

    Args:
        text: the text.
        trust: trust of the text.
        policy: defines which risks require a review.
    """
    return next(_find_risks(text, trust, policy), None) is not None


def _find_risks(text: str, trust: Trust, policy: Policy) -> Iterator[str]:
    """Yield the risks of a text; each is the end of a sentence that begins with the path."""
    from muniment.content.admission import find_agent_instruction

    if (
        policy.content.instructions == "quarantine"
        and (rule := find_agent_instruction(text, trust)) is not None
    ):
        yield f"addresses an agent ({rule})"
    if policy.content.poison == "quarantine" and trust in {Trust.AGENT, Trust.EXTERNAL}:
        from muniment.content.poison import find_poison

        found = find_poison(text)
        if found is not None:
            yield f"{found.reason}, which agents would treat as a fact ({found.rules[0]})"


def _read_expiry(data: bytes) -> str | None:
    """Return the expiry date in the front matter of an entry, or None."""
    head = data[:MAX_FRONT_MATTER_BYTES]
    return parse(head).expires if EXPIRY_KEY.encode() in head else None


def _add_days(at: str, days: int) -> str:
    return timestamp(datetime.fromisoformat(at) + timedelta(days=days))
