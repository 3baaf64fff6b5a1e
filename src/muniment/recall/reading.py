"""Read the entries that a search found from their files, so that current content is displayed.

A row only proposes an entry (`store.catalog`). So for every entry that is displayed:

- V1. its bytes were just read through the handle of its root, and equal the bytes of its row; in a working
  copy they also equal the bytes in the ledger;
- V2. its trust and its age come from the ledger's record of these bytes;
- V3. it does not address an agent in a way that its trust forbids, and has no characters that a reader would
  not see, even if a policy turned these gates off when it was written.

Not guaranteed: that the file stays unchanged after it was read; nor that a deceptive text is detected
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
"""The last second of the year 9999; the time of a file may be any number."""


@dataclass(frozen=True, slots=True)
class ReadEntry:
    """An entry that may be displayed.

    Attributes:
        hit: the search result.
        entry: the content of its file.
        name: from the front matter, else derived; not cleaned.
        trust: who it comes from.
        at: when it was written.
        own: the owner's sentences, if it also has sentences of lower trust.
    """

    hit: Hit
    entry: Entry
    name: str
    trust: Trust
    at: datetime
    own: str = ""

    @property
    def most(self) -> Trust:
        """Return the highest trust of its sentences."""
        return Trust.OWNER if self.own else self.trust

    @property
    def of_owner(self) -> ReadEntry | None:
        """Return the owner's part of the entry; None: it has no such part."""
        if self.trust is Trust.OWNER:
            return self
        if not self.own:
            return None
        return replace(self, entry=parse(self.own), name=titles_of(self.own).name, trust=Trust.OWNER, own="")


def read(hit: Hit, state: State, bound: BoundRoot, policy: Policy) -> ReadEntry | str | None:
    """Read the current entry of a hit (V1 to V3).

    Returns:
        A text: the gate that withholds it, one of `muniment.content.gates.GATES`, `marks` or `instructions`.
        None: its file was deleted, or differs from its row.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be read.

    Cost: an open, a read, a query of the ledger, and about 30 µs per KiB of English.
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
    """Return the gate that withholds a text of this trust from models (V3), or None."""
    try:
        check_text(text, GATES)
    except ContentRejected as rejected:
        return rejected.rule
    return "instructions" if addressed_to_agent(text, trust) is not None else None


def _written(hit: Hit) -> datetime:
    """Return when another program wrote the file of an entry."""
    return datetime.fromtimestamp(min(max(0, hit.mtime_ns // 1_000_000_000), _LAST_SECOND), UTC)
