"""Keys of entries that a conversation received, in the format of its saved state."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice
from typing import Final

from muniment.kernel.names import Digest, RelPath
from muniment.types.keys import EntryKey, RootKey

MAX_KEYS: Final = 10_000
"""Keys that are read from a saved state: enough for two thousand turns. Each costs a search about 2 µs."""


def dump_keys(keys: Collection[EntryKey]) -> list[list[str]]:
    """Return keys as JSON values, sorted."""
    return sorted(map(list, keys))


def merge_latest_keys(before: Collection[EntryKey], new: Collection[EntryKey]) -> set[EntryKey]:
    """Return the keys of `new`, and the keys of `before` for other entries: the latest key of each entry.

    So an entry that was edited and then restored is injected again.
    """
    entries = {key[:2] for key in new}
    return {*(key for key in before if key[:2] not in entries), *new}


def load_keys(unsafe_listed: object) -> set[EntryKey]:
    """Return the keys that `dump_keys` wrote, at most `MAX_KEYS`; invalid values are left out.

    Args:
        unsafe_listed: from a saved state; may be any value.
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
