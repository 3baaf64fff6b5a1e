"""Convert the identifiers of injected entries to JSON and back, for the saved state of a conversation."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice
from typing import Final

from muniment.kernel.names import Digest, RelPath
from muniment.types.keys import EntryKey, RootKey

MAX_KEYS: Final = 10_000
"""Maximum number of keys that are read from a saved state.

This is enough for two thousand turns. A search needs about 2 µs for each key.
"""


def dump_keys(keys: Collection[EntryKey]) -> list[list[str]]:
    """Return the keys as sorted JSON lists, to save them in the state of a conversation."""
    return sorted(map(list, keys))


def merge_latest_keys(before: Collection[EntryKey], new: Collection[EntryKey]) -> set[EntryKey]:
    """Return the keys of `new`, and those keys of `before` whose entry has no key in `new`.

    The result has only the latest version of each entry. Therefore an entry that was edited and then restored
    can be injected again.
    """
    entries = {key[:2] for key in new}
    return {*(key for key in before if key[:2] not in entries), *new}


def load_keys(unsafe_listed: object) -> set[EntryKey]:
    """Return the keys that `dump_keys` wrote, at most `MAX_KEYS`; skip invalid values.

    Args:
        unsafe_listed: a value from a saved state; it may be of any type.
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
