"""How what a remember proposed is committed: under which name, with which trust, stamped how."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from muniment.agent.rules import RuleWriter
from muniment.content.entry import parse
from muniment.content.gates import decode, encode
from muniment.content.secrets import redacted
from muniment.errors import PathEscape, Refusal, ToolError
from muniment.jobs.request import Place
from muniment.names import RelPath, Scope, Trust
from muniment.policy.grammar import CanonicalPath
from muniment.sandbox import JobTerms, Sandbox
from muniment.store.audit import timestamp
from muniment.store.commit import Stamp
from muniment.store.ledger import Origin, root_key
from muniment.store.stamp import Provenance, new_ulid, stamp
from muniment.store.trust import by_fact, trust_at
from muniment.store.upkeep import trusts_shown

KIND: Final = "remember"


@dataclass(frozen=True, slots=True)
class Filing:
    """What the commit of one fact is bound to.

    Attributes:
        trust: of the request.
        decided_by: `rules`, or the model's name.
    """

    place: Place
    task: str
    fact: str
    trust: Trust
    decided_by: str

    def terms(self, box: Sandbox, indexes: Collection[Scope]) -> JobTerms:
        """The terms for what a run proposed in `box`, after it was shown the indexes of some scopes."""
        now = datetime.now(UTC)
        state, policy = self.place.state, self.place.policy.label
        origin = Origin(
            self.task,
            KIND,
            timestamp(now),
            self.trust,
            self.decided_by,
            policy,
            fact=state.keyed(self.fact),
        )
        # Where secrets are taken out instead of refused, so they are of the fact.
        is_redacted = self.place.policy.content.secrets == "redact"
        fact = redacted(self.fact) if is_redacted else self.fact
        least_shown = _least_shown(self.place, box, indexes)
        return JobTerms(origin, by_fact(fact, self.trust, least_shown), self._stamp(now, least_shown))

    def _stamp(self, now: datetime, least_shown: Callable[[], Trust | None]) -> Stamp:
        def stamped(after: bytes, before: bytes | None, path: CanonicalPath, trust: Trust) -> bytes:
            provenance = Provenance(
                new_ulid(), now, self.task, trust, self.decided_by, self.place.policy.label
            )
            if self.decided_by != RuleWriter.name and _is_above(trust, least_shown()):
                after = _as_labelled_before(after, before)
            return stamp(after, before, path, provenance)

        return stamped


def _is_above(trust: Trust, shown: Trust | None) -> bool:
    """Whether words of a run may be of somebody whom an index would not let speak, which `trust` hides."""
    return shown is not None and not shown.satisfies(Trust.WORKSPACE) and not shown.satisfies(trust)


def _as_labelled_before(after: bytes, before: bytes | None) -> bytes:
    """A file with the front matter that it had; of a new one only its type, the rest is made of its text.

    Name, description and keywords are a model's own words, whatever the fact says, and the index shows them.
    """
    entry = parse(decode(after))
    if before is not None:
        kept = before.decode("utf-8", "replace")
        return encode((kept.removesuffix(parse(kept).body) or "---\n---\n") + entry.body)
    kind = [f"type: {entry.type}"] if entry.type is not None else []
    return encode("\n".join(["---", *kind, "---", entry.body]))


def _least_shown(place: Place, box: Sandbox, indexes: Collection[Scope]) -> Callable[[], Trust | None]:
    """Asks for the least trust of all that a run was shown; None: nothing."""

    def least() -> Trust | None:
        made = {change.path for change in box.changes() if change.kind == "create"}
        trusts = [trust for path in box.seen if (trust := _trust_at(place, box, path, made)) is not None]
        for scope in indexes:
            trusts += trusts_shown(place.state, place.roots[scope], place.policy)
        return trusts[0].capped(*trusts[1:]) if trusts else None

    return least


def _trust_at(place: Place, box: Sandbox, path: str, made: Collection[str]) -> Trust | None:
    """The trust of what stands at a path that was shown; None where the run had written that itself."""
    scope, _, rel = path.partition("/")
    try:
        found = box.without_links(CanonicalPath(Scope(scope), RelPath(rel)))
        root = place.roots[found.scope]
        content = root.root.read_bytes(found.rel)
    except (PathEscape, Refusal, ToolError):
        # It went since: nobody can say any more who it came from.
        return None if path in made else Trust.EXTERNAL
    return trust_at(place.state, root_key(place.state, root), found, content, place.policy)
