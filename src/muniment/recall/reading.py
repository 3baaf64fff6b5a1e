"""Read the entries that a search found from their files, so that current content is displayed.

A row of the catalog only proposes an entry (`store.catalog`). Every displayed entry satisfies these rules:

- V1. Its bytes were just read from the file, and are the bytes that the row describes. In a working copy,
  they are also the bytes in the ledger.
- V2. Its trust and its age come from the record of these bytes in the ledger.
- V3. It gives no instructions to an agent that its trust does not permit, and contains no invisible
  characters. This is checked even if a policy disabled these gates when the entry was written.

Not guaranteed: that the file stays unchanged after it was read; nor that a deceptive text is detected
(`content.gates`, `content.admission`).

Attacked in tests/units/recall/test_recaller.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from muniment.content.admission import find_agent_instruction
from muniment.content.entry import Entry, parse
from muniment.content.gates import GATES, check_text
from muniment.content.titles import derive_titles, read_current_titles
from muniment.errors import ContentRejected, PathEscape, Refusal, ToolError
from muniment.kernel.binding import BoundRoot
from muniment.kernel.change import digest
from muniment.kernel.decide import Policy
from muniment.kernel.names import Trust
from muniment.kernel.path import CanonicalPath
from muniment.recall.search import Hit
from muniment.store.ledger import find_source, is_current
from muniment.store.state import State
from muniment.store.trust import compute_text_trust

_MAX_TIMESTAMP: Final = 253_402_300_799
"""The last second of the year 9999; the file system may return any number as the time of a file."""


@dataclass(frozen=True, slots=True)
class ReadEntry:
    """An entry that was read and may be displayed.

    Attributes:
        hit: the search result.
        entry: the content of the file.
        name: the name from the front matter, otherwise derived from the text; may contain unsafe characters.
        trust: who the entry comes from.
        written_at: the time when the entry was written.
        owner_text: if the trust is lower than `owner`: the sentences that the owner wrote; may be empty.
    """

    hit: Hit
    entry: Entry
    name: str
    trust: Trust
    written_at: datetime
    owner_text: str = ""

    @property
    def highest_trust(self) -> Trust:
        """Return the highest trust of the sentences in the entry."""
        return Trust.OWNER if self.owner_text else self.trust

    @property
    def owner_part(self) -> ReadEntry | None:
        """Return the part of the entry that the owner wrote; None if the owner wrote nothing in it."""
        if self.trust is Trust.OWNER:
            return self
        if not self.owner_text:
            return None
        return replace(
            self,
            entry=parse(self.owner_text),
            name=derive_titles(self.owner_text).name,
            trust=Trust.OWNER,
            owner_text="",
        )


def read_entry(hit: Hit, state: State, bound: BoundRoot, policy: Policy) -> ReadEntry | str | None:
    """Read the current file of a hit, and check that the entry may be displayed.

    Args:
        hit: the search result.
        state: the ledger with the origin of the entry.
        bound: the root of the entry.
        policy: the trust of texts that Muniment did not write.

    Returns:
        The entry.
        A string: the gate that withholds the entry: one of `content.gates.GATES`, `marks` or `instructions`.
        None: the file was deleted, or differs from its row.

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
    source = find_source(state, *hit.key)
    found = compute_text_trust(state, hit.key.root, path, data, policy, source)
    trust = found.trust
    at = _read_file_time(hit) if source is None else datetime.fromisoformat(source.at)
    entry = parse(data)
    name = read_current_titles(entry, hit.key.rel).name
    gate = find_display_gate("\n".join([name, entry.description or "", *entry.keywords, entry.body]), trust)
    own = "" if trust is Trust.OWNER else found.select_sentences(Trust.OWNER)
    return gate or ReadEntry(hit, entry, name, trust, at, own)


def find_display_gate(text: str, trust: Trust) -> str | None:
    """Return the name of the gate that withholds a text from models, or None if the text may be shown.

    Args:
        text: the text.
        trust: the trust of its author; it decides whether the text may give instructions to an agent.
    """
    try:
        check_text(text, GATES)
    except ContentRejected as rejected:
        return rejected.rule
    return "instructions" if find_agent_instruction(text, trust) is not None else None


def _read_file_time(hit: Hit) -> datetime:
    """Return the modification time of a file that Muniment did not write."""
    return datetime.fromtimestamp(min(max(0, hit.mtime_ns // 1_000_000_000), _MAX_TIMESTAMP), UTC)
