"""How far an entry is trusted: by what the ledger knows of its bytes, never by what they say of themselves.

T1 Bytes that this ledger's commits put at a path have the trust that was recorded with them; any other bytes
   have their scope's.
T2 What a run writes has the request's trust where it is the fact itself, verbatim, with nothing added but
   front matter, list markers, or lines that the file held before, in their order (then the least of both);
   else the least of the request's and of everything that the run was shown. So it is, too, where lines go
   and the run was shown text of less than `workspace`.
T3 A lower trust never replaces, removes or merges a higher one unasked: `reasons_for_review`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from muniment.content.admission import held_for
from muniment.content.entry import parse, with_provenance
from muniment.content.gates import decode
from muniment.content.instructions import addressed_to_agent
from muniment.errors import Refused, ToolError
from muniment.names import Digest, RelPath, Scope, Trust
from muniment.policy.grammar import CanonicalPath
from muniment.policy.model import NEVER, Policy
from muniment.store.audit import timestamp
from muniment.store.change import Draft
from muniment.store.ledger import RootKey, source_of
from muniment.store.rows import Assess, Assessed
from muniment.store.state import State
from muniment.tools.changeset import digest
from muniment.version import __version__

TrustRule = Callable[[Draft, Trust | None], Trust]
"""The trust of a draft's new bytes, from the draft and the trust of the bytes that it replaces, if any."""


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


_MARKERS: Final = re.compile(r"[ \t]*(?:[-*+>][ \t]*)*(?:[0-9]{1,9}[.)][ \t]+(?=\S))?(?:[-*+>][ \t]+)*")
_FACT: Final = "\0"  # stands for the fact among the lines of an entry, which hold no NUL


def assessing(state: State, key: RootKey, scope: Scope, policy: Policy) -> Assess:
    """What the catalog asks about each file of a root (T1); text of others is gated at its first sight."""
    ours = policy.trust_of(scope)
    retention = policy.retention

    def assess(rel: RelPath, found: Digest, data: bytes) -> Assessed:
        source = source_of(state, key, rel, found)
        if source is None:
            return Assessed(ours, None, held_for(data, rel, ours))
        days = retention.untrusted if source.trust is Trust.EXTERNAL else retention.default
        return Assessed(source.trust, None if days == NEVER else _days_after(source.at, days), None)

    return assess


def trust_at(state: State, key: RootKey, path: CanonicalPath, content: bytes, policy: Policy) -> Trust:
    """How far bytes are trusted that stand at a path, or come back there (T1)."""
    source = source_of(state, key, path.rel, digest(content))
    return policy.trust_of(path.scope) if source is None else source.trust


def basis(policy: Policy, scope: Scope) -> str:
    """All that the answers of `assessing` depend on besides files and ledger; the gates are the version's."""
    terms = policy.retention
    return f"{__version__} {policy.trust_of(scope)} {terms.default} {terms.untrusted}"


def constant(trust: Trust) -> TrustRule:
    """The rule of a caller who answers for everything that is committed."""
    return lambda _draft, _held: trust


def by_fact(fact: str, request: Trust, least_shown: Callable[[], Trust | None]) -> TrustRule:
    """The rule of a run that files a fact (T2).

    Args:
        fact: what was to be remembered.
        request: its trust.
        least_shown: asked, if it matters, for the least trust of what the run was shown; None: nothing.
    """

    def capped() -> Trust:
        shown = least_shown()
        return request if shown is None else request.capped(shown)

    def heard_others() -> bool:
        """Whether somebody who may not speak in an index could have had a line taken out."""
        shown = least_shown()
        return shown is not None and not shown.satisfies(Trust.WORKSPACE)

    def rule(draft: Draft, held: Trust | None) -> Trust:
        if draft.after is None:
            return request
        if draft.before is not None and held is not None and _says_the_same(draft.before, draft.after):
            return held
        lines = _lines(parse(draft.after).body.replace(fact, _FACT, 1))
        if _FACT not in lines:
            return capped()
        lines.remove(_FACT)
        if draft.before is None or held is None:
            return capped() if lines else request
        before = _lines(parse(draft.before).body)
        if not _stand_in_order(lines, before) or (not _stand_in_order(before, lines) and heard_others()):
            return capped()
        return request.capped(held) if lines else request

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
        draft, path = item.draft, item.draft.path.text
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


def _says_the_same(before: bytes, after: bytes) -> bool:
    """Whether two versions of an entry differ in nothing but the provenance line."""
    try:
        return with_provenance(decode(before), {}) == with_provenance(decode(after), {})
    except ToolError:
        return False  # One of them is no text, or has no room for the line.


def _lines(text: str) -> list[str]:
    """The lines that say something, without list markers."""
    lines = (_MARKERS.sub("", line, count=1).strip() for line in text.splitlines())
    return [line for line in lines if line]


def _stand_in_order(lines: Sequence[str], among: Sequence[str]) -> bool:
    """Whether all of `lines` are among others, in the same order."""
    rest = iter(among)
    return all(line in rest for line in lines)


def _days_after(at: str, days: int) -> str:
    return timestamp(datetime.fromisoformat(at) + timedelta(days=days))
