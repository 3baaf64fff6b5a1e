"""Entries that a search found, read from their files: what is shown is what stands there now.

A row tells what to look for, and no more (`store.catalog`). So of every entry that is shown:

- V1. its bytes were read by the handle of its root, just now, and are those that its row is of, in a
  working copy also those that the ledger says stand there;
- V2. its trust and its age are what the ledger knows of these bytes;
- V3. it does not address an agent as one of its trust may not, and holds no characters that a reader would
  not see, also where a policy let its gates rest when it was written.

What does not hold: that the file is still so once it was read; nor that a text which deceives is noticed
(`content.gates`, `content.admission`).

Attacked in tests/units/recall/test_recaller.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from muniment.content.admission import addressed_to_agent
from muniment.content.entry import Entry, parse
from muniment.content.gates import GATES, check_text
from muniment.content.titles import current_titles, titles_of
from muniment.errors import ContentRejected, PathEscape, Refusal, ToolError
from muniment.kernel.binding import BoundRoot
from muniment.kernel.change import digest
from muniment.kernel.decide import Policy
from muniment.kernel.names import Trust
from muniment.kernel.path import CanonicalPath
from muniment.recall.search import Hit
from muniment.store.ledger import is_current, source_of
from muniment.store.state import State
from muniment.store.trust import authorship_at

_LAST_SECOND: Final = 253_402_300_799
"""Of the year 9999; the time of a file may be any number."""


@dataclass(frozen=True, slots=True)
class ReadEntry:
    """An entry that may be shown.

    Attributes:
        hit: what found it.
        entry: as its file says.
        name: of the front matter, else derived; not cleaned.
        trust: who it comes from.
        at: when it was written.
        own: the owner's sentences, if it has others of lower trust too.
    """

    hit: Hit
    entry: Entry
    name: str
    trust: Trust
    at: datetime
    own: str = ""

    @property
    def most(self) -> Trust:
        """The highest trust of its sentences."""
        return Trust.OWNER if self.own else self.trust

    @property
    def of_owner(self) -> ReadEntry | None:
        """The entry as far as it is the owner's; None if nothing of it is."""
        if self.trust is Trust.OWNER:
            return self
        if not self.own:
            return None
        return replace(self, entry=parse(self.own), name=titles_of(self.own).name, trust=Trust.OWNER, own="")


def read(hit: Hit, state: State, bound: BoundRoot, policy: Policy) -> ReadEntry | str | None:
    """The entry of a hit as it is now (V1 to V3).

    Returns:
        A text: the gate that keeps it from being shown, one of `muniment.content.gates.GATES`, `marks` or
        `instructions`. None: its file is gone, or not what its row is of.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be read.

    Cost: an open, a read, a query of the ledger, and some 30 µs a KiB of English.
    """
    path = CanonicalPath(bound.scope, hit.key.rel)
    try:
        data = bound.root.read_bytes(path)
    except (PathEscape, Refusal, ToolError):
        return None
    if digest(data) != hit.key.digest or not is_current(state, *hit.key):
        return None
    source = source_of(state, *hit.key)
    found = authorship_at(state, hit.key.root, path, data, policy, source)
    trust = found.trust
    at = _written(hit) if source is None else datetime.fromisoformat(source.at)
    entry = parse(data)
    name = current_titles(entry, hit.key.rel).name
    gate = gate_of("\n".join([name, entry.description or "", *entry.keywords, entry.body]), trust)
    own = "" if trust is Trust.OWNER else found.body_of(Trust.OWNER)
    return gate or ReadEntry(hit, entry, name, trust, at, own)


def gate_of(text: str, trust: Trust) -> str | None:
    """The gate that keeps a text of this trust from being shown to a model (V3); None: none does."""
    try:
        check_text(text, GATES)
    except ContentRejected as rejected:
        return rejected.rule
    return "instructions" if addressed_to_agent(text, trust) is not None else None


def _written(hit: Hit) -> datetime:
    """When the file of an entry was written that this memory did not write."""
    return datetime.fromtimestamp(min(max(0, hit.mtime_ns // 1_000_000_000), _LAST_SECOND), UTC)
