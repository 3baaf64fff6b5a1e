"""How far an entry is trusted: by what the ledger knows of its bytes, never by what they say of themselves.

T1 Bytes that this ledger's commits put at a path have the trust that was recorded with them; any other bytes
   have their scope's.
T2 What a run writes has the request's trust where its words are the requester's (`content.provenance`): the
   fact itself, or the fact put into what the file held before (then the least of both). An entry of which
   nothing changes but its provenance keeps its own. Any other words are a model's: `agent` at most, whoever
   asked, and no more than the least of everything that the run was shown.
T3 A lower trust never replaces, removes or merges a higher one unasked: `reasons_for_review`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from muniment.content.admission import addressed_to_agent, held_for
from muniment.content.entry import EXPIRY_KEY, parse
from muniment.content.frontmatter import MAX_FRONT_MATTER_BYTES
from muniment.content.gates import decode
from muniment.content.provenance import Whose, whose
from muniment.errors import Refused
from muniment.names import Digest, RelPath, Scope, Trust, __version__
from muniment.policy.decide import NEVER, Policy
from muniment.policy.grammar import CanonicalPath
from muniment.store.audit import timestamp
from muniment.store.change import Draft
from muniment.store.ledger import RootKey, source_of
from muniment.store.rows import Assess, Assessed
from muniment.store.state import State
from muniment.tools.overlay import digest


@dataclass(frozen=True, slots=True)
class Ruling:
    """How far the new bytes of a draft are trusted.

    Attributes:
        note: what a person should know of why; None: nothing.
    """

    trust: Trust
    note: str | None = None


TrustRule = Callable[[Draft, Trust | None], Ruling]
"""The ruling about a draft, from the draft and the trust of the bytes that it replaces, if any."""


@dataclass(frozen=True, slots=True)
class TrustedDraft:
    """A draft with what counts for its trust.

    Attributes:
        held: of the bytes that it replaces or removes; None if it creates.
        trust: of its new bytes; None if it removes.
        by: of whoever replaces or removes.
    """

    draft: Draft
    held: Trust | None
    trust: Trust | None
    by: Trust


def assessing(state: State, key: RootKey, scope: Scope, policy: Policy) -> Assess:
    """What the catalog asks about each file of a root (T1); text of others is gated at its first sight."""
    ours = policy.trust_of(scope)
    retention = policy.retention

    def assess(rel: RelPath, found: Digest, data: bytes) -> Assessed:
        source, ends = source_of(state, key, rel, found), _ends(data)
        if source is None:
            return Assessed(ours, ends, held_for(data, rel, ours))
        days = retention.untrusted if source.trust is Trust.EXTERNAL else retention.default
        kept = None if days == NEVER else _days_after(source.at, days)
        return Assessed(source.trust, min(filter(None, (ends, kept)), default=None), None)

    return assess


def trust_at(state: State, key: RootKey, path: CanonicalPath, content: bytes, policy: Policy) -> Trust:
    """How far bytes are trusted that stand at a path, or come back there (T1)."""
    source = source_of(state, key, path.rel, digest(content))
    return policy.trust_of(path.scope) if source is None else source.trust


def basis(policy: Policy, scope: Scope) -> str:
    """All that the answers of `assessing` depend on besides files and ledger; the gates are the version's."""
    terms = policy.retention
    return f"{__version__} {EXPIRY_KEY} {policy.trust_of(scope)} {terms.default} {terms.untrusted}"


def constant(trust: Trust) -> TrustRule:
    """The rule of a caller who answers for everything that is committed."""
    return lambda _draft, _held: Ruling(trust)


def by_words(fact: str, request: Trust, least_shown: Callable[[], Trust | None]) -> TrustRule:
    """The rule of a run that files a fact (T2).

    Args:
        fact: what was to be remembered.
        request: its trust.
        least_shown: asked, if it matters, for the least trust of what the run was shown; None: nothing.
    """

    def rule(draft: Draft, held: Trust | None) -> Ruling:
        if draft.after is None:
            return Ruling(request)
        old = None if draft.before is None or held is None else parse(draft.before)
        match whose(parse(draft.after).body, fact, None if old is None else old.body):
            case Whose.SAME if held is not None:
                return Ruling(held)
            case Whose.FACT:
                return Ruling(request)
            case Whose.KEPT if held is not None and old is not None and old.expires is None:
                return Ruling(request.capped(held))  # In one that ends the fact would end with it.
        trust = request.capped(Trust.AGENT, *filter(None, [least_shown()]))
        if trust is request:
            return Ruling(trust)
        return Ruling(trust, f"{draft.path.text} is not in the words that were given: its trust is {trust}")

    return rule


def reasons_for_review(
    drafts: Sequence[TrustedDraft], policy: Policy, *, is_new_text: bool
) -> tuple[str, ...]:
    """Why a change-set has to wait for the owner; empty if it need not.

    Args:
        drafts: what would be done.
        policy: says which scopes are reviewed, and what becomes of agent-directed and external text.
        is_new_text: False: it was there before, and is only brought back or kept.

    Raises:
        Refused: the policy takes no text of trust `external` at all.
    """
    reasons: list[str] = []
    for item in drafts:
        draft = item.draft
        path = (
            "a new entry" if draft.before is None else draft.path.text
        )  # Its name is a model's words so far.
        if policy.commit_of(draft.path.scope) == "review":
            reasons.append(f"every change of {draft.path.scope} is reviewed")
        if item.held is not None and not item.by.satisfies(item.held):
            done = "remove" if draft.after is None else "replace"
            reasons.append(f"text of trust {item.by} would {done} {path}, which has trust {item.held}")
        if draft.after is not None and item.trust is not None and is_new_text:
            reasons += _reasons_in_text(path, draft.after, item.trust, policy)
    return tuple(dict.fromkeys(reasons))


def _reasons_in_text(path: str, text: bytes, trust: Trust, policy: Policy) -> list[str]:
    reasons: list[str] = []
    taken = policy.provenance.untrusted_sources if trust is Trust.EXTERNAL else "allow"
    if taken == "reject":
        raise Refused("this memory takes no text from outside", rule="untrusted_sources", layer=policy.name)
    if taken == "quarantine":
        reasons.append(f"{path} comes from outside")
    if policy.content.instructions == "quarantine":
        rule = addressed_to_agent(decode(text), trust)
        if rule is not None:
            reasons.append(f"{path} speaks to an agent ({rule})")
    return reasons


def _ends(data: bytes) -> str | None:
    """When an entry says that it is no longer to be told; None: it does not."""
    head = data[:MAX_FRONT_MATTER_BYTES]
    ends = parse(head).expires if EXPIRY_KEY.encode() in head else None
    return None if ends is None else timestamp(ends)


def _days_after(at: str, days: int) -> str:
    return timestamp(datetime.fromisoformat(at) + timedelta(days=days))
