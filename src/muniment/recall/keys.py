"""Keys of entries that a conversation was given, as its saved state has them."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice
from typing import Final

from muniment.kernel.names import Digest, RelPath
from muniment.types.keys import EntryKey, RootKey

MAX_KEYS: Final = 10_000
"""Keys that are taken from a saved state: those of two thousand turns. Each costs a search some 2 µs."""


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
