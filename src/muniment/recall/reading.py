"""Entries that a search found, read from their files: what is shown is what stands there now.

A row tells what to look for, and no more (`catalog.py`). So of every entry that is shown:

- V1. its bytes were read by the handle of its root, just now, and are those that its row is of;
- V2. its trust and its age are what the ledger knows of these bytes;
- V3. it does not address an agent as one of its trust may not, and holds no characters that a reader would
  not see, also where a policy let its gates rest when it was written.

What does not hold: that the file is still so once it was read; nor that a text which deceives is noticed
(`gates.py`, `instructions.py`).

Attacked in tests/recall/test_reading.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from muniment.confine.binding import BoundRoot
from muniment.content.admission import addressed_to_agent
from muniment.content.entry import Entry, parse, titled
from muniment.content.gates import GATES, check_text
from muniment.errors import ContentRejected, PathEscape, Refusal, ToolError
from muniment.names import Trust
from muniment.policy.decide import Policy
from muniment.recall.search import Hit
from muniment.store.ledger import source_of
from muniment.store.state import State
from muniment.tools.overlay import digest

_LAST_SECOND: Final = 253_402_300_799
"""Of the year 9999; the time of a file may be any number."""


@dataclass(frozen=True, slots=True)
class Reading:
    """An entry that may be shown.

    Attributes:
        hit: what found it.
        entry: as its file says.
        name: of the front matter, else derived; not cleaned.
        trust: who it comes from.
        at: when it was written.
    """

    hit: Hit
    entry: Entry
    name: str
    trust: Trust
    at: datetime


@dataclass(frozen=True, slots=True)
class Changed:
    """An entry whose file is gone, or not what its row is of."""

    hit: Hit


@dataclass(frozen=True, slots=True)
class Withheld:
    """An entry that may not be shown (V3).

    Attributes:
        gate: which says so: one of `muniment.content.gates.GATES`, `marks` or `instructions`.
    """

    hit: Hit
    gate: str


Outcome = Reading | Changed | Withheld


def read(hit: Hit, state: State, bound: BoundRoot, policy: Policy) -> Outcome:
    """The entry of a hit as it is now (V1 to V3).

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be read.

    Cost: an open, a read, a query of the ledger, and some 30 µs a KiB of English.
    """
    try:
        data = bound.root.read_bytes(hit.key.rel)
    except (PathEscape, Refusal, ToolError):
        return Changed(hit)
    if digest(data) != hit.key.digest:
        return Changed(hit)
    source = source_of(state, *hit.key)
    trust = policy.trust_of(bound.scope) if source is None else source.trust
    at = _written(hit) if source is None else datetime.fromisoformat(source.at)
    entry = parse(data)
    name = titled(entry, hit.key.rel).name
    gate = _gate("\n".join([name, entry.description or "", *entry.keywords, entry.body]), trust)
    return Reading(hit, entry, name, trust, at) if gate is None else Withheld(hit, gate)


def _gate(text: str, trust: Trust) -> str | None:
    try:
        check_text(text, GATES)
    except ContentRejected as rejected:
        return rejected.rule
    return "instructions" if addressed_to_agent(text, trust) is not None else None


def _written(hit: Hit) -> datetime:
    """When the file of an entry was written that this memory did not write."""
    return datetime.fromtimestamp(min(max(0, hit.mtime_ns // 1_000_000_000), _LAST_SECOND), UTC)
