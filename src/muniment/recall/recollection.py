"""What came of a recall: values."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import date, datetime
from itertools import islice
from typing import Any, Final

from muniment.errors import MunimentError
from muniment.kernel.names import Digest, RelPath, Trust
from muniment.recall.search import EntryKey
from muniment.store.audit import timestamp
from muniment.store.ledger import RootKey

MAX_KEYS: Final = 10_000
"""Keys that are taken from a saved state: those of two thousand turns. Each costs a search some 2 µs."""


@dataclass(frozen=True, slots=True)
class RecollectedEntry:
    """An entry that was recalled.

    Attributes:
        path: logical path.
        key: which one it is, and what it said.
        trust: who it comes from.
        at: when it was written.
        text: what of it stands in the answer.
        ended: the last day on which it held, if that has passed.
    """

    path: str
    key: EntryKey
    name: str
    trust: Trust
    at: datetime
    text: str
    ended: date | None = None

    @property
    def id(self) -> str:
        """What names it, as it is now, to those who exclude it: its path and its digest."""
        return f"{self.path}@{self.key.digest}"


@dataclass(frozen=True, slots=True)
class Recollection:
    """What came of a recall.

    Attributes:
        entries: the best first; empty if nothing helps.
        text: to be put before the model; empty without entries.
        tokens: of the text.
        abstained: nothing in the memory is about the message.
        withheld: how many were found, and may not be shown.
        is_repeat: the whole memory was told, long ago, so that the conversation begins anew with it.
        error: why it is empty, if something went wrong.
        notes: what the user should know; never text of an entry.
    """

    entries: tuple[RecollectedEntry, ...] = ()
    text: str = ""
    tokens: int = 0
    abstained: bool = False
    withheld: int = 0
    is_repeat: bool = False
    error: MunimentError | None = None
    notes: tuple[str, ...] = ()

    @property
    def keys(self) -> frozenset[EntryKey]:
        """Of the entries."""
        return frozenset(each.key for each in self.entries)

    def as_json(self) -> dict[str, Any]:
        """The document that `recall --json` and the daemon answer with."""
        document = {
            "entries": [
                {
                    "id": each.id,
                    "path": each.path,
                    "name": each.name,
                    "trust": each.trust,
                    "at": timestamp(each.at),
                    "text": each.text,
                    **({} if each.ended is None else {"ended": str(each.ended)}),
                }
                for each in self.entries
            ],
            "text": self.text,
            "tokens": self.tokens,
            "abstained": self.abstained,
        }
        return {**document, "notes": list(self.notes)} if self.notes else document


def keys_as_json(keys: Collection[EntryKey]) -> list[list[str]]:
    """Keys as JSON has them, sorted."""
    return sorted(map(list, keys))


def latest(before: Collection[EntryKey], new: Collection[EntryKey]) -> set[EntryKey]:
    """The keys of `new`, and of `before` those of other entries: of each entry what was told last.

    So an entry that was edited back to what it had said before is told once more.
    """
    places = {key[:2] for key in new}
    return {*(key for key in before if key[:2] not in places), *new}


def keys_in(unsafe_listed: object) -> set[EntryKey]:
    """The keys that `keys_as_json` wrote, at most `MAX_KEYS`; what it cannot have written is left out.

    Args:
        unsafe_listed: of a saved state, which may be anything.
    """
    listed = unsafe_listed if isinstance(unsafe_listed, list | tuple) else ()
    found = (
        EntryKey(RootKey(each[0]), RelPath(each[1]), Digest(each[2]))
        for each in listed
        if isinstance(each, list | tuple)
        and len(each) == len(EntryKey._fields)
        and all(isinstance(part, str) for part in each)
    )
    return set(islice(found, MAX_KEYS))
