"""Entries that are listed whatever is asked: all of some roots, or those about the folders of a path.

Attacked in tests/recall/test_listing.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final

from muniment.confine.cancel import Patience
from muniment.names import Trust
from muniment.policy.grammar import fold
from muniment.recall.search import HIT_COLUMNS, Hit, hit_of
from muniment.recall.stems import Stemmer
from muniment.store.database import Database
from muniment.store.ledger import RootKey
from muniment.store.rows import folded

PINNED: Final = "pinned"
"""The folder of a scope whose entries come first, however its name is spelled; policies protect it."""

MAX_LISTED: Final = 100
"""Entries of a listing; no budget has room for as many."""

MAX_PATH_CHARS: Final = 4_096
"""Characters of a path of the workspace: as many as Linux takes; nothing is about a longer one."""

_MAX_FOLDERS: Final = 12

_SHOWN: Final = """
    entry.root IN (SELECT value FROM json_each(?)) AND entry.readable AND entry.held IS NULL
    AND (entry.expires IS NULL OR entry.expires > ?)
"""

_LISTED: Final = f"""
    SELECT {HIT_COLUMNS} FROM entry
    WHERE {_SHOWN} AND entry.trust IN (SELECT value FROM json_each(?))
    ORDER BY entry.sort LIKE '{PINNED}/%' DESC, entry.mtime_ns DESC, entry.rel
    LIMIT {MAX_LISTED}
"""  # noqa: S608  constants of this package

_ABOUT: Final = f"""
    SELECT {HIT_COLUMNS}, entry.topic, entry.keywords
    FROM text CROSS JOIN entry ON entry.id = text.rowid
    WHERE text MATCH ? AND {_SHOWN} ORDER BY rank LIMIT {MAX_LISTED}
"""  # noqa: S608  likewise


def listed(
    catalog: Database, roots: Sequence[RootKey], trusts: Sequence[Trust], now: str, patience: Patience
) -> list[Hit]:
    """The entries of some roots and trusts: pinned ones first, then the newest; at most `MAX_LISTED`.

    Args:
        catalog: up to date.
        roots: where.
        trusts: as rows say; whoever shows an entry asks the ledger (`reading.py`).
        now: ISO-8601 UTC; what has expired by then is not listed.
        patience: until when to look.

    Raises:
        ManagedMemoryUnavailable, Cancelled, DeadlineExceeded: as `Database.rows`.

    Cost: 30 ms in a memory of 100 000 entries.
    """
    values = (json.dumps(list(roots)), now, json.dumps(list(trusts)))
    return [hit_of(row) for row in catalog.rows(_LISTED, values, patience=patience)]


def about_path(
    catalog: Database,
    stemmer: Stemmer,
    roots: Sequence[RootKey],
    unsafe_path: str,
    now: str,
    patience: Patience,
) -> list[Hit]:
    """The entries that have a folder or a keyword with the name of a path's file, or of a folder above it.

    Of the path's folders the innermost `_MAX_FOLDERS` count, and of the entries that speak of any of them the
    best `MAX_LISTED`.

    Args:
        catalog: up to date.
        stemmer: stays the caller's.
        roots: where.
        unsafe_path: of a file of the workspace, absolute or not; only compared, never opened.
        now: ISO-8601 UTC; what has expired by then is not listed.
        patience: until when to look.

    Raises:
        ManagedMemoryUnavailable, Cancelled, DeadlineExceeded: as `Database.rows`.

    Cost: that of a search for the words of the path.
    """
    if len(unsafe_path) > MAX_PATH_CHARS:
        return []
    path = PurePosixPath(unsafe_path)
    names = [fold(part) for part in (path.stem, *reversed(path.parts[:-1]))][:_MAX_FOLDERS]
    words = {term.word for name in names for term in stemmer.terms(folded(name))}
    if not words:
        return []
    expression = "{context} : (" + " OR ".join(f'"{word}"' for word in sorted(words)) + ")"
    rows = catalog.rows(_ABOUT, (expression, json.dumps(list(roots)), now), patience=patience)
    return [
        hit_of(tuple(row))
        for *row, topic, keywords in rows
        if not {fold(each) for each in (*topic.split("/"), *json.loads(keywords))}.isdisjoint(names)
    ]
